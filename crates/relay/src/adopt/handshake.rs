//! What the two ends of a connection agreed on in their handshake, as far as two sockets between them must know it.
//! Pure.

use super::segment::{Options, Segment};
use serde::Serialize;
use std::net::SocketAddr;

/// Why a connection stays end to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its SYN or SYN-ACK was not seen: it began before the relay, or more was going on than could be looked at.
    Unseen,
    /// The packets of its handshake do not fit together, or more had passed by.
    Unclear,
    /// It was reset at once.
    Reset,
    /// Data came with the SYN (TCP Fast Open).
    FastOpen,
    /// The ends agreed on ECN, which a socket that is put in between cannot be told.
    Ecn,
    /// The ends agreed on Multipath TCP.
    Mptcp,
    /// The server answered with an option that the relay does not know.
    Option,
    /// An end takes segments only that are too small, or a window is larger than the relay's buffer.
    Size,
    /// The relay, or the client's share of it, is full.
    Full,
    /// The relay is ending.
    Draining,
    /// This host has a connection of the same addresses and ports still.
    PairBusy,
    /// A socket could not be made.
    Socket,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 12] = [
        Reason::Unseen,
        Reason::Unclear,
        Reason::Reset,
        Reason::FastOpen,
        Reason::Ecn,
        Reason::Mptcp,
        Reason::Option,
        Reason::Size,
        Reason::Full,
        Reason::Draining,
        Reason::PairBusy,
        Reason::Socket,
    ];

    /// As status and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Unseen => "unseen",
            Reason::Unclear => "unclear",
            Reason::Reset => "reset",
            Reason::FastOpen => "fast_open",
            Reason::Ecn => "ecn",
            Reason::Mptcp => "mptcp",
            Reason::Option => "option",
            Reason::Size => "size",
            Reason::Full => "full",
            Reason::Draining => "draining",
            Reason::PairBusy => "pair_busy",
            Reason::Socket => "socket",
        }
    }
}

/// Least segment that a Linux socket can be told (TCP_MIN_MSS).
const LEAST_MSS_BYTES: u16 = 88;
/// What an end takes that does not say (RFC 9293 section 3.7.1).
const MSS_BYTES_V4: u16 = 536;
const MSS_BYTES_V6: u16 = 1220;

/// What one end said in its SYN or SYN-ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Its initial sequence number.
    pub first: u32,
    /// Its window, not scaled.
    pub window: u16,
    /// Its options.
    pub options: Options,
    /// It offers ECN, or agrees to it.
    pub ecn: bool,
    /// Bytes that came with it.
    pub payload_bytes: usize,
}

impl Offer {
    /// Of a SYN or SYN-ACK.
    pub fn of(segment: &Segment<'_>) -> Offer {
        Offer {
            first: segment.sequence,
            window: segment.window,
            options: segment.options,
            ecn: segment.has_ecn(),
            payload_bytes: segment.payload_bytes,
        }
    }

    fn mss_bytes(&self, is_ipv6: bool) -> u16 {
        self.options.mss_bytes.unwrap_or(if is_ipv6 { MSS_BYTES_V6 } else { MSS_BYTES_V4 })
    }
}

/// One of the two sockets: it speaks as one end to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegState {
    /// The end it speaks as.
    pub own: SocketAddr,
    /// The end it speaks to.
    pub peer: SocketAddr,
    /// The next sequence number that it sends.
    pub send_next: u32,
    /// The next one that it expects.
    pub receive_next: u32,
    /// Largest segment that the peer takes.
    pub peer_mss_bytes: u16,
    /// Shifts of windows: the peer's, and its own; both zero where they did not agree on any.
    pub peer_scale: u8,
    /// Its own.
    pub own_scale: u8,
    /// Both take selective acknowledgements.
    pub sack: bool,
    /// Last timestamp of the end it speaks as, where they agreed on timestamps.
    pub timestamp: Option<u32>,
    /// The peer's window in bytes, as it said last.
    pub peer_window_bytes: u32,
    /// The window that the peer was told, in bytes.
    pub told_window_bytes: u32,
}

/// A handshake that is done, and after which nothing has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// Towards the client, speaking as the server.
    pub to_client: LegState,
    /// Towards the server, speaking as the client.
    pub to_server: LegState,
}

impl Handshake {
    /// From the client's SYN, the server's answer, and the client's first packet after it.
    ///
    /// # Errors
    /// They do not fit together, or agree on what two sockets in between cannot be told.
    pub fn new(syn: &Offer, answer: &Offer, ack: &Segment<'_>) -> Result<Handshake, Reason> {
        check(syn, answer, ack)?;
        let (client, server) = (ack.from, ack.to);
        let scales = syn.options.scale.zip(answer.options.scale);
        let (client_scale, server_scale) = scales.unwrap_or((0, 0));
        let sack = syn.options.sack && answer.options.sack;
        let stamps = agreed_timestamps(syn, answer, ack)?;
        let (client_next, server_next) = (syn.first.wrapping_add(1), answer.first.wrapping_add(1));
        let client_window = u32::from(ack.window) << client_scale;
        let server_window = u32::from(answer.window);
        let mss = |offer: &Offer| offer.mss_bytes(client.is_ipv6());
        if mss(syn).min(mss(answer)) < LEAST_MSS_BYTES {
            return Err(Reason::Size);
        }
        let to_client = LegState {
            own: server,
            peer: client,
            send_next: server_next,
            receive_next: client_next,
            peer_mss_bytes: mss(syn),
            peer_scale: client_scale,
            own_scale: server_scale,
            sack,
            timestamp: stamps.map(|(_, server)| server),
            peer_window_bytes: client_window,
            told_window_bytes: server_window,
        };
        let to_server = LegState {
            own: client,
            peer: server,
            send_next: client_next,
            receive_next: server_next,
            peer_mss_bytes: mss(answer),
            peer_scale: server_scale,
            own_scale: client_scale,
            sack,
            timestamp: stamps.map(|(client, _)| client),
            peer_window_bytes: server_window,
            told_window_bytes: client_window,
        };
        Ok(Handshake { to_client, to_server })
    }

    /// What the server would have acknowledged if it had been asked: its socket learns the server's timestamp by it.
    pub fn server_ack(&self) -> Vec<u8> {
        let LegState { own, peer, send_next, receive_next, peer_window_bytes, peer_scale, .. } =
            self.to_server;
        let window = u16::try_from(peer_window_bytes >> peer_scale).unwrap_or(u16::MAX);
        let stamps = self.to_client.timestamp.zip(self.to_server.timestamp);
        super::segment::ack((peer, own), receive_next, send_next, window, stamps)
    }
}

fn check(syn: &Offer, answer: &Offer, ack: &Segment<'_>) -> Result<(), Reason> {
    let fits = ack.sequence == syn.first.wrapping_add(1) && ack.acknowledged == answer.first.wrapping_add(1);
    let problems = [
        (ack.flags.is_reset(), Reason::Reset),
        (syn.payload_bytes > 0 || answer.payload_bytes > 0, Reason::FastOpen),
        (!ack.flags.is_ack() || !fits, Reason::Unclear),
        (answer.ecn, Reason::Ecn),
        (answer.options.mptcp || ack.options.mptcp, Reason::Mptcp),
        (answer.options.unknown || ack.options.unknown, Reason::Option),
        // An answer has nothing that was not offered (RFC 7323 sections 2.2 and 3.2, RFC 2018 section 2).
        (answer.options.scale.is_some() && syn.options.scale.is_none(), Reason::Unclear),
        (answer.options.timestamp.is_some() && syn.options.timestamp.is_none(), Reason::Unclear),
    ];
    problems.into_iter().find(|(is_so, _)| *is_so).map_or(Ok(()), |(_, reason)| Err(reason))
}

/// The client's last timestamp and the server's, where they agreed on timestamps: then every packet has one.
fn agreed_timestamps(syn: &Offer, answer: &Offer, ack: &Segment<'_>) -> Result<Option<(u32, u32)>, Reason> {
    let agreed = syn.options.timestamp.and(answer.options.timestamp);
    match (agreed, ack.options.timestamp) {
        (Some(server), Some(client)) => Ok(Some((client, server))),
        (None, None) => Ok(None),
        _ => Err(Reason::Unclear),
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment::tests::{ACK, ECE, RST, SYN, pairs, segment};
    use super::*;
    use proptest::prelude::*;

    const SYN_OPTIONS: &[u8] = &[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7];
    const ANSWER_OPTIONS: &[u8] = &[2, 4, 5, 100, 4, 2, 8, 10, 0, 0, 0, 50, 0, 0, 0, 9, 1, 3, 3, 9];
    const ACK_OPTIONS: &[u8] = &[1, 1, 8, 10, 0, 0, 0, 12, 0, 0, 0, 50];

    struct Packets {
        syn: Vec<u8>,
        answer: Vec<u8>,
        ack: Vec<u8>,
    }

    impl Packets {
        fn of(pair: (SocketAddr, SocketAddr), options: [&[u8]; 3]) -> Packets {
            Packets {
                syn: segment(pair, SYN, (u32::MAX, 0), 64240, options[0], b""),
                answer: segment((pair.1, pair.0), SYN | ACK, (99, 0), 65160, options[1], b""),
                ack: segment(pair, ACK, (0, 100), 502, options[2], b""),
            }
        }

        fn decide(&self) -> Result<Handshake, Reason> {
            let offer = |packet| Offer::of(&Segment::parse(packet).unwrap());
            Handshake::new(&offer(&self.syn), &offer(&self.answer), &Segment::parse(&self.ack).unwrap())
        }
    }

    #[test]
    fn both_legs_get_the_ends_own_numbers() {
        for pair in pairs() {
            let found = Packets::of(pair, [SYN_OPTIONS, ANSWER_OPTIONS, ACK_OPTIONS]).decide().unwrap();
            let to_client = LegState {
                own: pair.1,
                peer: pair.0,
                send_next: 100,
                receive_next: 0,
                peer_mss_bytes: 1460,
                peer_scale: 7,
                own_scale: 9,
                sack: true,
                timestamp: Some(50),
                peer_window_bytes: 502 << 7,
                told_window_bytes: 65160,
            };
            assert_eq!(found.to_client, to_client);
            let LegState { own, peer, send_next, receive_next, timestamp, .. } = found.to_server;
            assert_eq!((own, peer, send_next, receive_next), (pair.0, pair.1, 0, 100));
            assert_eq!(timestamp, Some(12));
            assert_eq!((found.to_server.peer_mss_bytes, found.to_server.peer_window_bytes), (1380, 65160));
            let acked = found.server_ack();
            let said = Segment::parse(&acked).unwrap();
            assert_eq!((said.from, said.sequence, said.acknowledged), (pair.1, 100, 0));
            assert_eq!((said.window, said.options.timestamp), (65160 >> 9, Some(50)));
        }
    }

    #[test]
    fn what_only_one_end_offers_is_not_agreed_on() {
        let pair = pairs()[0];
        let found = Packets::of(pair, [SYN_OPTIONS, &[2, 4, 5, 100], &[]]).decide().unwrap();
        let leg = found.to_client;
        assert_eq!((leg.peer_scale, leg.own_scale, leg.sack, leg.timestamp), (0, 0, false, None));
        assert_eq!(leg.peer_window_bytes, 502);
        let bare = Packets::of(pair, [&[], &[], &[]]).decide().unwrap();
        assert_eq!(bare.to_server.peer_mss_bytes, MSS_BYTES_V4);
        let bare = Packets::of(pairs()[1], [&[], &[], &[]]).decide().unwrap();
        assert_eq!(bare.to_server.peer_mss_bytes, MSS_BYTES_V6);
    }

    #[test]
    fn what_cannot_be_known_or_told_stays_end_to_end() {
        let pair = pairs()[0];
        let back = (pair.1, pair.0);
        let good = || Packets::of(pair, [SYN_OPTIONS, ANSWER_OPTIONS, ACK_OPTIONS]);
        let answer = |flags, options: &[u8], data: &[u8]| segment(back, flags, (99, 0), 9, options, data);
        let ack = |flags, numbers, options| segment(pair, flags, numbers, 9, options, b"");
        let cases: [(Packets, Reason); 12] = [
            (Packets { ack: ack(RST | ACK, (0, 100), &[]), ..good() }, Reason::Reset),
            (
                Packets { syn: segment(pair, SYN, (u32::MAX, 0), 9, SYN_OPTIONS, b"x"), ..good() },
                Reason::FastOpen,
            ),
            (Packets { answer: answer(SYN | ACK, ANSWER_OPTIONS, b"x"), ..good() }, Reason::FastOpen),
            (Packets { ack: ack(ACK, (1, 100), ACK_OPTIONS), ..good() }, Reason::Unclear),
            (Packets { ack: ack(ACK, (0, 101), ACK_OPTIONS), ..good() }, Reason::Unclear),
            (Packets { ack: ack(ACK, (0, 100), &[]), ..good() }, Reason::Unclear),
            (Packets { answer: answer(SYN | ACK | ECE, ANSWER_OPTIONS, b""), ..good() }, Reason::Ecn),
            (Packets { answer: answer(SYN | ACK, &[30, 4, 0, 0], b""), ..good() }, Reason::Mptcp),
            (Packets { answer: answer(SYN | ACK, &[254, 4, 0, 0], b""), ..good() }, Reason::Option),
            (Packets { syn: segment(pair, SYN, (u32::MAX, 0), 9, &[], b""), ..good() }, Reason::Unclear),
            (
                Packets {
                    syn: segment(pair, SYN, (u32::MAX, 0), 9, &[2, 4, 0, 87], b""),
                    ..Packets::of(pair, [&[], &[], &[]])
                },
                Reason::Size,
            ),
            (Packets { ack: ack(SYN | ACK, (0, 100), ACK_OPTIONS), ..good() }, Reason::Unclear),
        ];
        for (index, (packets, reason)) in cases.into_iter().enumerate() {
            assert_eq!(packets.decide(), Err(reason), "case {index}");
        }
    }

    #[test]
    fn every_reason_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
    }

    proptest! {
        #[test]
        fn whatever_is_decided_the_legs_mirror_each_other(
            options in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 3),
            flags in any::<[u8; 2]>(), window in any::<[u16; 3]>(), first in any::<[u32; 2]>(),
        ) {
            let pair = pairs()[0];
            let back = (pair.1, pair.0);
            let next = first.map(|first| first.wrapping_add(1));
            let packets = Packets {
                syn: segment(pair, SYN | flags[0] & 0xc0, (first[0], 0), window[0], &options[0], b""),
                answer: segment(back, SYN | ACK | flags[1] & 0xc0, (first[1], next[0]), window[1], &options[1], b""),
                ack: segment(pair, ACK, (next[0], next[1]), window[2], &options[2], b""),
            };
            if let Ok(Handshake { to_client, to_server }) = packets.decide() {
                prop_assert_eq!(to_client.send_next, to_server.receive_next);
                prop_assert_eq!(to_client.receive_next, to_server.send_next);
                prop_assert_eq!(to_client.peer_scale, to_server.own_scale);
                prop_assert_eq!(to_client.own_scale, to_server.peer_scale);
                prop_assert_eq!(to_client.sack, to_server.sack);
                prop_assert_eq!(to_client.timestamp.is_some(), to_server.timestamp.is_some());
            }
        }
    }
}
