//! The TCP connections of this network namespace, as they are seen and set.

use crate::{Result, event::Event};
use longfat_kernel::{
    cc::kernel_has,
    tcb::{Answer, CcKind, CcName, Change, ControlBlock, NetNamespace, Scope, Setter, Step, plan},
};
use std::collections::BTreeMap;

pub(crate) struct Sockets {
    setter: Setter,
    place: NetNamespace,
    /// What can be set under, and what can be done with its state: found out once, with the rights to.
    prepared: BTreeMap<CcName, CcKind>,
}

impl Sockets {
    /// Whatever has a congestion control of this kernel, or one of `more`, can be set from now on.
    pub fn open(more: impl Iterator<Item = CcName>, tell: &mut dyn FnMut(Event<'_>)) -> Result<Sockets> {
        let mut places = Scope::Own.namespaces()?;
        let mut setter = Setter::load()?;
        let prepared = prepare(&mut setter, more, tell)?;
        Ok(Sockets { setter, place: places.swap_remove(0), prepared })
    }

    /// Every control block.
    pub fn look(&self) -> Result<Vec<ControlBlock>> {
        Ok(self.setter.look(&self.place)?)
    }

    /// What a change means for one connection, or why it cannot be made.
    pub fn step(&self, block: &ControlBlock, change: &Change) -> std::result::Result<Step, String> {
        let to = change.cc.unwrap_or(block.cc);
        if !self.prepared.contains_key(&to) {
            let why = "was not there, or not to be used, when this process began; load it and start anew";
            return Err(format!("the congestion control '{}' {why}", to.as_str()));
        }
        plan(block, change, |name| self.kind(name)).map_err(|refusal| refusal.0)
    }

    /// Does it; answers in the order of `steps`.
    pub fn apply(&mut self, steps: &[Step]) -> Result<Vec<Answer>> {
        Ok(self.setter.apply(&self.place, steps)?)
    }

    /// What of a congestion control's state is kept does not matter here: it is of another link, and begins anew.
    fn kind(&self, name: &str) -> CcKind {
        self.prepared.get(&CcName::from(name)).copied().unwrap_or(CcKind::Absent)
    }
}

/// Every congestion control of this kernel that connections can be set under.
fn prepare(
    setter: &mut Setter,
    more: impl Iterator<Item = CcName>,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<BTreeMap<CcName, CcKind>> {
    let there = longfat_host::sysctl::read("net.ipv4.tcp_available_congestion_control")?;
    let names = there.split_whitespace().map(CcName::from).chain(more);
    let mut prepared = BTreeMap::new();
    for cc in names {
        match setter.prepare(cc) {
            Ok(()) => drop(prepared.insert(cc, kind_of(cc))),
            Err(error) => {
                tell(Event::Said(format!("connections under '{}' stay as they are: {error}", cc.as_str())));
            }
        }
    }
    Ok(prepared)
}

fn kind_of(cc: CcName) -> CcKind {
    match cc.as_str() {
        "reno" => CcKind::Stateless,
        name if kernel_has(name).unwrap_or(false) => CcKind::Opaque,
        _ => CcKind::Absent,
    }
}
