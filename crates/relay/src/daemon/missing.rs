//! What this host lacks for a relay, before anything is touched.

use crate::{InterceptPlan, RelayPlan, adopt, intercept, queue};
use longfat_host::{
    socket::{self, CC_RESTRICTED},
    support::{self, Missing},
};
use std::net::Ipv4Addr;

/// What this host lacks for the plan; nothing is touched.
pub fn missing(plan: &RelayPlan) -> Vec<Missing> {
    let mut missing = on_reload(plan);
    missing.extend(
        plan.intercept.as_ref().and_then(|_| support::missing_network_raw("refusals of held handshakes")),
    );
    missing.extend(queue::missing(&plan.queues()));
    missing.extend(adopt::missing_to_watch(plan));
    missing
}

/// What this host lacks for taking connections that pass through it, whatever the interface.
pub fn missing_for_interception() -> Vec<Missing> {
    let interfaces = vec!["lo".to_owned()];
    let intercept = InterceptPlan { interfaces, set_forwarding: true, ..InterceptPlan::default() };
    missing(&RelayPlan::transparent("probe", intercept))
}

/// What this host lacks for stepping into connections whose ends shook hands with each other.
pub fn missing_for_adoption() -> Vec<Missing> {
    adopt::missing()
}

/// What it lacks for a relay that runs. Whole packets are sent by sockets that were opened at its start, and packets
/// are marked by a program that was loaded then, with rights that have been given up since.
pub(crate) fn on_reload(plan: &RelayPlan) -> Vec<Missing> {
    let mut missing = intercept::missing(plan);
    missing.extend(plan.ccs().into_iter().filter_map(missing_cc));
    missing
}

/// Why none of ours can be loaded into this kernel, as far as this user's rights let it be known.
fn missing_for_ours() -> Option<Missing> {
    use longfat_kernel::support::{Capability, missing, missing_rights};
    let known = missing_rights().is_none();
    known.then(|| missing(&[Capability::CongestionControl])).and_then(|missing| missing.into_iter().next())
}

fn missing_cc(name: &str) -> Option<Missing> {
    let probe = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let error = socket::set_cc(&probe, name).err()?;
    if name.starts_with("lf_")
        && let Some(never) = missing_for_ours()
    {
        return Some(never);
    }
    let (why, mend) = match error {
        longfat_host::Error::CcRestricted { mend, .. } => (format!("it {CC_RESTRICTED}"), mend),
        error => {
            let mend = match name.strip_prefix("lf_") {
                Some(ours) => format!("load it with 'longfat cc load {ours}'"),
                None => {
                    format!("load it with 'modprobe tcp_{name}', or name one that 'longfat cc list' shows")
                }
            };
            (error.to_string(), mend)
        }
    };
    Some(Missing::new(format!("the congestion control '{name}'"), why, mend))
}
