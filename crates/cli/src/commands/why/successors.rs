//! `--fix --successors`: a remedy for connections that are still to come, by a rule of the relay that carries
//! them or by a route to their peer alone, and whether it was one. The kernel tells of each that has ended
//! since then, with what it carried and how long it had something to send.

use super::{
    Args,
    fix::Fixer,
    mend,
    relay::AddedRule,
    route::{Metric, PeerRoute, inside},
    show,
    watch::{Watch, Watched},
};
use crate::outcome::{Failure, Outcome, require};
use anyhow::Context as _;
use longfat_kernel::tcb::{Connection, Endings, NetNamespace, Query, Scope};
use longfat_why::{Cause, Verdict, proof::Proof, words};
use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// A peer whose next connections can be helped.
struct Patient<'a> {
    place: &'a NetNamespace,
    /// The connection that was watched: successors have its peer, and one of its ports.
    local: SocketAddr,
    remote: SocketAddr,
    help: Help,
    /// Where successors are looked at as they are now, and as they are with the help.
    without: Seen<'a>,
    with: Option<Seen<'a>>,
}

/// What new connections are given.
enum Help {
    Route(PeerRoute, Metric),
    Rule(AddedRule),
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Help::Route(_, metric) => metric.fmt(f),
            Help::Rule(rule) => rule.fmt(f),
        }
    }
}

/// A namespace whose connections' ends are heard.
struct Seen<'a> {
    place: &'a NetNamespace,
    endings: Endings,
}

impl<'a> Seen<'a> {
    fn open(place: &'a NetNamespace) -> anyhow::Result<Seen<'a>> {
        Ok(Seen { place, endings: inside(place, || Endings::open(&place.label))?? })
    }
}

/// More peers are not helped at once.
const MOST: usize = 8;
/// Number of ended connections that are enough for a stretch.
const ENOUGH: usize = 6;
/// How soon a signal is answered.
const NAP: Duration = Duration::from_millis(50);

/// Gives new connections what they lack, and proves it or leaves it until Ctrl-C.
pub fn run(args: &Args, watch: &Watch, verdicts: &[(&Watched, Verdict)], stop: &AtomicBool) -> Outcome {
    let (places, all) = (watch.places()?, Scope::All.namespaces()?);
    let patients = patients(verdicts, &places, &all, args)?;
    if patients.is_empty() {
        return Err(Failure::Missed(
            "no route can mend this for new connections: it helps against slow_start, restart_after_idle, random_loss, \
             after_loss and timeouts at the sender; a rule of a relay on this host that they pass helps against \
             random_loss, after_loss and send_buffer"
                .to_owned(),
        ));
    }
    require(Fixer::lacks())?;
    let mut fixer = Fixer::open()?;
    if args.prove {
        for patient in &patients {
            let proof = prove(&mut fixer, patient, args, stop)?;
            mend::tell(&patient.who(), &patient.help, proof.as_ref(), None, args)?;
        }
        return Ok(());
    }
    hold(&mut fixer, &patients, stop)
}

/// One for each peer, by the cause that takes most time of its connections among those against which something helps.
fn patients<'a>(
    verdicts: &[(&Watched, Verdict)],
    places: &'a [NetNamespace],
    all: &'a [NetNamespace],
    args: &Args,
) -> anyhow::Result<Vec<Patient<'a>>> {
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    let peer = |one: &Watched| (one.connection.netns.clone(), one.connection.remote.ip());
    for (first, _) in verdicts.iter().filter(|(one, _)| known.insert(peer(one))) {
        let place = places.iter().find(|place| place.label == first.connection.netns);
        let Some(place) = place.filter(|_| found.len() < MOST) else { continue };
        let of_peer = verdicts.iter().filter(|(one, _)| peer(one) == peer(first));
        let Some((one, help)) = help(of_peer, place, found.len(), args)? else { continue };
        // With a relay's rule the path is that of its leg, in the relay's namespace.
        let with = match one.relay.as_ref().filter(|_| matches!(help, Help::Rule(_))) {
            Some(way) => {
                let place = all.iter().find(|place| place.inode == way.netns_inode);
                Some(Seen::open(place.context("the relay's network namespace has gone")?)?)
            }
            None => None,
        };
        let Connection { local, remote, .. } = one.connection;
        found.push(Patient { place, local, remote, help, without: Seen::open(place)?, with });
    }
    Ok(found)
}

/// What helps connections to a peer, and one of them that it would have helped. A relay sets its legs'
/// congestion control itself, whatever a route says, so its rule comes first.
fn help<'v, 'w: 'v>(
    of_peer: impl Iterator<Item = &'v (&'w Watched, Verdict)>,
    place: &NetNamespace,
    number: usize,
    args: &Args,
) -> anyhow::Result<Option<(&'w Watched, Help)>> {
    let mut causes: BTreeMap<Cause, (u64, &(&Watched, Verdict))> = BTreeMap::new();
    for of_one in of_peer {
        for share in of_one.1.causes.iter().filter(|share| share.share >= show::WORTH_MENDING) {
            causes.entry(share.cause).or_insert((0, of_one)).0 += share.time_us;
        }
    }
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by_key(|(_, (time_us, _))| std::cmp::Reverse(*time_us));
    for (cause, (_, (one, verdict))) in causes {
        if let Some(way) = &one.relay
            && let Some(keys) = way.rule_against(cause, &verdict.figures, args.rate)
        {
            return Ok(Some((one, Help::Rule(AddedRule::new(way, keys, number)))));
        }
        if let Some(metric) = Metric::against(cause) {
            let route = PeerRoute::to(one.connection.remote.ip(), place)?;
            return Ok(Some((one, Help::Route(route, metric))));
        }
    }
    Ok(None)
}

impl Patient<'_> {
    fn peer(&self) -> IpAddr {
        self.remote.ip().to_canonical()
    }

    fn who(&self) -> String {
        format!("new connections to {}", self.peer())
    }

    /// Where those with the help are looked at, or those without.
    fn seen(&self, is_helped: bool) -> &Seen<'_> {
        self.with.as_ref().filter(|_| is_helped).unwrap_or(&self.without)
    }

    /// To the same peer, of the same service at either end.
    fn is_successor(&self, other: &Connection) -> bool {
        let is_same_service =
            other.remote.port() == self.remote.port() || other.local.port() == self.local.port();
        other.remote.ip().to_canonical() == self.peer() && is_same_service
    }

    fn apply(&self, fixer: &mut Fixer) -> anyhow::Result<()> {
        match &self.help {
            Help::Route(route, metric) => fixer.apply_route(route, self.place, metric),
            Help::Rule(rule) => fixer.apply_rule(rule),
        }
    }

    fn undo(&self, fixer: &mut Fixer) -> anyhow::Result<()> {
        match &self.help {
            Help::Route(route, _) => fixer.undo_route(route, self.place),
            Help::Rule(rule) => fixer.undo_rule(rule),
        }
    }

    /// Connections that have begun before now and live. The endings of all others up to now are read and
    /// forgotten: they may be of connections that began earlier.
    fn living(&self, seen: &Seen) -> anyhow::Result<HashSet<u64>> {
        let all = inside(seen.place, || Query { scope: Scope::Own, ..Query::default() }.take())??;
        // The kernel tells of an end a moment later.
        thread::sleep(NAP);
        while !seen.endings.next(Duration::ZERO)?.is_empty() {}
        Ok(all.iter().filter(|one| self.is_successor(one)).map(|one| one.cookie).collect())
    }

    /// Bits per second of those that have begun since then and ended by now, or in a moment: of the time in which they
    /// had something to send.
    fn ended(&self, seen: &Seen, before: &HashSet<u64>) -> anyhow::Result<Vec<f64>> {
        let ended = seen.endings.next(NAP)?;
        let new = ended.iter().filter(|one| self.is_successor(one) && !before.contains(&one.cookie));
        let carried = new.filter_map(|one| one.info).filter(|info| info.acked_bytes > 0 && info.busy_us > 0);
        Ok(carried.map(|info| info.acked_bytes as f64 * 8e6 / info.busy_us as f64).collect())
    }
}

/// In force until Ctrl-C; what became of the connections then.
fn hold(fixer: &mut Fixer, patients: &[Patient], stop: &AtomicBool) -> Outcome {
    let mut held = Vec::new();
    for patient in patients {
        match patient.apply(fixer) {
            Ok(()) => {
                eprintln!("{}: {}, until Ctrl-C", patient.who(), patient.help);
                held.push((patient, patient.living(patient.seen(true))?, Vec::new()));
            }
            Err(error) => eprintln!("{}: {} could not be set: {error:#}", patient.who(), patient.help),
        }
    }
    if held.is_empty() {
        return Err(Failure::Missed("nothing could be set".to_owned()));
    }
    while !stop.load(Ordering::Relaxed) {
        for (patient, before, rates) in &mut held {
            rates.extend(patient.ended(patient.seen(true), before)?);
        }
    }
    for (patient, _, rates) in &held {
        println!("{}: {} with {}", patient.who(), became(rates), patient.help);
    }
    Ok(())
}

/// What became of connections that ended with such rates.
fn became(rates: &[f64]) -> String {
    if rates.is_empty() {
        return "none began and ended".to_owned();
    }
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    format!("{} began and ended, {} each", rates.len(), words::rate(mean))
}

/// With the help and without it.
fn prove(
    fixer: &mut Fixer,
    patient: &Patient,
    args: &Args,
    stop: &AtomicBool,
) -> Result<Option<Proof>, Failure> {
    mend::in_pairs(|is_on| {
        if !is_on {
            return stretch(patient, false, args, stop);
        }
        patient.apply(fixer)?;
        let rate = stretch(patient, true, args, stop);
        patient.undo(fixer)?;
        rate
    })
}

/// The mean rate of connections that begin from now on; `None` when somebody wants to end. Who has begun before is left
/// to end uncounted.
fn stretch(
    patient: &Patient,
    is_helped: bool,
    args: &Args,
    stop: &AtomicBool,
) -> Result<Option<f64>, Failure> {
    let seen = patient.seen(is_helped);
    let before = patient.living(seen)?;
    let (mut rates, end) = (Vec::new(), Instant::now() + Duration::from(args.span));
    while rates.len() < ENOUGH && Instant::now() < end {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        rates.extend(patient.ended(seen, &before)?);
    }
    if rates.is_empty() {
        return Err(Failure::Missed(format!(
            "no connection to {} began, sent something and ended within {}: start some, or give a longer --for",
            patient.peer(),
            args.span
        )));
    }
    Ok(Some(rates.iter().sum::<f64>() / rates.len() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rate_is_told_where_no_connection_ended() {
        assert_eq!(became(&[]), "none began and ended");
        assert_eq!(became(&[1e6, 3e6]), format!("2 began and ended, {} each", words::rate(2e6)));
    }
}
