//! `--fix` and `--prove`: the remedy on living connections, and whether it was one.

use super::{
    Args,
    fix::{Fixer, Setting, Window, mend},
    show,
    watch::{Watch, Watched},
};
use crate::outcome::{Failure, Outcome, require};
use longfat_kernel::tcb::{Connection, Finder, NetNamespace};
use longfat_schema::random::SplitMix64;
use longfat_why::{
    Price, Verdict, price,
    proof::{Pair, Proof},
    sentence, words,
};
use serde_json::json;
use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// A connection that can be mended here.
struct Patient<'a> {
    one: &'a Watched,
    verdict: &'a Verdict,
    place: &'a NetNamespace,
    finder: Finder,
    setting: Setting,
    /// The rate that is foretold with it.
    predicted: Option<Price>,
}

/// More are not set at once: a remedy is for a connection that somebody looks at.
const MOST: usize = 32;
/// Pairs of stretches of a proof.
const PAIRS: usize = 6;
/// How soon a signal is answered.
const NAP: Duration = Duration::from_millis(50);

/// Sets what can be set here, and proves it or leaves it until Ctrl-C.
pub fn run(args: &Args, watch: &Watch, verdicts: &[(&Watched, Verdict)], stop: &AtomicBool) -> Outcome {
    let places = watch.places()?;
    let patients = patients(verdicts, &places, args)?;
    if patients.is_empty() {
        return Err(Failure::Missed(
            "nothing of this can be mended on this host's living connections".to_owned(),
        ));
    }
    require(Fixer::lacks())?;
    let mut fixer = Fixer::open()?;
    if args.prove {
        prove_all(&mut fixer, &patients, args, stop)
    } else {
        hold(&mut fixer, &patients, args, stop)
    }
}

fn patients<'a>(
    verdicts: &'a [(&'a Watched, Verdict)],
    places: &'a [NetNamespace],
    args: &Args,
) -> anyhow::Result<Vec<Patient<'a>>> {
    let mut found = Vec::new();
    for (one, verdict) in verdicts.iter().take(MOST) {
        let fault = verdict.to_mend(show::WORTH_MENDING).into_iter().find(|share| share.cause.is_fault());
        let mended = fault.and_then(|share| Some((share, mend(share.cause, verdict, args.rate)?)));
        let place = places.iter().find(|place| place.label == one.connection.netns);
        let (Some((share, setting)), Some(place)) = (mended, place) else { continue };
        let Some(finder) = place.run(Finder::open) else { continue };
        let predicted = price::of_remedy(share, &verdict.figures);
        found.push(Patient { one, verdict, place, finder: finder?, setting, predicted });
    }
    Ok(found)
}

/// In force until Ctrl-C, or until nothing of them is left; what makes a connection slower is taken back at once.
fn hold(fixer: &mut Fixer, patients: &[Patient], args: &Args, stop: &AtomicBool) -> Outcome {
    let mut held = Vec::new();
    for patient in patients {
        let who = show::who(&patient.one.connection);
        let found = window_found(fixer, patient).unwrap_or_default();
        match fixer.apply(&patient.one.connection, patient.place, patient.setting) {
            Ok(before) => {
                eprintln!("{who}: {} instead of {before}, until Ctrl-C", patient.setting);
                held.push((patient, found));
            }
            Err(error) => eprintln!("{who}: {} could not be set: {error:#}", patient.setting),
        }
    }
    if held.is_empty() {
        return Err(Failure::Missed("nothing could be set".to_owned()));
    }
    wash_out(held[0].0, args, stop);
    let mut kept = Vec::new();
    for (patient, found) in held {
        let is_slower = match measure(patient, args.span.into(), stop)? {
            Some(rate_bps) => tell_rate(patient, rate_bps),
            None => false,
        };
        if is_slower {
            take_back(fixer, patient, found)?;
        } else {
            kept.push(patient);
        }
    }
    if kept.is_empty() {
        return Err(Failure::Missed("no remedy helped; nothing is set any more".to_owned()));
    }
    while !stop.load(Ordering::Relaxed)
        && kept.iter().any(|patient| acked(patient).is_ok_and(|a| a.is_some()))
    {
        thread::sleep(NAP * 4);
    }
    Ok(())
}

/// Says what a remedy made of a connection; whether it is slower with it.
fn tell_rate(patient: &Patient, rate_bps: f64) -> bool {
    let before_bps = patient.verdict.figures.rate_bps;
    let is_slower = is_slower(before_bps, rate_bps);
    let end = match is_slower {
        true => "; slower with it: taken back".to_owned(),
        false => foretold(patient.predicted.as_ref()),
    };
    let who = show::who(&patient.one.connection);
    println!("{who}: {} before, {} with it{end}", words::rate(before_bps), words::rate(rate_bps));
    is_slower
}

/// A connection that carries less than this part of what it carried before is slower: two stretches without a change
/// differ by less.
const SLOWER: f64 = 0.9;

fn is_slower(before_bps: f64, with_bps: f64) -> bool {
    with_bps < SLOWER * before_bps
}

fn foretold(predicted: Option<&Price>) -> String {
    predicted.map_or(String::new(), |price| format!(" (foretold: {})", sentence::interval(price)))
}

fn prove_all(fixer: &mut Fixer, patients: &[Patient], args: &Args, stop: &AtomicBool) -> Outcome {
    for patient in patients {
        let proof = prove(fixer, patient, args, stop)?;
        let who = show::who(&patient.one.connection);
        tell(&who, &patient.setting, proof.as_ref(), patient.predicted.as_ref(), args)?;
    }
    Ok(())
}

/// Each stretch begins after what was set before has washed out.
fn prove(
    fixer: &mut Fixer,
    patient: &Patient,
    args: &Args,
    stop: &AtomicBool,
) -> anyhow::Result<Option<Proof>> {
    let found = window_found(fixer, patient)?;
    in_pairs(|is_on| stretch(fixer, patient, (is_on, found), args, stop))
}

/// The window to go back to, where a remedy leaves what it made of it.
fn window_found(fixer: &Fixer, patient: &Patient) -> anyhow::Result<Option<Window>> {
    let leaves = patient.setting.leaves_window();
    leaves.then(|| fixer.window(&patient.one.connection, patient.place)).transpose()
}

/// Takes a remedy back, and what it made of the window.
fn take_back(fixer: &mut Fixer, patient: &Patient, found: Option<Window>) -> anyhow::Result<()> {
    fixer.undo(&patient.one.connection, patient.place)?;
    found.map_or(Ok(()), |window| fixer.set_window(&patient.one.connection, patient.place, window))
}

/// On and off in random order, a pair at a time: a stretch gives its rate, with the remedy or without, or `None` when
/// there will be no more.
pub fn in_pairs<E>(mut stretch: impl FnMut(bool) -> Result<Option<f64>, E>) -> Result<Option<Proof>, E> {
    let mut random = SplitMix64::new(u64::from(std::process::id()) ^ longfat_host::monotonic_us() as u64);
    let mut pairs = Vec::new();
    while pairs.len() < PAIRS {
        let is_first = random.next_u64() & 1 == 0;
        let mut rates = [0.0; 2];
        for is_on in [is_first, !is_first] {
            let Some(rate_bps) = stretch(is_on)? else { return Ok(Proof::of(pairs)) };
            rates[usize::from(is_on)] = rate_bps;
        }
        let [without_bps, with_bps] = rates;
        pairs.push(Pair { with_bps, without_bps });
        let (count, with, without) = (pairs.len(), words::rate(with_bps), words::rate(without_bps));
        eprintln!("pair {count} of {PAIRS}: {with} with, {without} without");
    }
    Ok(Proof::of(pairs))
}

/// The rate of one stretch, with the remedy or without, and the window to go back to behind it; `None` when the
/// connection has gone or somebody wants to end.
fn stretch(
    fixer: &mut Fixer,
    patient: &Patient,
    (is_on, found): (bool, Option<Window>),
    args: &Args,
    stop: &AtomicBool,
) -> anyhow::Result<Option<f64>> {
    if is_on {
        fixer.apply(&patient.one.connection, patient.place, patient.setting)?;
    }
    wash_out(patient, args, stop);
    let rate = measure(patient, Duration::from(args.span) / 4, stop)?;
    if is_on {
        take_back(fixer, patient, found.filter(|_| rate.is_some()))?;
    }
    Ok(rate)
}

/// Round trips after which a window has become what it becomes.
const WASH_OUT_ROUND_TRIPS: u32 = 20;

/// Waits until what was before does not matter any more.
fn wash_out(patient: &Patient, args: &Args, stop: &AtomicBool) {
    let round_trip = Duration::from_micros(patient.verdict.figures.rtt_us.into());
    wait((round_trip * WASH_OUT_ROUND_TRIPS).max(Duration::from(args.span) / 8), stop);
}

fn wait(span: Duration, stop: &AtomicBool) {
    let end = Instant::now() + span;
    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
        thread::sleep(NAP.min(end.saturating_duration_since(Instant::now())));
    }
}

/// Bytes acknowledged so far; `None` when it has gone.
fn acked(patient: &Patient) -> anyhow::Result<Option<u64>> {
    let found: Option<Connection> = patient.finder.find(&patient.one.connection)?;
    Ok(found.and_then(|found| found.info).map(|info| info.acked_bytes))
}

fn measure(patient: &Patient, span: Duration, stop: &AtomicBool) -> anyhow::Result<Option<f64>> {
    let (start, before) = (Instant::now(), acked(patient)?);
    wait(span, stop);
    let (after, elapsed) = (acked(patient)?, start.elapsed().as_secs_f64());
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    Ok(before.zip(after).map(|(before, after)| after.saturating_sub(before) as f64 * 8.0 / elapsed))
}

/// A proof in words, or as JSON.
pub fn tell(
    who: &str,
    setting: &impl fmt::Display,
    proof: Option<&Proof>,
    predicted: Option<&Price>,
    args: &Args,
) -> anyhow::Result<()> {
    let Some(proof) = proof else {
        println!("{who}: {setting}: not enough pairs to tell");
        return Ok(());
    };
    if args.json {
        let value =
            json!({ "who": who, "setting": setting.to_string(), "foretold": predicted, "proof": proof });
        println!("{value}");
        return Ok(());
    }
    let (low, high) = proof.interval_bps;
    let verdict = match (proof.is_effect, proof.gain_bps > 0.0) {
        (false, _) => "no effect to be told",
        (true, true) => "it helps",
        (true, false) => "it harms",
    };
    let text = format!(
        "{who}: {setting}: {} with, {} without; difference {} (95 %: {} to {}, {} pairs): {verdict}.{}",
        words::rate(proof.with_bps),
        words::rate(proof.without_bps),
        words::rate(proof.gain_bps),
        words::rate(low),
        words::rate(high),
        proof.pairs.len(),
        foretold(predicted)
    );
    print!("{}", show::wrapped(&text, "  "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_is_taken_back_only_where_the_connection_is_clearly_slower_with_it() {
        assert!(is_slower(26.9e6, 12.5e6));
        assert!(!is_slower(26.9e6, 26e6));
        assert!(!is_slower(0.0, 0.0), "nothing was carried before");
    }
}
