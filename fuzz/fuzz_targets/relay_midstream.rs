//! Any bytes as packets of a connection in mid-stream: followed or refused, and whatever two sockets are told, they
//! mirror each other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_relay::adopt::{
    handshake::{Agreement, Between},
    midstream::{InPath, Pool, Verdict},
    segment::{Segment, count_hop},
};
use std::{sync::Arc, time::Instant};

const MOST_BYTES: usize = 1 << 10;

fuzz_target!(|bytes: &[u8]| {
    let [scales, flags, client_next, server_next, rest @ ..] = bytes else { return };
    let agreement = Agreement {
        mss_bytes: [1460, 536],
        scales: [scales & 14, scales >> 4 & 14],
        sack: flags & 1 != 0,
        timestamps: flags & 2 != 0,
    };
    let mut rest = rest;
    let (pool, mut path) = (Arc::new(Pool::new(MOST_BYTES)), None);
    while let [length, after @ ..] = rest {
        let (packet, next) = after.split_at(after.len().min(usize::from(*length)));
        rest = next;
        let mut packet = packet.to_vec();
        count_hop(&mut packet);
        let Some(segment) = Segment::parse(&packet) else { continue };
        let begin = [*client_next, *server_next].map(|next| u32::MAX - 128 + u32::from(next));
        let path = path.get_or_insert_with(|| {
            InPath::new((segment.from, segment.to), agreement, begin, Instant::now(), &pool)
        });
        // Checksums are hard to guess: what they keep out is followed, too.
        match path.follow(&segment) {
            Verdict::Wait => assert!(pool.used() <= MOST_BYTES),
            Verdict::Pass(_) => {}
            Verdict::Adopt(between) => mirrored(&between),
        }
    }
});

fn mirrored(Between { to_client, to_server }: &Between) {
    for (one, other) in [(to_client, to_server), (to_server, to_client)] {
        assert_eq!((one.own, one.peer), (other.peer, other.own));
        let sent = one.send_next.wrapping_add(one.unacknowledged.len() as u32);
        assert_eq!(sent, other.receive_next);
        assert_eq!(one.send_next, other.window_told_at);
        assert_eq!(one.peer_window_bytes, other.told_window_bytes);
        assert_eq!((one.peer_scale, one.sack), (other.own_scale, other.sack));
        assert!(one.peer_window_bytes > 0);
    }
}
