//! Hosts that are held up, as those are whose processor is away: what comes to them, their timers and their programs
//! wait, and all of it is done at once when they go on. Routers pass nothing on meanwhile.

use crate::scenario::Scenario;

/// Nodes that are held up, and until when.
#[derive(Debug, Default)]
pub struct HoldUps {
    /// Node by entity of the event queue: where a direction's packets arrive, where an endpoint or a source is. Empty
    /// when nobody is ever held up.
    node_of: Vec<usize>,
    /// Hold-ups of every node, in virtual time, in order; none touches another.
    spans_ns: Vec<Vec<(u64, u64)>>,
    /// Number of hold-ups that are over, per node.
    over: Vec<usize>,
}

impl HoldUps {
    /// Hold-ups of a scenario; `ends` are the nodes of endpoints, then of UDP sources.
    pub fn new(scenario: &Scenario, ends: impl Iterator<Item = usize>) -> HoldUps {
        if scenario.nodes.iter().all(|node| node.hold_ups.is_empty()) {
            return HoldUps::default();
        }
        let arrivals = scenario.links.iter().flat_map(|link| [link.ends[1], link.ends[0]]);
        let settled = |ns: u64| scenario.settle_ns.saturating_add(ns);
        let spans = scenario.nodes.iter().map(|node| {
            united(node.hold_ups.iter().map(|held| (settled(held.from_ns), settled(held.to_ns))).collect())
        });
        HoldUps {
            node_of: arrivals.chain(ends).collect(),
            spans_ns: spans.collect(),
            over: vec![0; scenario.nodes.len()],
        }
    }

    /// Until when an entity cannot act. Times never go back.
    pub fn until_ns(&mut self, entity: u32, now_ns: u64) -> Option<u64> {
        let node = *self.node_of.get(entity as usize)?;
        let spans_ns = &self.spans_ns[node];
        let over = &mut self.over[node];
        while spans_ns.get(*over).is_some_and(|(_, to_ns)| *to_ns <= now_ns) {
            *over += 1;
        }
        spans_ns.get(*over).filter(|(from_ns, _)| *from_ns <= now_ns).map(|(_, to_ns)| *to_ns)
    }
}

/// As few spans as there are, none of which touches another.
fn united(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.sort_unstable();
    spans.dedup_by(|later, earlier| {
        let touches = later.0 <= earlier.1;
        if touches {
            earlier.1 = earlier.1.max(later.1);
        }
        touches
    });
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_touch_are_one() {
        assert_eq!(united(vec![(5, 7), (1, 3), (2, 4), (7, 9), (20, 21)]), [(1, 4), (5, 9), (20, 21)]);
        assert_eq!(united(vec![(1, 9), (2, 3)]), [(1, 9)]);
    }

    #[test]
    fn a_node_is_held_up_from_the_beginning_of_a_span_until_its_end_and_others_are_not() {
        let mut held = HoldUps {
            node_of: vec![1, 0],
            spans_ns: vec![vec![(10, 20), (30, 40)], vec![]],
            over: vec![0; 2],
        };
        assert_eq!(
            [9, 10, 19, 20, 30, 40].map(|now_ns| held.until_ns(1, now_ns)),
            [None, Some(20), Some(20), None, Some(40), None]
        );
        assert_eq!([15, 35].map(|now_ns| held.until_ns(0, now_ns)), [None, None]);
        assert_eq!(held.until_ns(2, 15), None, "the sampler is nowhere");
    }
}
