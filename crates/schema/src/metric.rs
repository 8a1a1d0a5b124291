//! Every metric of a run: what it is of, what a reader calls it, whether more of it is better, what it means. What
//! measures, judges, shows, compares or queries metrics reads this list.

/// What a figure is of, as `of` in a manifest names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The run as a whole: `of` is empty.
    Run,
    /// `FLOW`.
    Flow,
    /// `FLOW`, or a leg of a relay: `RELAY/relay_in`, `RELAY/relay_out`.
    FlowOrLeg,
    /// `LINK`.
    Link,
    /// `LINK/forward`, `LINK/backward`.
    Direction,
    /// `RELAY/client_to_server`, `RELAY/server_to_client`.
    Relay,
}

/// What one would rather have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// More of it.
    More,
    /// Less of it.
    Less,
}

/// A metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// As in the manifest; it ends in its unit ([`crate::quantity`]).
    pub name: &'static str,
    /// What a reader calls it, without the unit.
    pub heading: &'static str,
    /// What it is of.
    pub scope: Scope,
    /// Absent where neither is.
    pub better: Option<Better>,
    /// What was counted, in one sentence.
    pub meaning: &'static str,
}

const fn kind(
    name: &'static str,
    heading: &'static str,
    scope: Scope,
    better: Option<Better>,
    meaning: &'static str,
) -> Kind {
    Kind { name, heading, scope, better, meaning }
}

const MORE: Option<Better> = Some(Better::More);
const LESS: Option<Better> = Some(Better::Less);

/// Every metric there is: expectations may name these.
pub const KINDS: [Kind; 30] = [
    kind(
        "rise_us",
        "New rate used after",
        Scope::Flow,
        LESS,
        "From the window's start until nine tenths of the link's rate at the window's end arrive; where a link changes.",
    ),
    kind(
        "scaling_us",
        "Time to its pace",
        Scope::Flow,
        LESS,
        "From a TCP flow's start until its flight first reaches nine tenths of what its upper tenth of samples reach.",
    ),
    kind(
        "goodput_bps",
        "Goodput",
        Scope::Flow,
        MORE,
        "Payload that reached the receiver, over the window's length.",
    ),
    kind(
        "completion_us",
        "Completion",
        Scope::Flow,
        LESS,
        "From the planned start to the last byte of the last stream, of a flow with a size.",
    ),
    kind(
        "fairness_jain",
        "Jain fairness",
        Scope::Run,
        MORE,
        "Jain's index over the goodput of all TCP streams: 1 when all are equal, 1/n when one has everything.",
    ),
    kind(
        "retransmitted_segments",
        "Retransmitted",
        Scope::FlowOrLeg,
        LESS,
        "Segments that the sending sockets retransmitted.",
    ),
    kind("timeouts", "Timeouts", Scope::FlowOrLeg, LESS, "Times that the retransmission timer ran out."),
    kind(
        "spurious_timeouts",
        "Spurious timeouts",
        Scope::FlowOrLeg,
        LESS,
        "Timeouts that sent again only what had arrived, as the receiver reported (DSACK).",
    ),
    kind(
        "timeout_undo_us",
        "Timeout undone after",
        Scope::FlowOrLeg,
        LESS,
        "Of the slowest spurious timeout: until cwnd and ssthresh were what they had been.",
    ),
    kind(
        "echo_p50_us",
        "Echo p50",
        Scope::Flow,
        LESS,
        "Median time from sending a timestamp to reading its echo.",
    ),
    kind("echo_p99_us", "Echo p99", Scope::Flow, LESS, "99th percentile of the time to an echo."),
    kind("echo_max_us", "Echo max", Scope::Flow, LESS, "Longest time to an echo."),
    kind(
        "srtt_mean_us",
        "Mean SRTT",
        Scope::FlowOrLeg,
        LESS,
        "Mean of the smoothed round-trip time over samples.",
    ),
    kind("min_rtt_us", "Least RTT", Scope::FlowOrLeg, LESS, "Least round-trip time that the kernel saw."),
    kind(
        "cwnd_mean_segments",
        "Mean cwnd",
        Scope::FlowOrLeg,
        None,
        "Mean of the congestion window over samples.",
    ),
    kind(
        "cwnd_period_us",
        "Period of cwnd",
        Scope::FlowOrLeg,
        None,
        "Median time between two falls of a window by more than a tenth.",
    ),
    kind(
        "lost_datagrams",
        "Lost datagrams",
        Scope::Flow,
        LESS,
        "Datagrams of a UDP flow that did not arrive.",
    ),
    kind(
        "utilisation_ratio",
        "Utilisation",
        Scope::Direction,
        MORE,
        "Bits delivered, over what the link's rate allows; absent for a link that changes its rate.",
    ),
    kind("queue_mean_bytes", "Mean queue", Scope::Direction, LESS, "Mean over time of the bottleneck queue."),
    kind(
        "queue_max_bytes",
        "Longest queue",
        Scope::Direction,
        LESS,
        "Greatest sample of the bottleneck queue.",
    ),
    kind("dropped_packets", "Dropped", Scope::Direction, LESS, "Packets that the queue dropped."),
    kind("late_p99_us", "Lateness p99", Scope::Direction, LESS, "99th percentile of the driver's lateness."),
    kind(
        "held_up_drops_ratio",
        "Drops after hold-ups",
        Scope::Link,
        LESS,
        "Share of the drops that came within a round trip after a hold-up, or while the only connection repaired its losses.",
    ),
    kind(
        "backlog_mean_bytes",
        "Mean relay backlog",
        Scope::Relay,
        LESS,
        "Mean over time of the bytes a relay holds: received, and not yet acknowledged on its other side.",
    ),
    kind(
        "backlog_max_bytes",
        "Greatest relay backlog",
        Scope::Relay,
        LESS,
        "Greatest sample of the bytes a relay holds.",
    ),
    kind(
        "avail_error_ratio",
        "Error of available bandwidth",
        Scope::Flow,
        LESS,
        "Mean of |measured − free| over the capacity of the bottleneck, in bins of half a second.",
    ),
    kind(
        "avail_mean_bps",
        "Available bandwidth",
        Scope::Flow,
        None,
        "Mean of the available bandwidth as measured.",
    ),
    kind("avail_free_bps", "Free bandwidth", Scope::Flow, None, "Mean of what other flows left free."),
    kind(
        "avail_confidence_ratio",
        "Confidence",
        Scope::Flow,
        MORE,
        "How far the connection itself trusted what it measured, on average.",
    ),
    kind(
        "cpu_busy_ratio",
        "Processors busy",
        Scope::Run,
        LESS,
        "Share of all processors' time that was not idle.",
    ),
];

/// Names of all metrics.
pub const NAMES: [&str; KINDS.len()] = {
    let mut names = [""; KINDS.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = KINDS[index].name;
        index += 1;
    }
    names
};

/// The metric of that name; older results may have others.
pub fn find(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// What a reader calls that metric; its name where it is of an older result.
pub fn heading(name: &str) -> &str {
    find(name).map_or(name, |kind| kind.heading)
}

/// Whether one would rather have more of that metric.
pub fn more_is_better(name: &str) -> bool {
    find(name).is_some_and(|kind| kind.better == Some(Better::More))
}

impl Scope {
    /// What `of` in a manifest says of it, as a reader sees it.
    pub fn of(self) -> &'static str {
        match self {
            Scope::Run => "(the run)",
            Scope::Flow => "FLOW",
            Scope::FlowOrLeg => "FLOW, RELAY/relay_in, RELAY/relay_out",
            Scope::Link => "LINK",
            Scope::Direction => "LINK/forward, LINK/backward",
            Scope::Relay => "RELAY/client_to_server, RELAY/server_to_client",
        }
    }
}

impl Kind {
    /// Whether it is of the run as a whole.
    pub fn is_of_run(&self) -> bool {
        self.scope == Scope::Run
    }

    /// Whether it is of a flow, perhaps of a relay's legs, too.
    pub fn is_of_flow(&self) -> bool {
        matches!(self.scope, Scope::Flow | Scope::FlowOrLeg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Quantity;

    #[test]
    fn each_is_there_once_and_counts_or_ends_in_its_unit() {
        const COUNTED: [&str; 4] = ["segments", "packets", "datagrams", "timeouts"];
        for (index, kind) in KINDS.iter().enumerate() {
            assert_eq!(KINDS.iter().position(|other| other.name == kind.name), Some(index));
            assert!(!kind.heading.is_empty() && kind.meaning.ends_with('.'), "{}", kind.name);
            let is_counted = COUNTED.iter().any(|word| kind.name.ends_with(word));
            assert_eq!(Quantity::of_metric(kind.name) == Quantity::Count, is_counted, "{}", kind.name);
        }
        assert_eq!(find("goodput_bps").map(|kind| kind.heading), Some("Goodput"));
        assert_eq!(find("goodput"), None);
    }
}
