//! `--fix --successors`: a remedy for connections that are still to come, by a route to their peer alone, and whether
//! it was one. The kernel tells of each that has ended since then, with what it carried and how long it had something
//! to send.

use super::{
    Args,
    fix::Fixer,
    mend,
    route::{Metric, PeerRoute, inside},
    show,
    watch::{Watch, Watched},
};
use crate::outcome::{Failure, Outcome, require};
use longfat_kernel::tcb::{Connection, Endings, NetNamespace, Query, Scope};
use longfat_why::{Verdict, proof::Proof, words};
use std::{
    collections::HashSet,
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
    metric: Metric,
    route: PeerRoute,
    endings: Endings,
}

/// More peers are not given routes at once.
const MOST: usize = 8;
/// So many connections that have ended are enough for a stretch.
const ENOUGH: usize = 6;
/// How soon a signal is answered.
const NAP: Duration = Duration::from_millis(50);

/// Gives new connections what they lack, and proves it or leaves it until Ctrl-C.
pub fn run(args: &Args, watch: &Watch, verdicts: &[(&Watched, Verdict)], stop: &AtomicBool) -> Outcome {
    let places = watch.places()?;
    let patients = patients(verdicts, &places)?;
    if patients.is_empty() {
        return Err(Failure::Missed(
            "no route can mend this for new connections: it helps against slow_start, restart_after_idle, random_loss, \
             after_loss and timeouts at the sender"
                .to_owned(),
        ));
    }
    require(Fixer::lacks())?;
    let mut fixer = Fixer::open()?;
    if args.prove {
        for patient in &patients {
            let proof = prove(&mut fixer, patient, args, stop)?;
            mend::tell(&patient.who(), &patient.metric, proof.as_ref(), None, args)?;
        }
        return Ok(());
    }
    hold(&mut fixer, &patients, stop)
}

/// One for each peer, by the first of its connections that a route would have helped.
fn patients<'a>(
    verdicts: &[(&Watched, Verdict)],
    places: &'a [NetNamespace],
) -> anyhow::Result<Vec<Patient<'a>>> {
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    for (one, verdict) in verdicts {
        let worth = verdict.causes.iter().filter(|share| share.share >= show::WORTH_MENDING);
        let metric = worth.filter_map(|share| Metric::against(share.cause)).next();
        let place = places.iter().find(|place| place.label == one.connection.netns);
        let (Some(metric), Some(place)) = (metric, place) else { continue };
        let Connection { local, remote, .. } = one.connection;
        if found.len() == MOST || !known.insert((place.inode, remote.ip())) {
            continue;
        }
        let endings = inside(place, || Endings::open(&place.label))??;
        let route = PeerRoute::to(remote.ip(), place)?;
        found.push(Patient { place, local, remote, metric, route, endings });
    }
    Ok(found)
}

impl Patient<'_> {
    fn peer(&self) -> IpAddr {
        self.remote.ip().to_canonical()
    }

    fn who(&self) -> String {
        format!("new connections to {}", self.peer())
    }

    /// To the same peer, of the same service at either end.
    fn is_successor(&self, other: &Connection) -> bool {
        let is_same_service =
            other.remote.port() == self.remote.port() || other.local.port() == self.local.port();
        other.remote.ip().to_canonical() == self.peer() && is_same_service
    }

    /// Those that have begun before now and live. The endings of all others up to now are read and forgotten: they may
    /// be of connections that began earlier.
    fn living(&self) -> anyhow::Result<HashSet<u64>> {
        let all = inside(self.place, || Query { scope: Scope::Own, ..Query::default() }.take())??;
        // The kernel tells of an end a moment later.
        thread::sleep(NAP);
        while !self.endings.next(Duration::ZERO)?.is_empty() {}
        Ok(all.iter().filter(|one| self.is_successor(one)).map(|one| one.cookie).collect())
    }

    /// Bits per second of those that have begun since then and ended by now, or in a moment: of the time in which they
    /// had something to send.
    fn ended(&self, before: &HashSet<u64>) -> anyhow::Result<Vec<f64>> {
        let ended = self.endings.next(NAP)?;
        let new = ended.iter().filter(|one| self.is_successor(one) && !before.contains(&one.cookie));
        let carried = new.filter_map(|one| one.info).filter(|info| info.acked_bytes > 0 && info.busy_us > 0);
        Ok(carried.map(|info| info.acked_bytes as f64 * 8e6 / info.busy_us as f64).collect())
    }
}

/// In force until Ctrl-C; what became of the connections then.
fn hold(fixer: &mut Fixer, patients: &[Patient], stop: &AtomicBool) -> Outcome {
    let mut held = Vec::new();
    for patient in patients {
        match fixer.apply_route(&patient.route, patient.place, &patient.metric) {
            Ok(()) => {
                eprintln!("{}: {}, until Ctrl-C", patient.who(), patient.metric);
                held.push((patient, patient.living()?, Vec::new()));
            }
            Err(error) => eprintln!("{}: {} could not be set: {error:#}", patient.who(), patient.metric),
        }
    }
    if held.is_empty() {
        return Err(Failure::Missed("nothing could be set".to_owned()));
    }
    while !stop.load(Ordering::Relaxed) {
        for (patient, before, rates) in &mut held {
            rates.extend(patient.ended(before)?);
        }
    }
    for (patient, _, rates) in &held {
        let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let count = rates.len();
        println!(
            "{}: {count} began and ended, {} each with {}",
            patient.who(),
            words::rate(mean),
            patient.metric
        );
    }
    Ok(())
}

/// With the route and without it.
fn prove(
    fixer: &mut Fixer,
    patient: &Patient,
    args: &Args,
    stop: &AtomicBool,
) -> Result<Option<Proof>, Failure> {
    mend::in_pairs(|is_on| {
        if !is_on {
            return stretch(patient, args, stop);
        }
        fixer.apply_route(&patient.route, patient.place, &patient.metric)?;
        let rate = stretch(patient, args, stop);
        fixer.undo_route(&patient.route, patient.place)?;
        rate
    })
}

/// The mean rate of connections that begin from now on; `None` when somebody wants to end. Who has begun before is left
/// to end uncounted.
fn stretch(patient: &Patient, args: &Args, stop: &AtomicBool) -> Result<Option<f64>, Failure> {
    let before = patient.living()?;
    let (mut rates, end) = (Vec::new(), Instant::now() + Duration::from(args.span));
    while rates.len() < ENOUGH && Instant::now() < end {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        rates.extend(patient.ended(&before)?);
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
