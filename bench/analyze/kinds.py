"""Kinds of kernel TCP traffic: what the path does, what the programs at its ends do, and what the kernel's counters must agree with.

A kind's path is a link plan (`longfat link drive`), a fate of frames (`wire.py`), or nothing: a cable that the kernel makes.
"""

import dataclasses
import random
import socket
import struct
import threading
import time
from fcntl import ioctl

from wire import ACK, RST, checksum, inside

SIOCOUTQ = 0x5411
TCP_INFO, TCP_CONGESTION, TCP_MAXSEG, TCP_USER_TIMEOUT, TCP_FASTOPEN = 11, 13, 2, 18, 23
# What `longfat analyze` says as the sender's kernel counts it.
EXACT = ("resent_segments", "timeouts", "probes")
WITH_OCTETS = ("resent_segments", "resent_bytes", "timeouts", "probes")


# Counters that no capture of a kind can show, and why.
AT_THE_RECEIVER = dict.fromkeys(EXACT, "the capture is made at the receiver, where what the sender did is seen as it arrives")
GIVING_UP = {"timeouts": "the timer at which a sender gives up is counted, and sends nothing"}
WITHOUT_PROBES = {"probes": "a sender that makes none: what a program that was held up sends behind a silence looks like one"}


@dataclasses.dataclass
class Kind:
    """One kind of traffic."""

    programs: callable
    link: dict = None
    fate: callable = None
    delay_s: float = 0.01
    sysctls: dict = dataclasses.field(default_factory=dict)
    exact: tuple = EXACT
    unseen: dict = dataclasses.field(default_factory=dict)
    # Octets kept of a packet; where the capture is made.
    snap: int = 120
    at: str = "sender"
    mtu: int = 1500
    offloads: bool = False
    # An interface beside `eth` that the ends use, and what the packets of the file are put into afterwards.
    tunnel: str = None
    wrap: str = None


class Ends:
    """The programs' side of a bed."""

    def __init__(self, bed, kind):
        self.bed, self.kind, self.port = bed, kind, 5001
        self.addresses = bed.addresses(kind)
        self.family = socket.AF_INET6 if ":" in self.addresses[0] else socket.AF_INET

    def socket(self, end):
        made = inside(self.bed.receiver if end else self.bed.sender, lambda: socket.socket(self.family))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.settimeout(60)
        return made

    def listener(self, receive_bytes=None, fast_open=False):
        listener = self.socket(1)
        if receive_bytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        listener.bind((self.addresses[1], self.port))
        if fast_open:
            listener.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 16)
        listener.listen(128)
        return listener

    def connected(self, listener, prepare=lambda client: None):
        client = self.socket(0)
        prepare(client)
        client.connect((self.addresses[1], self.port))
        return client, listener.accept()[0]


def drained(peer):
    """Reads until the end, in a thread."""

    def body():
        try:
            while peer.recv(1 << 16):
                pass
        except OSError:
            pass

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread


def read(peer, size):
    while size > 0:
        size -= len(peer.recv(min(size, 1 << 16)) or b" " * size)


def settled(client):
    """Waits until everything is acknowledged; gives back TCP_INFO of that time."""
    while struct.unpack("i", ioctl(client, SIOCOUTQ, b"\0" * 4))[0]:
        time.sleep(0.005)
    return client.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 300)


def bulk(size, cc="reno", prepare=lambda client: None):
    """One transfer; everything is acknowledged before it ends."""

    def programs(ends):
        client, peer = ends.connected(ends.listener(), lambda c: (c.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, cc.encode()), prepare(c)))
        reader = drained(peer)
        client.sendall(bytes(size))
        info = settled(client)
        client.shutdown(socket.SHUT_WR)
        reader.join()
        peer.close()
        client.close()
        return info

    return programs


def through_darkness(size, after_s, dark_s):
    def programs(ends):
        def dark():
            time.sleep(after_s)
            ends.bed.darken(dark_s)

        threading.Thread(target=dark, daemon=True).start()
        return bulk(size, "cubic")(ends)

    return programs


def reset_midway(ends):
    client, peer = ends.connected(ends.listener())

    def body():
        read(peer, 200_000)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()

    threading.Thread(target=body, daemon=True).start()
    try:
        client.sendall(bytes(4_000_000))
    except OSError:
        pass
    client.close()


def closed_window(ends):
    client, peer = ends.connected(ends.listener(receive_bytes=16_384))

    def body():
        time.sleep(2.5)
        drained(peer).join()
        peer.close()

    threading.Thread(target=body, daemon=True).start()
    client.sendall(bytes(120_000))
    settled(client)
    client.close()
    time.sleep(0.2)


def kept_alive(ends):
    def prepare(client):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)

    client, peer = ends.connected(ends.listener(), prepare)
    for _ in range(2):
        client.sendall(bytes(1000))
        read(peer, 1000)
        time.sleep(3.4)
    close(client, peer)


def close(client, peer):
    client.shutdown(socket.SHUT_WR)
    drained(peer).join()
    peer.close()
    drained(client).join()
    client.close()


def urgent(ends):
    client, peer = ends.connected(ends.listener())
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    reader = drained(peer)
    for _ in range(40):
        client.sendall(bytes(3000))
        client.send(b"!", socket.MSG_OOB)
        time.sleep(0.005)
    settled(client)
    client.close()
    reader.join()
    peer.close()


def half_closed(ends):
    client, peer = ends.connected(ends.listener())
    client.sendall(bytes(50_000))
    client.shutdown(socket.SHUT_WR)
    drained(peer).join()
    reader = drained(client)
    peer.sendall(bytes(300_000))
    peer.close()
    reader.join()
    client.close()


def simultaneous(ends):
    """Both open at once, and both close at once."""
    both = [ends.socket(0), ends.socket(1)]
    for end, own in enumerate(both):
        own.bind((ends.addresses[end], 5001 + end))
        own.setblocking(False)
    for end, own in enumerate(both):
        try:
            own.connect((ends.addresses[1 - end], 5002 - end))
        except BlockingIOError:
            pass
    time.sleep(0.2)
    for own in both:
        own.settimeout(20)
        own.sendall(bytes(20_000))
    for own in both:
        read(own, 20_000)
    for own in both:
        own.shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    for own in both:
        own.close()


def port_again(ends):
    listener = ends.listener()
    for n in range(3):
        client, peer = ends.connected(listener, lambda c: c.bind((ends.addresses[0], 45_000)))
        client.sendall(bytes(20_000 * (n + 1)))
        read(peer, 20_000 * (n + 1))
        settled(client)
        # A reset leaves no TIME_WAIT, so that the port is free at once.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        peer.close()
        time.sleep(0.1)


def fast_open(ends):
    listener = ends.listener(fast_open=True)
    for _ in range(3):
        client = ends.socket(0)
        client.setblocking(True)
        client.sendto(bytes(1200), socket.MSG_FASTOPEN, (ends.addresses[1], ends.port))
        peer, _ = listener.accept()
        read(peer, 1200)
        client.sendall(bytes(5000))
        read(peer, 5000)
        close(client, peer)


def pausing(ends):
    client, peer = ends.connected(ends.listener())
    reader = drained(peer)
    for _ in range(3):
        client.sendall(bytes(500_000))
        settled(client)
        time.sleep(1.2)
    client.close()
    reader.join()
    peer.close()


def many_small(ends):
    listener, dice = ends.listener(), random.Random(ends.bed.seed)

    def one(size):
        client, peer = ends.connected(listener)
        client.sendall(bytes(size))
        read(peer, size)
        peer.sendall(bytes(2 * size))
        read(client, 2 * size)
        settled(client)
        close(client, peer)

    for _ in range(60):
        one(dice.randrange(1, 9000))


def small_writes(ends):
    client, peer = ends.connected(ends.listener())

    def answer():
        for _ in range(40):
            read(peer, 200)
            peer.sendall(bytes(300))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    for _ in range(40):
        client.sendall(bytes(100))
        client.sendall(bytes(100))
        read(client, 300)
    thread.join()
    close(client, peer)


def given_up(ends):
    client, peer = ends.connected(ends.listener(), lambda c: c.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 5000))
    drained(peer)
    try:
        client.sendall(bytes(3_000_000))
        settled(client)
    except OSError:
        pass
    client.close()


# Fates: made anew for each run, with its dice.


def losing(share, back_share=0.0):
    def make(dice):
        return lambda packet: [] if packet.is_tcp and dice.random() < (share if packet.forth else back_share) else [(0, packet.frame)]

    return make


def doubling(dice):
    return lambda packet: [(0, packet.frame)] + ([(0.0003, packet.frame)] if packet.is_tcp and dice.random() < 0.05 else [])


def losing_once(chosen):
    """Loses each packet that `chosen` names, the first time that it comes."""

    def make(dice):
        seen = set()

        def fate(packet):
            name = chosen(packet) if packet.is_tcp else None
            if name is None or name in seen:
                return [(0, packet.frame)]
            seen.add(name)
            return []

        return fate

    return make


def first_syns(packet):
    return ("syn", packet.forth) if packet.is_syn() else None


def tail(size):
    """The last segment of a transfer of so many octets."""
    first = {}

    def chosen(packet):
        if packet.forth and packet.is_syn():
            first["number"] = packet.sequence + 1
        end = packet.sequence + packet.payload
        if packet.forth and packet.is_data and "number" in first and (end - first["number"]) & 0xFFFFFFFF == size:
            return "tail"
        return None

    return chosen


def shrinking(dice):
    """From the 100th acknowledgement to the 300th, the window is an eighth."""
    count = [0]

    def fate(packet):
        if packet.forth or not packet.is_tcp or packet.is_syn():
            return [(0, packet.frame)]
        count[0] += 1
        if not 100 <= count[0] < 300:
            return [(0, packet.frame)]
        window = int.from_bytes(packet.frame[packet.tcp + 14 : packet.tcp + 16], "big")
        return [(0, packet.with_window(max(1, window // 8)))]

    return fate


def marking(dice):
    def fate(packet):
        is_capable = packet.is_tcp and packet.forth and packet.frame[14 + 1] & 3 == 2
        return [(0, packet.with_ce() if is_capable and packet.is_data and dice.random() < 0.02 else packet.frame)]

    return fate


def narrow(most_bytes):
    """Larger packets vanish, and no router says so."""
    return lambda dice: lambda packet: [] if packet.is_tcp and packet.forth and packet.ip_bytes > most_bytes else [(0, packet.frame)]


def dying(packets):
    def make(dice):
        left = [packets]

        def fate(packet):
            left[0] -= packet.is_tcp
            return [(0, packet.frame)] if left[0] > 0 or not packet.is_tcp else []

        return fate

    return make


def policing(rate_bps, burst_bytes):
    """A token bucket that drops what it has no tokens for, and queues nothing."""

    def make(dice):
        bucket = {"tokens": burst_bytes, "at": time.monotonic()}

        def fate(packet):
            now = time.monotonic()
            bucket["tokens"] = min(burst_bytes, bucket["tokens"] + (now - bucket["at"]) * rate_bps / 8)
            bucket["at"] = now
            if not packet.forth or not packet.is_tcp:
                return [(0, packet.frame)]
            if bucket["tokens"] < packet.ip_bytes:
                return []
            bucket["tokens"] -= packet.ip_bytes
            return [(0, packet.frame)]

        return fate

    return make


def damaging(dice):
    def fate(packet):
        harms = packet.forth and packet.is_tcp and packet.is_data and dice.random() < 0.02
        return [(0, packet.damaged() if harms else packet.frame)]

    return fate


def disordering(dice):
    return lambda packet: [(0.004 if packet.is_tcp and packet.forth and dice.random() < 0.03 else 0, packet.frame)]


def injecting(dice):
    """A reset that nobody sent, whose number is wrong: it changes nothing at the ends (RFC 5961)."""
    count = [0]

    def fate(packet):
        count[0] += packet.is_tcp and packet.forth and packet.is_data
        if count[0] != 50 or not packet.forth:
            return [(0, packet.frame)]
        count[0] += 1
        frame = bytearray(packet.frame[: packet.tcp + 20])
        struct.pack_into("!I", frame, packet.tcp + 4, (packet.sequence + 500) & 0xFFFFFFFF)
        frame[packet.tcp + 12], frame[packet.tcp + 13], frame[22] = 0x50, RST | ACK, 200
        frame[16:18] = (40).to_bytes(2, "big")
        frame[24:26] = b"\0\0"
        frame[24:26] = checksum(bytes(frame[14:34])).to_bytes(2, "big")
        frame[packet.tcp + 16 : packet.tcp + 18] = b"\0\0"
        pseudo = bytes(frame[26:34]) + b"\0\x06" + (20).to_bytes(2, "big")
        total = checksum(pseudo + bytes(frame[packet.tcp : packet.tcp + 20]))
        frame[packet.tcp + 16 : packet.tcp + 18] = total.to_bytes(2, "big")
        return [(0, packet.frame), (0, bytes(frame))]

    return fate


def plain(dice):
    return lambda packet: [(0, packet.frame)]


LINK = {"rate": "30Mbit", "delay": "10ms"}

KINDS = {
    "clean": Kind(bulk(8_000_000, "cubic"), link={"rate": "50Mbit", "delay": "10ms"}, exact=WITH_OCTETS),
    "loss_1_percent": Kind(bulk(8_000_000, "cubic"), link={"rate": "50Mbit", "delay": "10ms", "loss": 0.01}, exact=WITH_OCTETS),
    "loss_5_percent": Kind(bulk(3_000_000), link={"rate": "50Mbit", "delay": "5ms", "loss": 0.05}, exact=WITH_OCTETS),
    "short_queue": Kind(bulk(12_000_000, "cubic"), link={"rate": "30Mbit", "delay": "20ms", "queue": {"discipline": "droptail", "limit": "30KB"}}, exact=WITH_OCTETS),
    "reordering": Kind(bulk(6_000_000, "cubic"), link={"rate": "30Mbit", "delay": "10ms", "jitter": "6ms", "reorder": True}, exact=WITH_OCTETS),
    "no_sack": Kind(bulk(3_000_000), link=LINK | {"loss": 0.01}, sysctls={"tcp_sack": 0}, exact=WITH_OCTETS),
    "dark_second": Kind(through_darkness(12_000_000, 0.8, 1.5), link=LINK, exact=WITH_OCTETS),
    "no_tail_probes": Kind(bulk(3_000_000, "cubic"), link=LINK | {"loss": 0.03}, sysctls={"tcp_early_retrans": 0}, exact=WITH_OCTETS, unseen=WITHOUT_PROBES),
    "loss_in_bursts": Kind(bulk(4_000_000, "cubic"), link=LINK | {"loss": {"to_bad": 0.004, "to_good": 0.25}}, exact=WITH_OCTETS),
    "reordering_at_the_receiver": Kind(bulk(2_000_000), fate=disordering, at="receiver", unseen=AT_THE_RECEIVER),
    "duplicates_at_the_receiver": Kind(bulk(2_000_000), fate=doubling, at="receiver"),
    "duplicates": Kind(bulk(2_000_000), fate=doubling, exact=WITH_OCTETS),
    "tail_loss": Kind(bulk(150_000), fate=losing_once(tail(150_000)), exact=WITH_OCTETS),
    "lost_syns": Kind(bulk(50_000), fate=losing_once(first_syns), exact=WITH_OCTETS),
    "reset_midway": Kind(reset_midway, fate=plain),
    "zero_window": Kind(closed_window, fate=plain),
    "window_shrinks": Kind(bulk(3_000_000), fate=shrinking, exact=WITH_OCTETS),
    "keep_alives": Kind(kept_alive, fate=plain),
    "urgent_data": Kind(urgent, fate=plain),
    "ecn_marks": Kind(bulk(2_000_000), fate=marking, sysctls={"tcp_ecn": 1}, exact=WITH_OCTETS),
    "no_timestamps": Kind(bulk(2_000_000), fate=losing(0.01), sysctls={"tcp_timestamps": 0}, exact=WITH_OCTETS),
    "no_scaling": Kind(bulk(1_000_000), fate=losing(0.01), sysctls={"tcp_window_scaling": 0}, exact=WITH_OCTETS),
    "tiny_mss": Kind(bulk(150_000, prepare=lambda c: c.setsockopt(socket.IPPROTO_TCP, TCP_MAXSEG, 100)), fate=losing(0.01), exact=WITH_OCTETS),
    "jumbo": Kind(bulk(6_000_000), fate=losing(0.01), mtu=9000, exact=WITH_OCTETS),
    "ipv6": Kind(bulk(2_000_000), fate=losing(0.01), exact=WITH_OCTETS),
    "half_close": Kind(half_closed, fate=losing(0.01, 0.01)),
    "simultaneous_open_and_close": Kind(simultaneous, fate=plain),
    "port_reused": Kind(port_again, fate=plain),
    "fast_open": Kind(fast_open, fate=plain, sysctls={"tcp_fastopen": 3}),
    "bundles": Kind(bulk(6_000_000), offloads=True, exact=WITH_OCTETS),
    "vlan": Kind(bulk(1_000_000), fate=losing(0.01), wrap="vlan", exact=WITH_OCTETS),
    "vxlan": Kind(bulk(1_000_000), fate=plain, tunnel="vxlan", snap=200, exact=WITH_OCTETS),
    "gre": Kind(bulk(1_000_000), fate=losing(0.01), wrap="gre", exact=WITH_OCTETS),
    "ip_in_ip": Kind(bulk(1_000_000), fate=losing(0.01), wrap="ipip", exact=WITH_OCTETS),
    "idle_restart": Kind(pausing, fate=plain),
    "many_small_flows": Kind(many_small, fate=losing(0.02, 0.02)),
    "nagle_and_delayed_acks": Kind(small_writes, fate=plain),
    "mtu_black_hole": Kind(bulk(300_000), fate=narrow(1200), sysctls={"tcp_mtu_probing": 1}, exact=WITH_OCTETS),
    "dead_peer": Kind(given_up, fate=dying(400), unseen=GIVING_UP),
    "policer": Kind(bulk(3_000_000), fate=policing(8_000_000, 60_000), exact=WITH_OCTETS),
    "lost_acks": Kind(bulk(2_000_000), fate=losing(0.0, 0.2), exact=WITH_OCTETS),
    "damage_at_the_receiver": Kind(bulk(1_500_000), fate=damaging, at="receiver", snap=2000, exact=(*EXACT, "damaged_packets"), unseen=AT_THE_RECEIVER),
    "policer_with_a_large_bucket": Kind(bulk(5_000_000, "cubic"), fate=policing(12_000_000, 150_000), exact=WITH_OCTETS),
    "injected_reset_at_the_receiver": Kind(bulk(1_000_000), fate=injecting, at="receiver", unseen=AT_THE_RECEIVER),
}
