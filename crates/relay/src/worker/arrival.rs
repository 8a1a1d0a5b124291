//! A connection on its way from one relay to the next, on either side.

use super::relayed::Relayed;
use crate::{
    RelayPlan,
    handover::{
        derive::{Dial, Found, Unfit, derive},
        estate::{self, Arrival, Bytes},
        facts,
    },
    keeping::{
        Keeping, connection_id,
        record::{ConnectionRecord, Failure, Held, Holding, Message, Say},
        wire::Wire,
    },
    legs::{Legs, buffer::Buffer, inbound},
    logic::connection::{Direction, Event, Side},
    plan::ConnectionPlan,
    shared::Shared,
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::{
    fs::File,
    io::{self, Write},
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// What a connection holds in memory, as files.
pub(crate) fn memory_of(connection: &Relayed) -> io::Result<[Option<File>; 2]> {
    let file = |direction| connection.memory(direction).map(file_of).transpose();
    Ok([file(Direction::ClientToServer)?, file(Direction::ServerToClient)?])
}

fn file_of(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"longfat-relay", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Puts a connection where it survives this process, unless nobody keeps anything.
pub(crate) fn keep(keeping: &Keeping, connection: &Relayed, worker: usize) {
    if keeping.is_on() {
        let (record, descriptors) = record_of(connection, worker, &[const { None }; 2]);
        keeping.put_connection(record, &descriptors);
    }
}

/// What is written of a connection, and the descriptors beside it.
pub(crate) fn record_of<'c>(
    connection: &'c Relayed,
    worker: usize,
    memory: &'c [Option<File>; 2],
) -> (ConnectionRecord, Vec<BorrowedFd<'c>>) {
    let legs = &connection.legs;
    let mut descriptors = vec![legs.client.as_fd(), legs.server.as_fd()];
    let held =
        Direction::BOTH.map(|direction| match (connection.mark(direction), connection.pipe(direction)) {
            (Some(byte), _) => Held::Mark(byte),
            (None, Some((read, write))) => {
                descriptors.extend([read, write]);
                Held::Pipe
            }
            (None, None) => memory[direction.index()].as_ref().map_or(Held::Nowhere, |file| {
                descriptors.push(file.as_fd());
                Held::Memory
            }),
        });
    let failure = connection
        .logic
        .failure()
        .map(|(side, after_fin)| Failure { is_client: side == Side::Client, after_fin });
    let (listener, untried) = (connection.listener, connection.untried);
    let record = ConnectionRecord { listener, untried, held, failure, ..legs.record(worker) };
    (record, descriptors)
}

/// A connection that has come, ready to be worked on.
pub(crate) struct Settled {
    pub connection: Box<Relayed>,
    pub dial: Dial,
}

/// Connections in the order in which they are best taken in: those first for which something has come. Those that are
/// still to be dialled are among these, and keep their order.
pub(crate) fn waiting_first(arrivals: Vec<Arrival>) -> Vec<Arrival> {
    let waiting = facts::have_something(arrivals.iter().map(|arrival| [&arrival.client, &arrival.server]));
    let (first, others): (Vec<_>, Vec<_>) =
        arrivals.into_iter().zip(waiting).partition(|(_, is_waiting)| *is_waiting);
    first.into_iter().chain(others).map(|(arrival, _)| arrival).collect()
}

/// Finds out what state it is in, and makes it this relay's.
///
/// # Errors
/// It does not go on.
pub(crate) fn settle(arrival: Arrival, shared: &Shared) -> Result<Settled, Unfit> {
    let Arrival { record, client, server, held } = arrival;
    let intercepted = record.listener.is_none();
    let own_mark = shared.packets.mark().filter(|_| intercepted);
    [&client, &server].into_iter().for_each(|leg| estate::refit(leg, own_mark));
    let found = find(&client, &server, &held, &record)?;
    for direction in Direction::BOTH {
        let from = if direction.from() == Side::Client { &client } else { &server };
        let consumed = inbound::consume(from, found.sent_before[direction.index()]);
        consumed.map_err(|_| Unfit::Unclear)?;
    }
    let plan = way(shared.plan, &record);
    let targets = record.listener.map(|listen| targets(shared.plan, listen, record.server));
    let pair = (record.client, record.server);
    let legs = Legs {
        accepted_us: record.accepted_us,
        is_inserted: record.inserted,
        loaded_bytes: record.loaded_bytes,
        brought_bytes: record.brought_bytes,
        adopted: record.adopted.clone(),
        relayed_bytes: found.relayed_bytes.map(Into::into),
        ..Legs::new(record.number, client, server, pair, plan)
    };
    let mut connection = Box::new(Relayed::new(legs, targets, record.listener, Instant::now()));
    connection.untried = record.untried;
    let age_us = (longfat_host::monotonic_us() - record.accepted_us).max(0) as u64;
    let begun = connection.started.checked_sub(Duration::from_micros(age_us));
    connection.started = begun.unwrap_or(connection.started);
    for (direction, bytes) in Direction::BOTH.into_iter().zip(held) {
        connection.take_in(direction, bytes);
    }
    found.events.iter().for_each(|event| connection.on(*event));
    Ok(Settled { connection, dial: found.dial })
}

fn find(
    client: &std::net::TcpStream,
    server: &std::net::TcpStream,
    held: &[Bytes; 2],
    record: &ConnectionRecord,
) -> Result<Found, Unfit> {
    let facts = |leg, side| match record.inserted {
        true => {
            let before = (record.loaded_bytes[side as usize], record.brought_bytes[side as usize]);
            facts::of_inserted_leg(leg, side, before)
        }
        false => facts::of_leg(leg, side),
    };
    let facts = [facts(client, Side::Client), facts(server, Side::Server)];
    let [Ok(client), Ok(server)] = &facts else { return Err(Unfit::Unclear) };
    let held_bytes = held.each_ref().map(Bytes::count);
    let mut found = derive([client, server], held_bytes, record.failure)?;
    for (direction, bytes) in Direction::BOTH.into_iter().zip(held) {
        if matches!(bytes, Bytes::Mark(_)) {
            let read = Event::Read(direction, 1);
            let marks = found.events.iter_mut().filter(|event| **event == read);
            marks.for_each(|event| *event = Event::ReadMark(direction));
        }
    }
    Ok(found)
}

impl Bytes {
    fn count(&self) -> u64 {
        match self {
            Bytes::None => 0,
            Bytes::Mark(_) => 1,
            Bytes::Memory(bytes) => bytes.len() as u64,
            Bytes::Pipe { read, .. } => facts::of_pipe(read),
        }
    }

    /// As a connection holds them; an urgent byte is none of these.
    pub fn buffer(self) -> Option<Buffer> {
        match self {
            Bytes::None | Bytes::Mark(_) => None,
            Bytes::Memory(bytes) => Some(Buffer::holding(bytes)),
            Bytes::Pipe { read, write } => Some(Buffer::Pipe { read, write }),
        }
    }
}

/// How it is carried from now on: as the rule of that name says, or the defaults.
fn way(plan: &RelayPlan, record: &ConnectionRecord) -> Arc<ConnectionPlan> {
    let same = plan.ways().find(|way| way.rule == record.rule);
    Arc::clone(same.unwrap_or(&plan.defaults))
}

/// The servers of its listener, if that is there still.
fn targets(plan: &RelayPlan, listen: SocketAddr, server: SocketAddr) -> Arc<[SocketAddr]> {
    let listener = plan.listeners.iter().find(|listener| listener.listen == listen);
    listener.map_or_else(|| [server].into(), |listener| listener.to.as_slice().into())
}

/// Sends a connection.
pub(crate) fn give(wire: &Wire, connection: &Relayed, worker: usize) -> io::Result<()> {
    let memory = memory_of(connection)?;
    let (record, descriptors) = record_of(connection, worker, &memory);
    let id = connection_id(record.number);
    wire.send(&Message::with(Say::Put, id, &Holding::Connection(Box::new(record))), &descriptors)
}
