//! A host's sysctls as the simulator understands them. Values that are not set are Linux's defaults.

use super::SimulationError;
use crate::plan::HostPlan;
use longfat_relay::{BUFFER_BYTES, filling_bytes};
use longfat_sim::{ReceiveBuffer, SendBuffer};

/// Bounds of autotuned receive buffers where nobody says (Linux on a machine with memory enough).
const RMEM: &str = "4096 131072 6291456";
/// Bounds of autotuned send buffers where nobody says.
const WMEM: &str = "4096 16384 4194304";

/// Parameters that are simulated.
const MODELLED: [&str; 6] = [
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_tso_win_divisor",
];
/// Parameters that say what is always so in the simulator.
const GIVEN: [&str; 7] = [
    "net.ipv4.ip_forward",
    "net.ipv6.conf.all.forwarding",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.default.rp_filter",
    "net.ipv6.conf.all.accept_dad",
    "net.ipv6.conf.default.accept_dad",
    "net.ipv4.tcp_no_metrics_save",
];

/// How segments reach a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// One by one, from an emulated path, in packets of this size at most.
    Packets {
        /// Largest IP packet.
        mtu_bytes: u32,
    },
    /// Several at once, over plain cables only.
    Bundles,
}

impl Arrivals {
    /// What one filling of a relay's buffer takes of them at most.
    pub fn filling_bytes(self) -> u64 {
        match self {
            Arrivals::Packets { mtu_bytes } => {
                filling_bytes(u64::from(mtu_bytes).saturating_sub(HEADER_BYTES) as usize) as u64
            }
            Arrivals::Bundles => BUFFER_BYTES as u64,
        }
    }
}

/// One host's TCP parameters.
#[derive(Debug, Clone, Copy)]
pub struct HostParameters<'a>(pub &'a HostPlan);

/// IPv4 and TCP with timestamps.
const HEADER_BYTES: u64 = 52;
/// Ethernet, and the room that a packet socket leaves before it.
const LINK_BYTES: u64 = 48;
/// What the kernel keeps of a packet beside its bytes: behind them (skb_shared_info), and apart (sk_buff).
const KEPT_BYTES: [u64; 2] = [320, 256];
const PAGE_BYTES: u64 = 4096;

/// Payload of a full segment in 256ths of the memory that its packet takes, as the link's driver hands it over: its
/// bytes in one piece of a power of two, or from a page on in pages.
fn in_256ths(mtu_bytes: u32) -> u64 {
    let [behind, apart] = KEPT_BYTES;
    let (mtu, link) = (u64::from(mtu_bytes), LINK_BYTES);
    let memory = if mtu + link < PAGE_BYTES {
        (mtu + link + behind).next_power_of_two() + apart
    } else {
        mtu.next_multiple_of(PAGE_BYTES) + (link + behind).next_power_of_two() + apart
    };
    mtu.saturating_sub(HEADER_BYTES) * 256 / memory
}

impl<'a> HostParameters<'a> {
    fn text(&self, key: &str, default: &'static str) -> &str {
        self.0.sysctls.get(key).map_or(default, |value| value.trim())
    }

    fn refuse<T>(
        &self,
        key: &'static str,
        default: &'static str,
        mend: &'static str,
    ) -> Result<T, SimulationError> {
        let value = self.text(key, default).to_owned();
        Err(SimulationError::Sysctl { host: self.0.name.clone(), key, value, mend })
    }

    /// The second and the third of three numbers.
    fn bounds(&self, key: &'static str, default: &'static str) -> Result<(u64, u64), SimulationError> {
        let numbers: Option<Vec<u64>> =
            self.text(key, default).split_whitespace().map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some([_, first, most]) => Ok((*first, *most)),
            _ => self.refuse(key, default, "three numbers of bytes: least, default, greatest"),
        }
    }

    /// Payload of a receive buffer. The kernel counts its bookkeeping, too, and learns from what arrives how much that
    /// is (scaling_ratio): packets that passed an emulated path stand each in memory of their own ([`in_256ths`]);
    /// those that a plain cable brought come in bundles, with next to none (measured: 0.94 is window).
    ///
    /// One of a fixed size stays so; the others grow with what is read.
    pub fn receive_buffer(
        &self,
        fixed_bytes: Option<u64>,
        arrivals: Arrivals,
    ) -> Result<ReceiveBuffer, SimulationError> {
        let payload = |counted: u64| {
            let payload = match arrivals {
                Arrivals::Packets { mtu_bytes } => counted * in_256ths(mtu_bytes) / 256,
                Arrivals::Bundles => counted - counted / 16,
            };
            payload.min(u64::from(u32::MAX))
        };
        if let Some(bytes) = fixed_bytes {
            return Ok(ReceiveBuffer::Fixed(payload(bytes)));
        }
        let (first, most) = self.bounds("net.ipv4.tcp_rmem", RMEM)?;
        Ok(ReceiveBuffer::Auto { first_bytes: payload(first), most_bytes: payload(most) })
    }

    /// A send buffer, as the kernel counts it.
    pub fn send_buffer(&self, fixed_bytes: Option<u64>) -> Result<SendBuffer, SimulationError> {
        match fixed_bytes {
            Some(bytes) => Ok(SendBuffer::Counted(bytes)),
            None => Ok(SendBuffer::Auto(self.bounds("net.ipv4.tcp_wmem", WMEM)?.1)),
        }
    }

    /// Bytes that may wait unsent.
    pub fn unsent_limit_bytes(&self) -> Result<Option<u64>, SimulationError> {
        const KEY: &str = "net.ipv4.tcp_notsent_lowat";
        const NONE: &str = "4294967295";
        match self.text(KEY, NONE) {
            NONE | "-1" => Ok(None),
            text => text.parse().map(Some).or_else(|_| self.refuse(KEY, NONE, "a number of bytes")),
        }
    }

    /// Selective acknowledgement.
    pub fn sack(&self) -> Result<bool, SimulationError> {
        const KEY: &str = "net.ipv4.tcp_sack";
        match self.text(KEY, "1") {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => self.refuse(KEY, "1", "0 or 1"),
        }
    }

    /// Explicit congestion notification: asked for by who opens a connection with 1, granted by the other end with 1
    /// or 2.
    pub fn ecn(&self, opens: bool) -> Result<bool, SimulationError> {
        const KEY: &str = "net.ipv4.tcp_ecn";
        match self.text(KEY, "2") {
            "0" => Ok(false),
            "1" => Ok(true),
            "2" => Ok(!opens),
            _ => self.refuse(KEY, "2", "0, 1 or 2"),
        }
    }

    /// Share of the window that is worth a bundle, as its divisor. Where nobody says, no bundle waits.
    pub fn tso_win_divisor(&self) -> Result<Option<u8>, SimulationError> {
        const KEY: &str = "net.ipv4.tcp_tso_win_divisor";
        match self.text(KEY, "") {
            "" => Ok(None),
            text => text.parse().map(Some).or_else(|_| self.refuse(KEY, "3", "a number up to 255")),
        }
    }

    /// Parameters that are set and mean nothing here.
    pub fn unmodelled(self) -> impl Iterator<Item = String> + use<'a> {
        let unknown = self
            .0
            .sysctls
            .iter()
            .filter(|(key, _)| !MODELLED.contains(&key.as_str()) && !GIVEN.contains(&key.as_str()));
        unknown.map(|(key, value)| format!("{key} = {value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 6.18 had 124,528, 94,600 and 125,272 bytes in flight at MTUs of 1500, 4352 and 9000 (emulated, whole
    /// segments) where 200,000 bytes bound its receive buffer.
    #[test]
    fn five_eighths_of_a_buffer_are_window_where_packets_of_ethernet_come_one_by_one() {
        assert_eq!(
            [1500, 4352, 9000].map(|mtu_bytes| 200_000 * in_256ths(mtu_bytes) / 256),
            [125_000, 95_312, 136_718]
        );
    }
}
