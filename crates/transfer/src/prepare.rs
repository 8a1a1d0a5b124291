//! What the serving end does between a client's plan and the first byte of payload: it says where data go, and waits
//! for their connections.

use crate::{
    admit,
    channel::Channel,
    control::{Message, PROTOCOL_VERSION, Welcome},
    destination,
    error::{End, Error, Result},
    gathering::Gatherings,
    halt::Halt,
    handshake::{adopt, needs_own_listener},
    plan::{Protocol, TransferPlan},
    proof::{Transcript, random_bytes},
    serve_options::ServeOptions,
    session::Work,
    sockets::{LOOK_UP, Settings, at_free_port, data_ports, listen_on, local_port, udp_socket},
};
use longfat_host::Network;
use std::{
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

/// Connections to a listener of one transfer that the kernel holds beside its streams.
const BACKLOG_BESIDE: i32 = 16;

/// A transfer that is allowed and has no data connections yet.
pub(crate) struct Preparation<'a> {
    pub(crate) options: &'a ServeOptions,
    /// The server's one port.
    pub(crate) listener: &'a TcpListener,
    pub(crate) address: SocketAddr,
    pub(crate) gatherings: &'a Gatherings,
    pub(crate) plan: &'a TransferPlan,
    pub(crate) transcript: Option<&'a Transcript>,
    /// Where the client is.
    pub(crate) network: Network,
    /// The number of the transfer at this server.
    pub(crate) transfer: u64,
    /// What its data connections show.
    pub(crate) token: u128,
    pub(crate) halt: &'a Halt,
}

/// The token of a transfer.
pub(crate) fn new_token() -> Result<u128> {
    Ok(u128::from_ne_bytes(random_bytes()?))
}

impl Preparation<'_> {
    /// Gathers the data connections, and waits for the start where this end sends.
    pub(crate) fn work(&self, channel: &mut Channel) -> Result<Work> {
        let work = match self.plan.protocol {
            Protocol::Tcp => self.gather_tcp(channel)?,
            Protocol::Udp => self.gather_udp(channel)?,
        };
        channel.send(&Message::Ready)?;
        if self.plan.reverse {
            let patience = Duration::from_micros(self.options.limits.duration_us);
            self.wait_for_start(channel, Instant::now().checked_add(patience))?;
        }
        Ok(work)
    }

    /// Where data connections go and what they show, with the proof that a client with a key waits for.
    fn welcome(&self, ports: Vec<u16>) -> Message {
        let (transfer, token) = (self.transfer, format!("{:032x}", self.token));
        let proven = self.options.key.as_ref().zip(self.transcript);
        let proof = proven.map(|(key, transcript)| transcript.of_server(key, transfer, &token, &ports));
        Message::Welcome(Welcome { version: PROTOCOL_VERSION, transfer, token, ports, proof })
    }

    fn gather_tcp(&self, channel: &mut Channel) -> Result<Work> {
        let end = if self.plan.reverse { End::Sending } else { End::Receiving };
        let settings = Settings::data(self.plan, end);
        let (sockets, window_bytes) = if needs_own_listener(&settings, self.listener, channel.socket())? {
            (self.gather_apart(&settings, channel)?, settings.window_bytes)
        } else {
            self.gather_here(&settings, channel)?
        };
        Ok(if self.plan.reverse { Work::TcpSource(sockets) } else { Work::TcpSink(sockets, window_bytes) })
    }

    /// Data connections that come to the server's one port, and the bound of their windows.
    fn gather_here(
        &self,
        settings: &Settings,
        channel: &mut Channel,
    ) -> Result<(Vec<TcpStream>, Option<u64>)> {
        let gathering = self.gatherings.begin(self.transfer, self.token, self.network, self.plan.streams)?;
        channel.send(&self.welcome(Vec::new()))?;
        let streams = self.plan.streams as usize;
        let at = format!("port {}", self.address.port());
        let sockets = admit::gathered(gathering, streams, &at, channel, self.halt, settings.timeout)?;
        let adopted = sockets.iter().map(|socket| adopt(socket, settings));
        let window_bytes = adopted.collect::<Result<Vec<_>>>()?.into_iter().flatten().next();
        Ok((sockets, window_bytes))
    }

    /// Data connections that need a listener of their own.
    fn gather_apart(&self, settings: &Settings, channel: &mut Channel) -> Result<Vec<TcpStream>> {
        let backlog = self.plan.streams as i32 + BACKLOG_BESIDE;
        let open = |port| listen_on(self.at(port), settings, backlog);
        let listener = self.at_free_port(&mut data_ports(self.options.data_ports.as_ref()), open)?;
        let port = local_port(listener.local_addr())?;
        channel.send(&self.welcome(vec![port]))?;
        let gate = admit::Gate::new(self.transfer, self.token, self.plan.streams);
        gate.gather(&listener, port, channel, self.halt, settings.timeout)
    }

    fn gather_udp(&self, channel: &mut Channel) -> Result<Work> {
        let mut free = data_ports(self.options.data_ports.as_ref());
        let mut open = |_| self.at_free_port(&mut free, |port| self.udp_socket(port));
        let mut sockets = (0..self.plan.streams).map(&mut open).collect::<Result<Vec<UdpSocket>>>()?;
        let ports: Vec<u16> =
            sockets.iter().map(|socket| local_port(socket.local_addr())).collect::<Result<_>>()?;
        channel.send(&self.welcome(ports.clone()))?;
        let token = self.token as u64;
        admit::udp(&mut sockets, &ports, token, self.plan, channel, self.halt)?;
        Ok(if self.plan.reverse { Work::UdpSource(sockets, token) } else { Work::UdpSink(sockets, token) })
    }

    fn udp_socket(&self, port: u16) -> Result<UdpSocket> {
        let socket = udp_socket(self.at(port), self.plan)?;
        if self.address.ip().is_unspecified() {
            destination::tell(&socket)?;
        }
        Ok(socket)
    }

    /// Where the server listens, with another port. The interface of an address that needs one stays.
    fn at(&self, port: u16) -> SocketAddr {
        let mut address = self.address;
        address.set_port(port);
        address
    }

    fn at_free_port<T>(
        &self,
        ports: &mut dyn Iterator<Item = u16>,
        open: impl Fn(u16) -> Result<T>,
    ) -> Result<T> {
        let range = self.options.data_ports.as_ref();
        let (first, last) = range.map_or((0, 0), |range| (*range.start(), *range.end()));
        at_free_port(ports, open).unwrap_or(Err(Error::NoDataPort { first, last }))
    }

    fn wait_for_start(&self, channel: &mut Channel, deadline: Option<Instant>) -> Result<()> {
        loop {
            if self.halt.is_raised() {
                return Err(Error::Stopped);
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                let reason = "it did not start within what this server allows (--max-duration)".to_owned();
                return Err(Error::NotAllowed { peer: channel.peer().to_owned(), reason });
            }
            match channel.poll(LOOK_UP)? {
                None => {}
                Some(Message::Start) => return Ok(()),
                Some(other) => return Err(channel.unexpected(&other)),
            }
        }
    }
}
