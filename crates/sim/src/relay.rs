//! One relayed connection: two TCP connections and a bounded buffer per direction between them.

use crate::{net::Net, packet::Segment, queue::Queue, tcp::Endpoint};

/// A relayed connection. Directions: 0 from the client to the server, 1 back.
#[derive(Debug)]
pub struct RelayConnection {
    /// Which relay.
    pub relay: usize,
    /// Number of the connection at that relay.
    pub number: u32,
    /// Endpoints towards the client and towards the server.
    pub ends: [u32; 2],
    /// Bytes between the sockets.
    pub held_bytes: [u64; 2],
    /// Bytes given to the outbound socket.
    pub relayed_bytes: [u64; 2],
    /// A write found no room in the outbound socket: nothing is written until it wakes its writer.
    is_blocked: [bool; 2],
    filling_bytes: u64,
    is_dialled: bool,
    /// What keeps each direction short.
    pub queues: Option<[Queue; 2]>,
}

impl RelayConnection {
    /// An idle connection.
    pub fn new(relay: usize, number: u32, ends: [u32; 2], filling_bytes: u64) -> RelayConnection {
        RelayConnection {
            relay,
            number,
            ends,
            held_bytes: [0; 2],
            relayed_bytes: [0; 2],
            is_blocked: [false; 2],
            filling_bytes,
            is_dialled: false,
            queues: None,
        }
    }

    /// A segment arrives at `endpoint`, one of its ends: as it is, marked, or not at all.
    pub fn on_arrival(
        &mut self,
        endpoint: u32,
        segment: &Segment,
        endpoints: &[Endpoint],
        now_ns: u64,
    ) -> Option<Segment> {
        let Some(queues) = &mut self.queues else { return Some(*segment) };
        if segment.payload_bytes == 0 || !self.is_dialled {
            return Some(*segment);
        }
        let direction = usize::from(self.ends[1] == endpoint);
        let [from, to] = [self.ends[direction] as usize, self.ends[1 - direction] as usize];
        queues[direction].on_arrival(segment, &endpoints[from], &endpoints[to], now_ns)
    }

    /// After an event at one of its ends: dials the server once the client's connection stands, moves what can be
    /// moved.
    pub fn turn(&mut self, endpoints: &mut [Endpoint], net: &mut Net) {
        let [client, server] = self.ends.map(|end| end as usize);
        if !self.is_dialled && endpoints[client].phase == crate::tcp::Phase::Established {
            self.is_dialled = true;
            endpoints[server].open_at(net.now_ns, net);
        }
        for direction in 0..2 {
            self.look(direction, endpoints, net.now_ns);
            if self.pump(direction, endpoints, net.now_ns) {
                endpoints[self.ends[1 - direction] as usize].on_moved(net);
                endpoints[self.ends[direction] as usize].on_moved(net);
            }
        }
    }

    /// Sets what a queue's window asks for, when it is time.
    fn look(&mut self, direction: usize, endpoints: &mut [Endpoint], now_ns: u64) {
        let [from, to] = [self.ends[direction] as usize, self.ends[1 - direction] as usize];
        let Some(queues) = &mut self.queues else { return };
        let Ok([inbound, outbound]) = endpoints.get_disjoint_mut([from, to]) else { return };
        queues[direction].look(inbound, outbound, now_ns);
    }

    /// Bytes one filling takes at most.
    fn filling_bytes(&self, direction: usize) -> u64 {
        let ahead = self.queues.as_ref().and_then(|queues| queues[direction].filling_bytes());
        ahead.map_or(self.filling_bytes, |bytes| bytes.min(self.filling_bytes))
    }

    /// Moves bytes of a direction until neither socket allows more: the buffer is filled only when it is empty, as the
    /// relay's is. Returns whether any moved.
    fn pump(&mut self, direction: usize, endpoints: &mut [Endpoint], now_ns: u64) -> bool {
        let [from, to] = [self.ends[direction] as usize, self.ends[1 - direction] as usize];
        let mut moved = false;
        loop {
            let is_empty = self.held_bytes[direction] == 0;
            let most_bytes = if is_empty { self.filling_bytes(direction) } else { 0 };
            let read = endpoints[from].receiver.unread_bytes.min(most_bytes);
            endpoints[from].receiver.read(read, now_ns);
            self.held_bytes[direction] += read;
            let outbound = &mut endpoints[to].sender;
            self.is_blocked[direction] &= !outbound.wakes_writer();
            let room = if self.is_blocked[direction] { 0 } else { outbound.room_bytes() };
            let written = self.held_bytes[direction].min(room);
            outbound.write(written);
            self.held_bytes[direction] -= written;
            self.is_blocked[direction] |= self.held_bytes[direction] > 0;
            self.relayed_bytes[direction] += written;
            if read + written == 0 {
                return moved;
            }
            moved = true;
        }
    }
}
