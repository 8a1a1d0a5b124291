//! Servers whose answers reach their clients by another way than through this host.
//!
//! A client that was accepted early has such an answer to the relay's SYN for a segment of the connection it has: it is
//! out of place, and the client acknowledges what it has had (RFC 9293 section 3.10.7.4), to the relay, which has sent
//! it nothing yet. So acknowledgements that nobody asked for, while a dial is unanswered, say where the answers are. A
//! server that is merely silent makes none, and is dialled on.

use super::{Token, Worker};
use crate::{Fail, logic::one_way::OneWay};
use longfat_host::socket::tcp_info;
use std::{net::TcpStream, time::Duration};

/// A SYN, and two that are sent again after 1 and 3 s, have had their answers.
const FIRST_LOOK: Duration = Duration::from_millis(3500);
const NEXT_LOOK: Duration = Duration::from_secs(2);
/// Segments without data: the SYN and the ACK of the handshake, a FIN, and two for which nobody asked.
const EMPTY_SEGMENTS: u32 = 5;

impl Worker<'_> {
    /// A dial is under way.
    pub(super) fn expect_answer(&mut self, token: Token) {
        let is_intercepted =
            |token| self.slots.get(token).is_some_and(|connection| connection.targets.is_none());
        if self.shared.plan.fail == Fail::Open && is_intercepted(token) {
            self.unanswered.push_back((self.now + FIRST_LOOK, token));
        }
    }

    /// Ends the connections whose servers answer elsewhere, so that the clients' next ones pass.
    pub(super) fn look_for_answers(&mut self) {
        if self.unanswered.is_empty() {
            return;
        }
        let now = self.now;
        while let Some((due, token)) = self.unanswered.front().copied()
            && due <= now
        {
            self.unanswered.pop_front();
            let Some(connection) = self.slots.get(token).filter(|found| found.logic.is_connecting()) else {
                continue;
            };
            let pair = (connection.legs.client_address, connection.legs.server_address);
            if !is_answered_elsewhere(&connection.legs.client) {
                self.unanswered.push_back((now + NEXT_LOOK, token));
                continue;
            }
            self.shared.bypass.note(OneWay::of_hosts(pair), || {
                let (client, server) = pair;
                format!(
                    "answers of {server} reach {client} by another way than through this host (asymmetric routing), which no \
                     relay can carry: the client is reset"
                )
            });
            self.on_unreachable(token);
        }
    }
}

fn is_answered_elsewhere(client: &TcpStream) -> bool {
    tcp_info(client).is_ok_and(|info| {
        // A client that has filled its window asks again and again whether there is room. (Kernels that do not count
        // timeouts may not say what the window is either.)
        let has_room = info.timeouts().is_none() || info.rcv_wnd_bytes >= info.rcv_mss_bytes;
        has_room && info.segs_in.saturating_sub(info.data_segs_in) >= EMPTY_SEGMENTS
    })
}
