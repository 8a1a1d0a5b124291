//! What only a listener of its own can give a data connection, because the handshake settles it.
//!
//! Data connections come to the server's one port, whose listener asks for nothing but [`CONTROL_CC`]. What a plan asks
//! for is set once they are accepted, before payload flows. Three things are settled by then:
//!
//! - **the window scale** (RFC 7323, section 2.2): the kernel takes it from the largest buffer that tuning may give,
//!   or from the listener's own where that is larger. Under a scale of 7 a bound of the window is rounded up to whole
//!   128 bytes, under its own to a few;
//! - **the first window**, of 65535 bytes at most: what was offered is never taken back;
//! - **ECN** (RFC 3168, section 6.1.1): where the connection's own congestion control needs it (DCTCP), the kernel
//!   agrees to what it would refuse otherwise.
//!
//! What remains is small: a send buffer that grows by itself begins with room for two first windows, where BBR would
//! have had three.

use crate::{
    error::{Error, Result},
    sockets::{CONTROL_CC, Settings, clamp_window, new_socket},
};
use longfat_host::socket::{Buffer, OPTION_WINDOW_SCALE, buffer, cc, option, set_cc, tcp_info};
use nix::sys::socket::SockType;
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
};

/// Largest window that a handshake can offer: it is not scaled.
const FIRST_WINDOW_MAX_BYTES: u64 = 65_535;
/// Least receive buffer whose connections offer that: half of a buffer is bookkeeping at first.
const FULL_OFFER_BUFFER_BYTES: u64 = 2 * (FIRST_WINDOW_MAX_BYTES + 1);
/// The bits of an address's type of service that are ECN's.
const ECN_BITS: i32 = 0b11;

/// Whether a connection gets what `settings` ask only from a listener of its own. `control` is a connection that
/// `listener` accepted, as it would the others.
///
/// # Errors
/// When this host does not take `settings` at all, or does not tell.
pub(crate) fn needs_own_listener(
    settings: &Settings,
    listener: &TcpListener,
    control: &TcpStream,
) -> Result<bool> {
    let tried = unconnected()?;
    settings.apply(&tried)?;
    let asked = Asked {
        buffer_bytes: settings.rcvbuf_bytes.map(|_| buffer(&tried, Buffer::Receive)),
        bounds_window: settings.window_bytes.is_some(),
    };
    let offers_fully = buffer(listener, Buffer::Receive) >= FULL_OFFER_BUFFER_BYTES;
    let scaled_bytes = scaled_window_bytes(control, settings)?;
    Ok(needs_ecn(&tried)? || !asked.is_given_later(offers_fully, scaled_bytes))
}

/// What is asked of a connection that receives.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// As this host gives it.
    buffer_bytes: Option<u64>,
    bounds_window: bool,
}

impl Asked {
    /// Whether this can be set after a handshake with just the same effect as before it.
    fn is_given_later(self, offers_fully: bool, scaled_bytes: u64) -> bool {
        let Some(buffer_bytes) = self.buffer_bytes else { return true };
        !self.bounds_window
            && offers_fully
            && buffer_bytes >= FULL_OFFER_BUFFER_BYTES
            && scaled_bytes >= payload_bytes(buffer_bytes)
    }
}

/// What the kernel takes a buffer to hold as long as it has seen no segments.
fn payload_bytes(buffer_bytes: u64) -> u64 {
    buffer_bytes / 2
}

/// Largest window that the accepting end of a connection can say.
fn scaled_window_bytes(socket: &TcpStream, settings: &Settings) -> Result<u64> {
    let info = tcp_info(socket).map_err(|source| Error::Host { end: settings.end(), source })?;
    let own_scale = u32::from(info.window_scales >> 4);
    // Where the client does not scale, no listener does better.
    let scales = info.options & OPTION_WINDOW_SCALE != 0;
    Ok(if scales { FIRST_WINDOW_MAX_BYTES << own_scale } else { u64::MAX })
}

/// Whether the congestion control of a socket that is not connected marks its packets by itself.
fn needs_ecn(socket: &OwnedFd) -> Result<bool> {
    let failed = |source| Error::io("ask for the type of service", source);
    option(socket, libc::IPPROTO_IP, libc::IP_TOS).map(|tos| tos & ECN_BITS != 0).map_err(failed)
}

fn unconnected() -> Result<OwnedFd> {
    new_socket(&SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), SockType::Stream)
}

/// Largest window that the scale of a listener with such a buffer can say.
fn own_window_bytes(buffer_bytes: u64) -> u64 {
    let largest = payload_bytes(buffer_bytes).max(FIRST_WINDOW_MAX_BYTES + 1);
    FIRST_WINDOW_MAX_BYTES << (largest.ilog2() - u16::BITS + 1)
}

/// Gives a connection that came to the one port what it would have of a listener with `settings`, if these do not need
/// one. The bound of its window, which must be asked for anew (see [`clamp_window`]).
pub(crate) fn adopt(socket: &TcpStream, settings: &Settings) -> Result<Option<u64>> {
    settings.apply(socket)?;
    if settings.cc.is_none() {
        take_host_cc(socket, settings)?;
    }
    if settings.rcvbuf_bytes.is_none() {
        return Ok(None);
    }
    // The kernel bounds the window by the buffer of the handshake, and leaves it so in one that no longer grows.
    let most_bytes = own_window_bytes(buffer(socket, Buffer::Receive));
    clamp_window(socket, most_bytes).map_err(|source| Error::io("widen the window", source))?;
    Ok(Some(most_bytes))
}

/// The listener's congestion control is for control connections; another one than that is the route's, which stays.
fn take_host_cc(socket: &TcpStream, settings: &Settings) -> Result<()> {
    let host = |source| Error::Host { end: settings.end(), source };
    if cc(socket).map_err(host)? != CONTROL_CC {
        return Ok(());
    }
    let usual = cc(&unconnected()?).map_err(host)?;
    if usual == CONTROL_CC { Ok(()) } else { set_cc(socket, &usual).map_err(host) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::End,
        halt::Halt,
        plan::TransferPlan,
        sockets::{connect_to, listen_on},
    };
    use longfat_host::socket::set_option;
    use std::{
        io::{Read, Write},
        time::Duration,
    };

    #[test]
    fn what_the_handshake_offers_or_cannot_say_is_not_given_later() {
        let asked = |buffer_bytes, bounds_window| Asked { buffer_bytes, bounds_window };
        assert!(asked(None, false).is_given_later(false, 0));
        let scaled_bytes = FIRST_WINDOW_MAX_BYTES << 7;
        let largest = 2 * scaled_bytes + 1;
        for (buffer_bytes, later) in
            [(131_071, false), (131_072, true), (largest, true), (largest + 1, false)]
        {
            let asked = |bounds_window| asked(Some(buffer_bytes), bounds_window);
            assert_eq!(asked(false).is_given_later(true, scaled_bytes), later, "{buffer_bytes}");
            assert!(!asked(false).is_given_later(false, scaled_bytes), "the first window is smaller");
            assert!(!asked(true).is_given_later(true, scaled_bytes));
        }
    }

    fn listening(settings: &Settings) -> TcpListener {
        let listener = listen_on("127.0.0.1:0".parse().unwrap(), settings, 16).unwrap();
        // As of Ethernet.
        set_option(&listener, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1448).unwrap();
        listener
    }

    fn control() -> Settings {
        Settings::control(Duration::from_secs(5))
    }

    #[test]
    fn the_window_of_a_buffer_is_what_the_scale_of_its_own_listener_could_say() {
        for (buffer_bytes, scale) in [(131_072, 1), (256_000, 1), (262_144, 2), (400_000, 2), (6 << 20, 6)] {
            assert_eq!(own_window_bytes(buffer_bytes), FIRST_WINDOW_MAX_BYTES << scale, "{buffer_bytes}");
        }
    }

    /// Connected to `listener`: the client's end and the other.
    fn connected(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let to = listener.local_addr().unwrap();
        let near = connect_to(to, None, &control(), &Halt::default()).unwrap();
        listener.set_nonblocking(false).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// What was set at the server's end of a connection, and the windows that its client saw: the first, and the
    /// largest while megabytes came and were read.
    fn seen(
        (mut near, mut far): (TcpStream, TcpStream),
        held_bytes: Option<u64>,
    ) -> (String, [u64; 2], [f64; 2]) {
        let set = [Buffer::Send, Buffer::Receive].map(|direction| buffer(&far, direction));
        let name = cc(&far).unwrap();
        let window = |near: &TcpStream| f64::from(tcp_info(near).unwrap().snd_wnd_bytes);
        let first = window(&near);
        let mut largest = first;
        let mut piece = vec![0; 16 << 10];
        for _ in 0..500 {
            near.write_all(&piece).unwrap();
            held_bytes.map_or(Ok(()), |bytes| clamp_window(&far, bytes)).unwrap();
            far.read_exact(&mut piece).unwrap();
            largest = largest.max(window(&near));
        }
        (name, set, [first, largest])
    }

    #[test]
    fn a_connection_to_the_one_port_gets_what_a_listener_of_its_own_would_give() {
        let plain = TransferPlan::default();
        let cc = Some("cubic".to_owned());
        let plans = [
            plain.clone(),
            TransferPlan { cc_receiver: cc.clone(), ..plain.clone() },
            TransferPlan { rcvbuf_bytes: Some(150_000), ..plain.clone() },
            TransferPlan { rcvbuf_bytes: Some(256_000), ..plain.clone() },
            TransferPlan { rcvbuf_bytes: Some(400_000), ..plain.clone() },
            TransferPlan { sndbuf_bytes: Some(300_000), cc_sender: cc, reverse: true, ..plain },
        ];
        for plan in plans {
            let end = if plan.reverse { End::Sending } else { End::Receiving };
            let settings = Settings::data(&plan, end);
            let shared = listening(&control());
            assert!(!needs_own_listener(&settings, &shared, &connected(&shared).1).unwrap(), "{plan:?}");
            let adopted = connected(&shared);
            let held_bytes = adopt(&adopted.1, &settings).unwrap();
            let own = seen(connected(&listening(&settings)), None);
            let adopted = seen(adopted, held_bytes);
            // A send buffer that grows begins as large as the congestion control of the handshake wants it.
            let from = usize::from(plan.sndbuf_bytes.is_none());
            assert_eq!((&adopted.0, &adopted.1[from..]), (&own.0, &own.1[from..]), "{plan:?}");
            let is_close = |a: f64, b: f64| (a - b).abs() <= 1448.0 || plan.rcvbuf_bytes.is_none();
            assert!(
                adopted.2.iter().zip(own.2).all(|(a, b)| is_close(*a, b)),
                "{plan:?} {adopted:?} {own:?}"
            );
        }
    }

    #[test]
    fn small_buffers_and_bounds_of_the_window_need_a_listener_of_their_own() {
        let plain = TransferPlan::default();
        for plan in [
            TransferPlan { rcvbuf_bytes: Some(100_000), ..plain.clone() },
            TransferPlan { window_bytes: Some(300_000), ..plain },
        ] {
            let settings = Settings::data(&plan, End::Receiving);
            let shared = listening(&control());
            assert!(needs_own_listener(&settings, &shared, &connected(&shared).1).unwrap(), "{plan:?}");
            // At the sending end they mean nothing.
            let settings = Settings::data(&plan, End::Sending);
            assert!(!needs_own_listener(&settings, &shared, &connected(&shared).1).unwrap(), "{plan:?}");
        }
    }

    #[test]
    fn a_congestion_control_that_needs_ecn_needs_a_listener_of_its_own() {
        let needs = |name: &str| {
            let settings = Settings { cc: Some(name.to_owned()), ..control() };
            let shared = listening(&control());
            needs_own_listener(&settings, &shared, &connected(&shared).1)
        };
        assert!(!needs("reno").unwrap() && !needs("cubic").unwrap());
        match needs("dctcp") {
            Ok(needs) => assert!(needs),
            Err(error) => println!("not tried, this kernel has no DCTCP: {error}"),
        }
        assert!(needs("no-such-cc").is_err());
    }
}
