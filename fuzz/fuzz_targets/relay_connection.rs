//! Sequences of what the world does, against the logic of a relayed connection: bytes in order, FIN last, no spinning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_relay::connection::{Action, Connection, Direction, Ending, Event, Side};

#[allow(dead_code)]
#[path = "../../crates/relay/src/logic/connection/world.rs"]
mod world;
use world::{Step, World};

/// Two bytes make a step.
fn step(code: u8, value: u8) -> Step {
    let side = if code & 1 == 0 { Side::Client } else { Side::Server };
    match code >> 1 & 7 {
        0 | 1 => Step::Arrive(side, vec![value; usize::from(value) % 40 + 1]),
        2 | 3 => Step::Room(side, usize::from(value) % 60 + 1),
        4 => Step::Fin(side),
        5 if value < 64 => Step::Reset(side),
        5 if value > 250 => Step::Connect,
        5 if value < 160 => Step::Urge(side, value),
        6 => Step::Spurious(side),
        _ => Step::Turn,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((limit, steps)) = bytes.split_first() else { return };
    let read_limit = usize::from(*limit) % 50 + 1;
    let mut world = if *limit < 128 { World::new(read_limit) } else { World::connecting(read_limit) };
    for pair in steps.chunks_exact(2) {
        world.apply(step(pair[0], pair[1]));
        world.check_prefix();
    }
    // Whatever came before: when both finish and read, the connection comes to an end.
    world.apply(Step::Connect);
    for side in [Side::Client, Side::Server] {
        world.apply(Step::Fin(side));
        world.apply(Step::Room(side, 1 << 20));
    }
    world.turn();
    assert!(matches!(world.logic.ending(), Some(Ending::Close | Ending::Settle(_) | Ending::Reset)));
});
