//! What is to be changed, as people write it, and what that means for one connection. Pure.

use super::{
    block::{ControlBlock, PrivateState, UNLIMITED_CLAMP, UNLIMITED_SSTHRESH},
    field::Field,
    keep,
};
use crate::sockets::connection::{CcName, State};
use longfat_schema::units::Nanos;
use std::{collections::BTreeSet, fmt, ops::RangeInclusive};

/// Whether the congestion control's private state (W_max, BBR's model) is kept when windows are set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Keep {
    /// Where this kernel lets it be kept; elsewhere it begins anew, and that is said.
    #[default]
    WherePossible,
    /// A connection whose state cannot be kept is refused.
    Always,
    /// Private state begins anew, and the name of the congestion control stays.
    Never,
}

/// Values to set; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Congestion window.
    pub cwnd_segments: Option<u32>,
    /// Slow-start threshold.
    pub ssthresh_segments: Option<u32>,
    /// What cwnd may not exceed.
    pub clamp_segments: Option<u32>,
    /// Least retransmission timeout.
    pub rto_min_us: Option<u32>,
    /// Greatest retransmission timeout.
    pub rto_max_ms: Option<u32>,
    /// Congestion control.
    pub cc: Option<CcName>,
    /// Private state to put in, of the congestion control `cc`.
    pub private: Option<PrivateState>,
    /// What becomes of private state.
    pub keep: Keep,
    /// Whether nothing at all is set while a loss is being repaired; looked at in the same visit.
    pub unless_recovering: bool,
}

/// What may be asked for.
const CWND: RangeInclusive<u64> = 1..=1_000_000;
const SSTHRESH: RangeInclusive<u64> = 2..=1_000_000;
const RTO_MIN_US: RangeInclusive<u64> = 1_000..=200_000;
const RTO_MAX_MS: RangeInclusive<u64> = 1_000..=120_000;

/// A change that cannot be asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Not `NAME=VALUE`.
    #[error(
        "'{0}' is no change; write NAME=VALUE: cwnd=100 ssthresh=50 rto-min=50ms rto-max=10s cc=cubic clamp=500"
    )]
    Form(String),
    /// No value that can be set is called so.
    #[error("nothing that can be set is called '{0}' (cwnd, ssthresh, rto-min, rto-max, cc, clamp)")]
    Name(String),
    /// A condition, written like a change.
    #[error("'{name}' cannot be set; to choose connections by it, write it with blanks: {name} = {value}")]
    Condition {
        /// The field.
        name: String,
        /// What it was to be.
        value: String,
    },
    /// Two values for one thing.
    #[error("{0} is given twice; which is meant?")]
    Twice(String),
    /// Not a number or a time.
    #[error("{name}: {why}")]
    Value {
        /// What was to be set.
        name: String,
        /// What is wrong with the value.
        why: String,
    },
    /// Out of range.
    #[error("{name}={value} is out of range: {range}")]
    Range {
        /// What was to be set.
        name: String,
        /// To what.
        value: String,
        /// What it may be.
        range: String,
    },
    /// The change sets nothing.
    #[error(
        "nothing to set; give at least one of cwnd=… ssthresh=… rto-min=… rto-max=… cc=… clamp=…, without blanks around '='"
    )]
    Nothing,
}

impl Change {
    /// Whether a word is meant as a change: `cwnd=100`, not a filter's `cwnd = 100`.
    pub fn is_assignment(word: &str) -> bool {
        let letter = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_');
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| !name.is_empty() && name.bytes().all(letter))
    }

    /// Reads `cwnd=100 rto-min=50ms`, in capitals and with `_` as well.
    ///
    /// # Errors
    /// When a word is no change, or its value is out of range.
    pub fn parse<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Result<Change, ChangeError> {
        let mut change = Change::default();
        let mut given = BTreeSet::new();
        for word in words {
            let word = word.as_ref();
            let (name, value) = word.split_once('=').ok_or_else(|| ChangeError::Form(word.to_owned()))?;
            let plain = name.to_ascii_lowercase().replace('_', "-");
            change.read(&plain, value).map_err(|error| named(error, name, value))?;
            if !given.insert(plain) {
                return Err(ChangeError::Twice(name.to_owned()));
            }
        }
        if change == Change::default() { Err(ChangeError::Nothing) } else { Ok(change) }
    }

    fn read(&mut self, name: &str, value: &str) -> Result<(), ChangeError> {
        match name {
            "cwnd" => self.cwnd_segments = Some(segments(name, value, CWND)?),
            "ssthresh" if value == "unlimited" => self.ssthresh_segments = Some(UNLIMITED_SSTHRESH),
            "ssthresh" => self.ssthresh_segments = Some(segments(name, value, SSTHRESH)?),
            "clamp" if value == "unlimited" => self.clamp_segments = Some(UNLIMITED_CLAMP),
            "clamp" => self.clamp_segments = Some(segments(name, value, CWND)?),
            "rto-min" => self.rto_min_us = Some(time(name, value, RTO_MIN_US, 1, "1ms to 200ms")?),
            "rto-max" => self.rto_max_ms = Some(time(name, value, RTO_MAX_MS, 1000, "1s to 120s")?),
            "cc" if value.is_empty() || value.len() > 15 => {
                let why = "a congestion control's name has 1 to 15 letters".to_owned();
                return Err(ChangeError::Value { name: name.to_owned(), why });
            }
            "cc" => self.cc = Some(CcName::from(value)),
            _ => return Err(ChangeError::Name(name.to_owned())),
        }
        Ok(())
    }

    /// Whether its windows and its congestion control's name may be asked for, where they were not read by
    /// [`Change::parse`].
    ///
    /// # Errors
    /// What may not, and what it may be.
    pub fn check(&self) -> Result<(), ChangeError> {
        let within = |name: &str, value: Option<u32>, range: &RangeInclusive<u64>| {
            let Some(value) = value else { return Ok(()) };
            let text = format!("{} to {} segments", range.start(), range.end());
            in_range(name, &value.to_string(), value.into(), range, &text).map(drop)
        };
        within("cwnd", self.cwnd_segments, &CWND)?;
        within("ssthresh", self.ssthresh_segments.filter(|value| *value < UNLIMITED_SSTHRESH), &SSTHRESH)
    }

    fn sets_windows(&self) -> bool {
        self.cwnd_segments.is_some()
            || self.ssthresh_segments.is_some()
            || self.clamp_segments.is_some()
            || self.private.is_some()
    }
}

/// What cannot be set may be what connections are chosen by.
fn named(error: ChangeError, name: &str, value: &str) -> ChangeError {
    let is_unknown = matches!(error, ChangeError::Name(_));
    match Field::find(&name.to_ascii_lowercase()) {
        Some(_) if is_unknown => ChangeError::Condition { name: name.to_owned(), value: value.to_owned() },
        None if is_unknown => ChangeError::Name(name.to_owned()),
        _ => error,
    }
}

fn segments(name: &str, value: &str, range: RangeInclusive<u64>) -> Result<u32, ChangeError> {
    let wrong =
        || ChangeError::Value { name: name.to_owned(), why: format!("'{value}' is no number of segments") };
    let number: u64 = value.parse().map_err(|_| wrong())?;
    let text = format!("{} to {} segments", range.start(), range.end());
    in_range(name, value, number, &range, &text)
}

/// A time in units of `unit_us`.
fn time(
    name: &str,
    value: &str,
    range: RangeInclusive<u64>,
    unit_us: u64,
    text: &str,
) -> Result<u32, ChangeError> {
    let wrong = |why: longfat_schema::units::UnitError| ChangeError::Value {
        name: name.to_owned(),
        why: why.to_string(),
    };
    let number = value.parse::<Nanos>().map_err(wrong)?.as_us() / unit_us;
    in_range(name, value, number, &range, text)
}

fn in_range(
    name: &str,
    value: &str,
    number: u64,
    range: &RangeInclusive<u64>,
    text: &str,
) -> Result<u32, ChangeError> {
    let out =
        || ChangeError::Range { name: name.to_owned(), value: value.to_owned(), range: text.to_owned() };
    if range.contains(&number) { u32::try_from(number).map_err(|_| out()) } else { Err(out()) }
}

/// What this kernel can do with a congestion control's private state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CcKind {
    /// The congestion control has no private state: reno.
    Stateless,
    /// The congestion control's init() takes its state over: ours, and the wrappers.
    Restoring,
    /// The kernel's own, for which there is a wrapper: cubic, bbr.
    Wrappable,
    /// The congestion control is there, and its state is lost on a change.
    Opaque,
    /// The congestion control is not registered: sockets may still use it, none can be given it.
    Absent,
}

/// How one connection is to be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Which socket.
    pub cookie: u64,
    /// The values.
    pub change: Change,
    /// How the windows are written; absent when only options are set.
    pub route: Option<Route>,
    /// What the person should know.
    pub notes: Vec<String>,
}

/// The way through congestion controls that writes the windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Whether to go through the setter.
    pub through_setter: bool,
    /// The congestion control it ends with.
    pub to: CcName,
    /// Whether the private state goes along.
    pub keeps_state: bool,
}

/// Why one connection is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a change means for one connection. `kind` tells what there is in this kernel.
///
/// # Errors
/// When its state, its recovery or its congestion control does not allow it.
pub fn plan(block: &ControlBlock, change: &Change, kind: impl Fn(&str) -> CcKind) -> Result<Step, Refusal> {
    check_state(block, change)?;
    let mut notes = Vec::new();
    let route = route(block, change, &kind, &mut notes)?;
    note_timers(block, change, &mut notes);
    Ok(Step { cookie: block.cookie, change: change.clone(), route, notes })
}

fn check_state(block: &ControlBlock, change: &Change) -> Result<(), Refusal> {
    let state = block.state;
    let refuse = |why: &str| Err(Refusal(format!("in state {state}: {why}")));
    if !state.has_control_block() {
        return refuse("it has no control block");
    }
    if state == State(2) && change.sets_windows() {
        return refuse("the handshake would overwrite the windows; try again once it is established");
    }
    if state == State::LISTEN && change.sets_windows() {
        return refuse("a listener has no windows; only cc, rto-min and rto-max can be set on it");
    }
    let reducing = matches!(block.ca_state, 2 | 3);
    if reducing && change.cwnd_segments.is_some() && change.ssthresh_segments.is_none() {
        let why = "the kernel sets cwnd to ssthresh when recovery ends; set ssthresh too, or wait";
        return Err(Refusal(format!("in recovery: {why}")));
    }
    Ok(())
}

fn route(
    block: &ControlBlock,
    change: &Change,
    kind: &impl Fn(&str) -> CcKind,
    notes: &mut Vec<String>,
) -> Result<Option<Route>, Refusal> {
    let stays = change.cc.is_none_or(|cc| cc == block.cc);
    if stays && !change.sets_windows() {
        return Ok(None);
    }
    let target = change.cc.unwrap_or(block.cc);
    let name = target.as_str();
    let through = |to: CcName, keeps_state| Route { through_setter: true, to, keeps_state };
    if !stays && change.private.is_none() {
        return other_cc(change, target, kind(name), notes).map(Some);
    }
    let route = match (kind(name), change.keep) {
        (CcKind::Absent, _) => return Err(absent(name, stays)),
        (CcKind::Stateless, _) => through(target, false),
        (CcKind::Restoring, keep) => through(target, keep != Keep::Never),
        (CcKind::Wrappable, Keep::WherePossible | Keep::Always) => {
            let to = CcName::from(format!("{}{name}", keep::PREFIX).as_str());
            notes.push(format!("{name}'s private state is kept, under the name '{}'", to.as_str()));
            Route { through_setter: to == block.cc, to, keeps_state: true }
        }
        (CcKind::Opaque, Keep::Always) => {
            return Err(Refusal(format!("the private state of '{name}' cannot be kept on this kernel")));
        }
        (CcKind::Wrappable | CcKind::Opaque, _) => {
            notes.push(format!("{name}'s private state begins anew"));
            through(target, false)
        }
    };
    Ok(Some(route))
}

/// Another congestion control begins with a state of its own; windows not asked for stay as they are.
fn other_cc(change: &Change, to: CcName, kind: CcKind, notes: &mut Vec<String>) -> Result<Route, Refusal> {
    if kind == CcKind::Absent {
        return Err(absent(to.as_str(), false));
    }
    let name = to.as_str();
    if name.contains("bbr") && (change.cwnd_segments.is_some() || change.ssthresh_segments.is_some()) {
        notes
            .push(format!("{name} makes ssthresh unlimited when it begins, and soon decides on cwnd itself"));
    }
    let through_setter = change.sets_windows() && kind != CcKind::Restoring;
    Ok(Route { through_setter, to, keeps_state: false })
}

fn absent(name: &str, in_use: bool) -> Refusal {
    let mend = match name.strip_prefix("lf_") {
        Some(ours) => format!("'longfat cc load {ours}' registers it"),
        None => "'longfat cc list' shows what there is".to_owned(),
    };
    Refusal(match in_use {
        true => format!(
            "its congestion control '{name}' is no longer registered, so that it could not be given back; {mend}, or give another with cc="
        ),
        false => format!("this kernel has no congestion control '{name}'; {mend}"),
    })
}

fn note_timers(block: &ControlBlock, change: &Change, notes: &mut Vec<String>) {
    let raised = |now: Option<u32>, wanted: Option<u32>| matches!((now, wanted), (Some(now), Some(wanted)) if wanted > now);
    if raised(block.rto_min_us, change.rto_min_us) && block.srtt_us > 0 {
        notes.push("a greater rto-min has little effect once a round-trip time was measured".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcb::block::RawBlock;
    use proptest::prelude::*;

    fn block(cc: &str) -> ControlBlock {
        let raw = RawBlock { cookie: 9, tcp_state: 1, cc: CcName::from(cc).bytes(), ..RawBlock::default() };
        ControlBlock::from(&raw)
    }

    fn kind(name: &str) -> CcKind {
        match name {
            "reno" => CcKind::Stateless,
            "cubic" | "bbr" => CcKind::Wrappable,
            "htcp" => CcKind::Opaque,
            "lf_highspeed" | "lfkeep_cubic" => CcKind::Restoring,
            _ => CcKind::Absent,
        }
    }

    fn change(words: &[&str]) -> Change {
        Change::parse(words).unwrap()
    }

    fn route_of(cc: &str, change: &Change) -> Option<Route> {
        plan(&block(cc), change, kind).unwrap().route
    }

    fn refusal(block: &ControlBlock, change: &Change) -> String {
        plan(block, change, kind).unwrap_err().0
    }

    #[test]
    fn private_state_goes_along_wherever_the_kernel_lets_it() {
        let cwnd = change(&["cwnd=100"]);
        let route = |to: &str, through_setter, keeps_state| {
            Some(Route { through_setter, to: to.into(), keeps_state })
        };
        assert_eq!(route_of("reno", &cwnd), route("reno", true, false));
        assert_eq!(route_of("cubic", &cwnd), route("lfkeep_cubic", false, true));
        assert_eq!(route_of("lfkeep_cubic", &cwnd), route("lfkeep_cubic", true, true));
        assert_eq!(route_of("lf_highspeed", &cwnd), route("lf_highspeed", true, true));
        assert_eq!(route_of("htcp", &cwnd), route("htcp", true, false));
        let never = Change { keep: Keep::Never, ..cwnd.clone() };
        assert_eq!(route_of("cubic", &never), route("cubic", true, false));
        let always = Change { keep: Keep::Always, ..cwnd };
        assert!(refusal(&block("htcp"), &always).contains("cannot be kept"));
    }

    #[test]
    fn timers_alone_leave_the_congestion_control_untouched() {
        assert_eq!(route_of("cubic", &change(&["rto-min=20ms", "rto-max=10s"])), None);
        assert_eq!(route_of("cubic", &change(&["cc=cubic"])), None);
    }

    #[test]
    fn another_congestion_control_is_entered_with_the_windows_asked_for() {
        let route = route_of("cubic", &change(&["cc=reno", "cwnd=50"])).unwrap();
        assert_eq!((route.through_setter, route.to.as_str(), route.keeps_state), (true, "reno", false));
        let route = route_of("cubic", &change(&["cc=reno"])).unwrap();
        assert!(!route.through_setter);
        let route = route_of("cubic", &change(&["cc=lf_highspeed", "cwnd=50"])).unwrap();
        assert!(!route.through_setter, "its own init() writes them");
    }

    #[test]
    fn refusals_name_the_reason_and_the_mend() {
        let cwnd = change(&["cwnd=100"]);
        let listening = ControlBlock { state: State::LISTEN, ..block("cubic") };
        assert!(refusal(&listening, &cwnd).contains("a listener has no windows"));
        assert!(plan(&listening, &change(&["rto-min=20ms", "cc=reno"]), kind).is_ok());
        let connecting = ControlBlock { state: State(2), ..block("cubic") };
        assert!(refusal(&connecting, &cwnd).contains("handshake"));
        let recovering = ControlBlock { ca_state: 3, ..block("cubic") };
        assert!(refusal(&recovering, &cwnd).contains("ssthresh"));
        assert!(plan(&recovering, &change(&["cwnd=100", "ssthresh=100"]), kind).is_ok());
        assert!(refusal(&block("lf_gone"), &cwnd).contains("longfat cc load gone"));
        assert!(refusal(&block("cubic"), &change(&["cc=vegsa"])).contains("'vegsa'"));
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_range() {
        let said = |word: &str| Change::parse([word]).unwrap_err().to_string();
        assert_eq!(said("cwnd=0"), "cwnd=0 is out of range: 1 to 1000000 segments");
        assert_eq!(said("rto-min=300ms"), "rto-min=300ms is out of range: 1ms to 200ms");
        assert_eq!(said("rto-max=10ms"), "rto-max=10ms is out of range: 1s to 120s");
        assert!(said("ssthresh=1").contains("2 to"));
        assert!(said("cwnd=many").contains("no number of segments"));
        assert!(said("rto-min=50").contains("has no unit"));
        assert!(said("window=5").contains("nothing that can be set is called 'window'"));
        assert!(said("cwnd").contains("NAME=VALUE"));
        assert!(said("sport=5001").contains("write it with blanks: sport = 5001"));
        let twice = Change::parse(["rto-min=20ms", "RTO_MIN=30ms"]).unwrap_err();
        assert_eq!(twice.to_string(), "RTO_MIN is given twice; which is meant?");
        assert!(Change::parse(Vec::<String>::new()).is_err());
        assert_eq!(change(&["ssthresh=unlimited"]).ssthresh_segments, Some(UNLIMITED_SSTHRESH));
    }

    #[test]
    fn a_name_is_known_however_it_is_written_and_a_comparison_is_no_change() {
        let changes = ["cwnd=20", "Cwnd=20", "rto_min=20ms", "sport=1"];
        assert!(changes.iter().all(|word| Change::is_assignment(word)));
        let others = ["cwnd!=20", "cwnd>=20", "rtt<=2ms", "=", "=20", "cwnd", "10.0.0.0/8"];
        assert!(others.iter().all(|word| !Change::is_assignment(word)));
        assert_eq!(change(&["Cwnd=20", "rto_min=20ms"]), change(&["cwnd=20", "rto-min=20ms"]));
    }

    proptest! {
        #[test]
        fn any_word_is_a_change_within_range_or_refused(word in ".{0,30}") {
            if let Ok(change) = Change::parse([&word]) {
                prop_assert!(change.cwnd_segments.is_none_or(|cwnd| CWND.contains(&cwnd.into())));
                prop_assert!(change.rto_min_us.is_none_or(|rto| RTO_MIN_US.contains(&rto.into())));
            }
        }
    }
}
