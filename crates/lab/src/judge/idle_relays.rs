//! Relays that took no connection, though flows pass them: such a run is one without a relay.

use crate::{
    plan::{
        FlowPlan, Plan, RelayPlan,
        network::{Topology, takes},
    },
    samples::Samples,
    spec::Protocol,
};

/// Relays of a run that recorded no connection and should have.
pub(super) fn faults(plan: &Plan, as_run: &Plan, samples: &Samples) -> Vec<String> {
    let topology = Topology::of_plan(plan);
    let took = |relay: &RelayPlan| samples.relay.iter().any(|sample| sample.relay == relay.name);
    let passing = |relay: &RelayPlan| {
        let tcp = plan.flows.iter().filter(|flow| flow.protocol == Protocol::Tcp);
        tcp.into_iter()
            .find(|flow| topology.path(&flow.from, &flow.to).is_some_and(|path| takes(relay, flow, &path)))
    };
    // One link's connections are taken by one relay of a host.
    let beside = |relay: &RelayPlan| {
        let shares = |other: &&RelayPlan| {
            other.host == relay.host && other.intercept.iter().any(|link| relay.intercept.contains(link))
        };
        plan.relays.iter().filter(shares).any(took)
    };
    let idle = plan.relays.iter().zip(&as_run.relays).filter(|(relay, _)| !beside(relay));
    idle.filter_map(|(relay, as_run)| Some(fault(as_run, passing(relay)?))).collect()
}

fn fault(relay: &RelayPlan, flow: &FlowPlan) -> String {
    let on: Vec<String> = relay.intercept.iter().map(|interface| format!("'{interface}'")).collect();
    format!(
        "relay '{}' took no connection on {}: flow '{}' from '{}' did not come in there; give the interface of '{}' by \
         which it comes, or mend the route",
        relay.name,
        on.join(", "),
        flow.name,
        flow.from,
        relay.host
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests_support::plan;
    use longfat_schema::record::RelaySample;

    #[test]
    fn a_relay_that_flows_pass_and_that_took_none_is_told_with_its_interface() {
        let plan = plan();
        let mut as_run = plan.clone();
        as_run.relays[0].intercept = vec!["admin".to_owned()];
        let said = faults(&plan, &as_run, &Samples::default());
        assert_eq!(
            said,
            [
                "relay 'pep' took no connection on 'admin': flow 'measured' from 'a' did not come in there; give the \
              interface of 'r' by which it comes, or mend the route"
            ]
        );
        let relay = vec![RelaySample { relay: "pep".into(), ..RelaySample::default() }];
        assert_eq!(faults(&plan, &as_run, &Samples { relay, ..Samples::default() }), Vec::<String>::new());
    }

    #[test]
    fn a_relay_that_no_connection_passes_need_not_take_any() {
        let idle = |change: fn(&mut Plan)| {
            let mut plan = plan();
            change(&mut plan);
            faults(&plan, &plan, &Samples::default()).len()
        };
        assert_eq!(idle(|_| {}), 1);
        assert_eq!(idle(|plan| plan.flows[0].protocol = Protocol::Udp), 0);
        assert_eq!(idle(|plan| plan.flows[0].to = "r".into()), 0, "it ends there");
        assert_eq!(idle(|plan| plan.flows[0].from = "r".into()), 0, "it begins there");
        assert_eq!(
            idle(|plan| plan.relays[0].intercept = vec!["path".into()]),
            0,
            "it comes by the other link"
        );
    }
}
