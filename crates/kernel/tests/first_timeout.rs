//! When connections of some processes take their first packet for lost.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use longfat_kernel::first_timeout::{FirstTimeout, LONGEST};
use std::{process::Command, time::Duration};

/// Asks for a connection whose SYN-ACK is dropped. Prints the timeout of the SYN in milliseconds, and how many SYNs and
/// SYN-ACKs were sent again until as many seconds were over as the argument says, or one was.
const PROGRAM: &str = r#"
import socket as s, struct, subprocess, sys, time
subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)
subprocess.run(['nft', 'add table inet t; add chain inet t c { type filter hook input priority 0; }; '
                'add rule inet t c tcp flags & (syn | ack) == syn | ack drop'], check=True)
listener = s.create_server(('127.0.0.1', 0))
client = s.socket()
client.setblocking(False)
client.connect_ex(listener.getsockname())
rto_us, = struct.unpack_from('I', client.getsockopt(s.IPPROTO_TCP, s.TCP_INFO, 104), 8)
def again():
    names, values = [line.split() for line in open('/proc/self/net/netstat') if line.startswith('TcpExt:')]
    return int(dict(zip(names, values))['TCPSynRetrans'])
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until and not again():
    time.sleep(0.05)
print(rto_us // 1000, again() > 0)
"#;

fn run(timeout: Option<&FirstTimeout>, wait_s: &str) -> String {
    let mut command = Command::new("unshare");
    command.args(["--net", "python3", "-c", PROGRAM, wait_s]);
    timeout.into_iter().for_each(|timeout| timeout.enter(&mut command).unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn syns_and_syn_acks_are_sent_again_after_the_time_that_was_set() {
    let slow = FirstTimeout::set(Duration::from_secs(20)).unwrap();
    assert_eq!(run(Some(&slow), "3.2"), "20000 False\n");
    assert_eq!(run(None, "20"), "1000 True\n", "processes elsewhere keep the kernel's second");
}

#[test]
fn no_timeout_is_longer_than_the_kernels_longest() {
    let slow = FirstTimeout::set(Duration::from_secs(3600)).unwrap();
    assert_eq!(run(Some(&slow), "0"), format!("{} False\n", LONGEST.as_millis()));
}
