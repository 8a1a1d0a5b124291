//! A program of one's own, watched to its end.

use super::{
    Args, page, recorded, show,
    watch::{Chosen, Watch},
};
use crate::outcome::{Failure, Outcome};
use anyhow::Context as _;
use longfat_host::lease;
use longfat_kernel::tcb::Scope;
use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, ExitStatus},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Time between two looks: short connections are seen, too.
const EVERY: Duration = Duration::from_millis(50);

const NO_CONNECTION: &str = "the program had no TCP connection that lasted for two looks, so there is nothing to \
    judge; --every 10ms sees shorter ones";

/// Runs it, and looks at what it and its children have open; ends with its exit code.
pub fn run(args: &Args, stop: &AtomicBool) -> Outcome {
    let Some((name, words)) = args.program.split_first() else { return Ok(()) };
    let shown = name.to_string_lossy();
    let started = Command::new(name).args(words).spawn();
    let mut child = started.with_context(|| format!("start '{shown}'; is it on PATH, and a program?"))?;
    let chosen = Chosen { scope: Scope::Own, filter: args.filter()?, pid: None };
    let mut watch = Watch::new(chosen, args);
    let status = attend(&mut child, &mut watch, args, stop)?;
    watch.ask_surroundings();
    recorded::keep(&watch, args)?;
    let verdicts = watch.verdicts(args);
    show::answer(&verdicts, args)?;
    page::of_watch(&verdicts, args, false)?;
    match code(status) {
        0 if verdicts.is_empty() => Err(Failure::Missed(NO_CONNECTION.to_owned())),
        0 => Ok(()),
        code => Err(Failure::Child(code)),
    }
}

fn code(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Looks until it has ended. A signal to end is passed on: the program's own way to end is waited for.
fn attend(
    child: &mut Child,
    watch: &mut Watch,
    args: &Args,
    stop: &AtomicBool,
) -> anyhow::Result<ExitStatus> {
    let every = args.every.map_or(EVERY, Duration::from);
    let mut is_asked = false;
    loop {
        let start = Instant::now();
        watch.look_at(|| family(child.id() as i32))?;
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) && !is_asked {
            is_asked = true;
            terminate(child);
        }
        thread::sleep(every.saturating_sub(start.elapsed()));
    }
}

/// Asks it to end, as whoever ended this program did; it has not been waited for, so its pid is its own.
fn terminate(child: &Child) {
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    // One that ended meanwhile is what we want.
    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
}

/// A process and all that descend from it.
fn family(of: i32) -> HashSet<i32> {
    let parents = parents();
    let mut found = HashSet::from([of]);
    let mut new = vec![of];
    while let Some(parent) = new.pop() {
        for child in parents.get(&parent).into_iter().flatten() {
            if found.insert(*child) {
                new.push(*child);
            }
        }
    }
    found
}

/// Children of each process.
fn parents() -> HashMap<i32, Vec<i32>> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        if let Some(parent) = lease::parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    children
}
