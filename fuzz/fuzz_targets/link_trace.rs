//! Any bytes as a recorded link, of every kind: read or refused. What is read is followed by a link: packets get
//! through in order, or not at all.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_link::{
    LinkSpec,
    model::{Direction, Ecn, Packet},
    trace::{Opportunities, Trace, TraceSpec, import, read_parquet, table},
};
use longfat_schema::units::Nanos;
use std::sync::Arc;

fn read(kind: u8, bytes: &[u8]) -> Option<Trace> {
    match kind % 4 {
        0 => Opportunities::read(bytes).ok().map(Trace::Opportunities),
        1 => table::read_csv(bytes).ok().map(Trace::Rows),
        2 => import::read(bytes, Nanos(1_000_000)).ok().map(|imported| Trace::Rows(imported.rows)),
        _ => read_parquet(bytes.to_vec()).ok().map(Trace::Rows),
    }
}

/// The library that decodes pages may panic; its reader here catches that.
fn end_at_panics_of_ours() {
    let ended_at_all = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic
            .location()
            .is_some_and(|at| ["/parquet-", "/arrow-"].iter().any(|name| at.file().contains(name)))
        {
            ended_at_all(panic);
        }
    }));
}

fuzz_target!(init: end_at_panics_of_ours(), |input: (u8, Vec<u8>)| {
    let Some(trace) = read(input.0, &input.1) else { return };
    let trace = TraceSpec { once: input.0 > 127, trace: Some(Arc::new(trace)), ..TraceSpec::of("fuzz") };
    let Ok(plan) = (LinkSpec { trace: Some(trace), ..LinkSpec::default() }).resolve("fuzz", 1) else { return };
    let mut path: Direction<u64> = Direction::new(&plan.forward, plan.mtu_bytes, 1, 0);
    path.start_schedule(0);
    let mut last = None;
    for number in 0..50 {
        let at_ns = number * 700_000;
        let _ = path.enqueue(at_ns, Packet { length_bytes: 1500, ecn: Ecn::NotEct, payload: number });
        while let Some(gone) = path.dequeue(at_ns) {
            assert!(gone.due_ns <= at_ns && last < Some(gone.packet.payload), "{gone:?} after {last:?}");
            last = Some(gone.packet.payload);
        }
    }
});
