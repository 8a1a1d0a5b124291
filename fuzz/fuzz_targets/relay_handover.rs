//! Any bytes as what one relay hands to another: read, and then written again as they were, or refused with words; and
//! any counts of two sockets as the state of a connection: found, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_relay::{
    connection::{Connection, Direction},
    handover::{
        derive::{Fault, LegFacts, derive},
        record::{Failure, Hello, Message},
    },
};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::parse(bytes) {
        assert_eq!(message.bytes(), bytes);
        if let Err(error) = message.holding(bytes.len() % 7) {
            assert!(!error.to_string().is_empty());
        }
        let _ = message.read::<Hello>();
    }
    state(bytes);
});

/// Small counts, which nearly fit together, tell more than large ones.
fn state(bytes: &[u8]) {
    let Some((head, _)) = bytes.split_at_checked(14) else { return };
    let leg = |at: usize| LegFacts {
        state: head[at] % 12,
        received_bytes: u64::from(head[at + 1] % 8),
        unread_bytes: u64::from(head[at + 2] % 8),
        sent_bytes: u64::from(head[at + 3] % 8),
        has_begun: head[at + 4] & 1 != 0,
        has_stood: head[at + 4] & 2 != 0,
        error: [None, Some(Fault::Reset), Some(Fault::ResetAfterFin), Some(Fault::Other)]
            [usize::from(head[at + 4] >> 2 & 3)],
    };
    let held_bytes = [u64::from(head[10] % 8), u64::from(head[11] % 8)];
    let failure = Failure { is_client: head[12] & 1 != 0, after_fin: head[12] & 2 != 0 };
    let legs = [leg(0), leg(5)];
    let Ok(found) = derive([&legs[0], &legs[1]], held_bytes, Some(failure).filter(|_| head[12] & 4 != 0))
    else {
        return;
    };
    let mut logic = Connection::new();
    found.events.iter().for_each(|event| logic.on(*event));
    for direction in Direction::BOTH {
        let index = direction.index();
        assert_eq!(logic.held_bytes(direction) as u64, held_bytes[index]);
        assert!(found.sent_before[index] <= legs[direction.from() as usize].unread_bytes);
        assert!(found.sent_before[index] == 0 || held_bytes[index] == 0);
    }
}
