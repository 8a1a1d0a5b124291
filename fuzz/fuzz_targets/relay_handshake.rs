//! Any bytes as packets of handshakes, as copies of them, and as what is held of them: read or refused, and whatever is
//! decided, both legs mirror each other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_relay::adopt::{
    handshake::Between,
    log::copies,
    segment::Segment,
    table::{Handshakes, Verdict},
};
use std::time::{Duration, Instant};

fuzz_target!(|bytes: &[u8]| {
    for copy in copies(bytes) {
        let _ = Segment::parse(copy.packet);
    }
    let (mut table, mut now) = (Handshakes::default(), Instant::now());
    let mut rest = bytes;
    while let [head, length, after @ ..] = rest {
        let (packet, next) = after.split_at(after.len().min(usize::from(*length)));
        rest = next;
        now += Duration::from_millis(u64::from(head >> 2) * 200);
        let Some(segment) = Segment::parse(packet) else { continue };
        let bare = segment.bare_ack();
        assert_eq!(Segment::parse(&bare).map(|bare| bare.payload_bytes), Some(0));
        match head & 3 {
            0 => table.on_copy(&segment, Some(usize::from(*head)), now),
            1 => table.on_copy(&segment, None, now),
            _ => match table.on_held(&segment, now) {
                Verdict::Insert(between, _) => {
                    mirrored(&between);
                    table.taken((segment.from, segment.to), now);
                }
                Verdict::Taken | Verdict::Passed | Verdict::Pass(_) => {}
            },
        }
    }
});

fn mirrored(Between { to_client, to_server }: &Between) {
    assert_eq!((to_client.own, to_client.peer), (to_server.peer, to_server.own));
    assert_eq!((to_client.send_next, to_client.receive_next), (to_server.receive_next, to_server.send_next));
    assert_eq!((to_client.peer_scale, to_client.own_scale), (to_server.own_scale, to_server.peer_scale));
    assert!(to_client.peer_mss_bytes.min(to_server.peer_mss_bytes) >= 88);
}
