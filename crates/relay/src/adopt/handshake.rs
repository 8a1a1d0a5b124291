//! What the two ends of a connection agreed on in their handshake, as far as two sockets between them must know it.
//! Pure.

use super::segment::{self, Options, Segment, at_last_hop};
use crate::logic::packet::{TCP, ip_packet};
use serde::Serialize;
use std::net::SocketAddr;

/// Why a connection stays end to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The SYN or SYN-ACK was not seen: the connection began before the relay, or at a moment of too many.
    Unseen,
    /// The packets of its handshake do not fit together, or more had passed by.
    Unclear,
    /// The connection was reset before sockets were between its ends.
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
    /// In mid-stream: an end had finished.
    Closing,
    /// In mid-stream: urgent data were under way.
    Urgent,
    /// In mid-stream: for too long there was no moment at which all that was under way was known.
    Restless,
    /// The rule acknowledges end to end, and the ends did not agree on selective acknowledgements.
    NoSack,
    /// The rule acknowledges end to end, and an end is not heard under the addresses that its sockets here would have.
    Unheard,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 17] = [
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
        Reason::Closing,
        Reason::Urgent,
        Reason::Restless,
        Reason::NoSack,
        Reason::Unheard,
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
            Reason::Closing => "closing",
            Reason::Urgent => "urgent",
            Reason::Restless => "restless",
            Reason::NoSack => "no_sack",
            Reason::Unheard => "unheard",
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
    /// Initial sequence number.
    pub first: u32,
    /// Window of the SYN, not scaled.
    pub window: u16,
    /// TCP options of the SYN.
    pub options: Options,
    /// Whether the end offers ECN, or agrees to it.
    pub ecn: bool,
    /// Bytes that came with it.
    pub payload_bytes: usize,
}

impl Offer {
    /// Reads the TCP header of a SYN or SYN-ACK, and the bytes that came with it.
    pub fn of_header(ends: (SocketAddr, SocketAddr), header: &[u8], payload_bytes: usize) -> Option<Offer> {
        let packet = ip_packet(ends.0.ip(), ends.1.ip(), TCP, header);
        Some(Offer { payload_bytes, ..Offer::of(&Segment::parse(&packet)?) })
    }

    /// The offer of a SYN or SYN-ACK.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegState {
    /// The end it speaks as.
    pub own: SocketAddr,
    /// The end it speaks to.
    pub peer: SocketAddr,
    /// The first sequence number that its peer has not acknowledged.
    pub send_next: u32,
    /// What was sent from there on already.
    pub unacknowledged: Vec<u8>,
    /// The next sequence number that it expects.
    pub receive_next: u32,
    /// Largest segment that the peer takes.
    pub peer_mss_bytes: u16,
    /// Shifts of windows: the peer's, and its own; both zero where they did not agree on any.
    pub peer_scale: u8,
    /// Window shift of the leg itself.
    pub own_scale: u8,
    /// Both take selective acknowledgements.
    pub sack: bool,
    /// Last timestamp of the end it speaks as, where they agreed on timestamps.
    pub timestamp: Option<u32>,
    /// The peer's window in bytes from `send_next` on, as it said last.
    pub peer_window_bytes: u32,
    /// The window that the peer was told, in bytes from `window_told_at` on.
    pub told_window_bytes: u32,
    /// The last sequence number that was acknowledged to the peer.
    pub window_told_at: u32,
}

/// What two sockets between the ends begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Between {
    /// Towards the client, speaking as the server.
    pub to_client: LegState,
    /// Towards the server, speaking as the client.
    pub to_server: LegState,
}

/// How far an end is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The first sequence number of its own that the other end has not acknowledged.
    pub first_unacknowledged: u32,
    /// What it has sent from there on.
    pub unacknowledged: Vec<u8>,
    /// The window in bytes that it told with its last acknowledgement.
    pub window_bytes: u32,
    /// Last timestamp of the end, where both agreed on timestamps.
    pub timestamp: Option<u32>,
}

impl Standing {
    fn next(&self) -> u32 {
        self.first_unacknowledged.wrapping_add(self.unacknowledged.len() as u32)
    }
}

/// What both ends agreed on in their handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// Largest segments that the client and the server take.
    pub mss_bytes: [u16; 2],
    /// Shifts of the client's windows and the server's.
    pub scales: [u8; 2],
    /// Both take selective acknowledgements.
    pub sack: bool,
    /// Every packet has a timestamp.
    pub timestamps: bool,
}

impl Agreement {
    /// From the client's SYN and the server's answer.
    ///
    /// # Errors
    /// They do not fit together, or agree on what two sockets in between cannot be told.
    pub fn new(syn: &Offer, answer: &Offer, is_ipv6: bool) -> Result<Agreement, Reason> {
        let problems = [
            (has_early_data(syn, answer), Reason::FastOpen),
            (answer.ecn, Reason::Ecn),
            (answer.options.mptcp, Reason::Mptcp),
            (answer.options.unknown, Reason::Option),
            // An answer has nothing that was not offered (RFC 7323 sections 2.2 and 3.2, RFC 2018 section 2).
            (answer.options.scale.is_some() && syn.options.scale.is_none(), Reason::Unclear),
            (answer.options.timestamp.is_some() && syn.options.timestamp.is_none(), Reason::Unclear),
        ];
        first_of(&problems)?;
        let mss_bytes = [syn, answer].map(|offer| offer.mss_bytes(is_ipv6));
        if mss_bytes.iter().any(|mss| *mss < LEAST_MSS_BYTES) {
            return Err(Reason::Size);
        }
        let scales = syn.options.scale.zip(answer.options.scale);
        Ok(Agreement {
            mss_bytes,
            scales: scales.map_or([0; 2], |(client, server)| [client, server]),
            sack: syn.options.sack && answer.options.sack,
            timestamps: syn.options.timestamp.and(answer.options.timestamp).is_some(),
        })
    }

    /// Whether a packet after the handshake is one that sockets of this agreement can follow.
    ///
    /// # Errors
    /// It is not, for this reason.
    pub fn check(&self, segment: &Segment<'_>) -> Result<(), Reason> {
        first_of(&[
            (segment.options.mptcp, Reason::Mptcp),
            (segment.options.unknown, Reason::Option),
            (self.timestamps != segment.options.timestamp.is_some(), Reason::Unclear),
        ])
    }

    /// Two sockets between a client and a server that are so far.
    pub fn between(&self, (client, server): (SocketAddr, SocketAddr), standings: [Standing; 2]) -> Between {
        let [of_client, of_server] = standings;
        let leg = |(own, as_end): (SocketAddr, &Standing),
                   (peer, to_end): (SocketAddr, &Standing),
                   index: usize| LegState {
            own,
            peer,
            send_next: as_end.first_unacknowledged,
            unacknowledged: as_end.unacknowledged.clone(),
            receive_next: to_end.next(),
            peer_mss_bytes: self.mss_bytes[index],
            peer_scale: self.scales[index],
            own_scale: self.scales[1 - index],
            sack: self.sack,
            timestamp: as_end.timestamp,
            peer_window_bytes: to_end.window_bytes,
            told_window_bytes: as_end.window_bytes,
            window_told_at: to_end.first_unacknowledged,
        };
        Between {
            to_client: leg((server, &of_server), (client, &of_client), 0),
            to_server: leg((client, &of_client), (server, &of_server), 1),
        }
    }
}

impl Between {
    /// What each socket is given as sent and not acknowledged: the client's leg's, the server's.
    pub fn loaded_bytes(&self) -> [u64; 2] {
        [&self.to_client, &self.to_server].map(|leg| leg.unacknowledged.len() as u64)
    }

    /// From the client's SYN, the server's answer, and the client's first packet after it: nothing else has passed.
    ///
    /// # Errors
    /// They do not fit together, or agree on what two sockets in between cannot be told.
    pub fn after_handshake(syn: &Offer, answer: &Offer, ack: &Segment<'_>) -> Result<Between, Reason> {
        let fits =
            ack.sequence == syn.first.wrapping_add(1) && ack.acknowledged == answer.first.wrapping_add(1);
        first_of(&[
            (ack.flags.is_reset(), Reason::Reset),
            (has_early_data(syn, answer), Reason::FastOpen),
            (!ack.flags.is_ack() || !fits, Reason::Unclear),
        ])?;
        let agreement = Agreement::new(syn, answer, ack.from.is_ipv6())?;
        agreement.check(ack)?;
        let standing = |offer: &Offer, window_bytes, timestamp: Option<u32>| Standing {
            first_unacknowledged: offer.first.wrapping_add(1),
            unacknowledged: Vec::new(),
            window_bytes,
            timestamp: timestamp.filter(|_| agreement.timestamps),
        };
        let client = standing(syn, u32::from(ack.window) << agreement.scales[0], ack.options.timestamp);
        let server = standing(answer, answer.window.into(), answer.options.timestamp);
        Ok(agreement.between((ack.from, ack.to), [client, server]))
    }

    /// What the server would have acknowledged if it had been asked: its socket learns the server's timestamp by it.
    pub fn server_ack(&self) -> Vec<u8> {
        self.to_server.peers_ack(self.to_server.window_told_at, self.to_client.timestamp)
    }

    /// What the client would have acknowledged.
    pub fn client_ack(&self) -> Vec<u8> {
        self.to_client.peers_ack(self.to_client.window_told_at, self.to_server.timestamp)
    }

    /// What the server and the client would repeat of what was acknowledged long ago: their sockets acknowledge what
    /// they have, at once.
    pub fn repetitions(&self) -> [Vec<u8>; 2] {
        let repeated =
            |leg: &LegState, timestamp| leg.peers_ack(leg.window_told_at.wrapping_sub(1), timestamp);
        [
            repeated(&self.to_server, self.to_client.timestamp),
            repeated(&self.to_client, self.to_server.timestamp),
        ]
    }
}

impl LegState {
    /// The peer's FIN, which it has sent before: nothing new to it.
    pub(crate) fn peers_fin(&self) -> Vec<u8> {
        let ends = (self.peer, self.own);
        at_last_hop(segment::fin(ends, self.receive_next, self.send_next, self.peers_window()))
    }

    /// An acknowledgement of the peer's, of what it has acknowledged already.
    fn peers_ack(&self, sequence: u32, peers_timestamp: Option<u32>) -> Vec<u8> {
        let stamps = peers_timestamp.zip(self.timestamp);
        let ends = (self.peer, self.own);
        at_last_hop(segment::ack(ends, sequence, self.send_next, self.peers_window(), stamps))
    }

    /// The window of the peer's packets, as they have it.
    fn peers_window(&self) -> u16 {
        u16::try_from(self.peer_window_bytes >> self.peer_scale).unwrap_or(u16::MAX)
    }
}

fn has_early_data(syn: &Offer, answer: &Offer) -> bool {
    syn.payload_bytes > 0 || answer.payload_bytes > 0
}

fn first_of(problems: &[(bool, Reason)]) -> Result<(), Reason> {
    problems.iter().find(|(is_so, _)| *is_so).map_or(Ok(()), |(_, reason)| Err(*reason))
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

        fn decide(&self) -> Result<Between, Reason> {
            let offer = |packet| Offer::of(&Segment::parse(packet).unwrap());
            Between::after_handshake(
                &offer(&self.syn),
                &offer(&self.answer),
                &Segment::parse(&self.ack).unwrap(),
            )
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
                unacknowledged: Vec::new(),
                receive_next: 0,
                peer_mss_bytes: 1460,
                peer_scale: 7,
                own_scale: 9,
                sack: true,
                timestamp: Some(50),
                peer_window_bytes: 502 << 7,
                told_window_bytes: 65160,
                window_told_at: 0,
            };
            assert_eq!(found.to_client, to_client);
            let LegState { own, peer, send_next, receive_next, timestamp, .. } = found.to_server.clone();
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
            if let Ok(Between { to_client, to_server }) = packets.decide() {
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
