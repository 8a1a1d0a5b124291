//! Both sockets of a connection at a moment: what status, metrics and records are made of.

use crate::{
    legs::Legs,
    logic::connection::{Direction, Side},
};
use longfat_host::{
    monotonic_us,
    socket::{cc, tcp_info},
};
use longfat_schema::record::TcpSample;

/// Both sockets of a connection, read at once; none when one has just been closed.
pub(crate) struct Reading {
    pub client: TcpSample,
    pub server: TcpSample,
    is_inserted: bool,
    loaded_bytes: [u64; 2],
    brought_bytes: [u64; 2],
}

impl Reading {
    /// Reads both legs, their idle time as well.
    pub fn take(legs: &Legs) -> Option<Reading> {
        let read = |side| {
            let (socket, time_us) = (legs.leg(side), monotonic_us());
            let info = tcp_info(socket).ok()?;
            Some((TcpSample { time_us, cc: cc(socket).ok()?, ..info.sample() }, info.busy_us))
        };
        let ((client, client_us), (server, server_us)) = (read(Side::Client)?, read(Side::Server)?);
        legs.note_busy([client_us, server_us]);
        let Legs { is_inserted, loaded_bytes, brought_bytes, .. } = *legs;
        Some(Reading { client, server, is_inserted, loaded_bytes, brought_bytes })
    }

    fn leg(&self, side: Side) -> &TcpSample {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// What the inbound socket received and the outbound peer has not acknowledged.
    pub fn backlog_bytes(&self, direction: Direction) -> u64 {
        // The kernel counts the SYN of the side that connected as an acknowledged byte: the relay's towards the server.
        let syn = u64::from(direction == Direction::ClientToServer && !self.is_inserted);
        let before = syn + self.loaded_bytes[direction.to() as usize];
        let acked_bytes = self.leg(direction.to()).acked_bytes.saturating_sub(before);
        let received_bytes = self.leg(direction.from()).received_bytes;
        (received_bytes + self.brought_bytes[direction.from() as usize]).saturating_sub(acked_bytes)
    }
}
