#!/usr/bin/env python3
"""Made-up captures of more than eighty situations, and what `longfat analyze`, tshark and tcptrace make of them.

    python3 -m venv venv && venv/bin/pip install scapy
    venv/bin/python bench/analyze/situations.py                # two thirds of them
    venv/bin/python bench/analyze/situations.py --held-back    # the others, with other parameters: look seldom

Every situation is one conversation, or a few, in one wrapping: a tunnel, a format of files, an odd header, a rare turn of
TCP. Three things are held: the packets counted are capinfos', every figure that differs from tshark's or tcptrace's has a
reason (`agreement.py`), and the findings are those the situation is about: `must` are there, and nothing besides `may`.
"""

import argparse
import itertools
import logging
import pathlib
import random
import struct
import sys
import tempfile
import typing

logging.getLogger("scapy.runtime").setLevel(logging.ERROR)  # It would have a route to each address.
from scapy.all import GRE, IP, TCP, Dot1AD, Dot1Q, Ether, IPv6, PPP, PPPoE, Raw, UDP, VXLAN, ICMP, fragment
from scapy.contrib.geneve import GENEVE
from scapy.contrib.gtp import GTP_U_Header
from scapy.contrib.mpls import MPLS
from scapy.layers.inet6 import IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, PadN

import agreement

START = 1_700_000_000.0
ETHERNET, RAW, NULL, PPP_LINK, COOKED, COOKED2, LOOP = 1, 101, 0, 9, 113, 276, 108
CLIENT, SERVER = "10.1.0.1", "10.2.0.1"


class Talk:
    """A conversation as it is captured at the client: packets with their times."""

    def __init__(self, dice, port=None, options=True, mss=1448, rtt=None, first=(1000, 5000), ecn=False, tick=1000, window=None):
        self.dice, self.packets, self.now = dice, [], 0.0
        self.port = port or dice.randint(20000, 60000)
        self.options, self.mss, self.rtt = options, mss, rtt or dice.choice([0.005, 0.02, 0.07])
        self.first, self.ecn, self.tick = first, ecn, tick
        self.ids = [dice.randint(1, 1000), dice.randint(1, 1000)]
        self.echo = [0, 0]
        self.next, self.window = [0, 0], window or (500 if options else 65000)

    def add(self, client, flags, seq=None, ack=None, length=0, win=None, at=None, options=None, sack=(), **fields):
        """One packet; numbers count from 0 behind the SYNs."""
        at = self.now if at is None else at
        me = 0 if client else 1
        seq, ack = self.next[me] if seq is None else seq, self.next[1 - me] if ack is None else ack
        ticks = int(at * self.tick) + 100 * (me + 1)
        if options is None:
            options = [("NOP", None), ("NOP", None), ("Timestamp", (ticks, self.echo[1 - me]))] if self.options else []
            if sack and self.options:
                options += [("NOP", None), ("NOP", None), ("SAck", tuple((self.first[1 - me] + edge) % 2**32 for edge in sack))]
        self.echo[me] = ticks
        win = self.window if win is None else win
        self.ids[me] = (self.ids[me] + 1) % 65536
        ports = (self.port, 80) if client else (80, self.port)
        packet = TCP(sport=ports[0], dport=ports[1], flags=flags, seq=(self.first[me] + seq) % 2**32, window=win,
                     ack=(self.first[1 - me] + ack) % 2**32 if "A" in flags else 0, options=options) / Raw(b"x" * length)
        addresses = (CLIENT, SERVER) if client else (SERVER, CLIENT)
        ends = {"src": addresses[0], "dst": addresses[1], "id": self.ids[me], "flags": "DF", "ttl": 64 if client else 57}
        self.packets.append([at, IP(**{**ends, **fields}) / packet])
        taken = length + ("S" in flags) + ("F" in flags)
        self.next[me] = max(self.next[me], seq + taken)
        return self

    def syn(self, client=True, flags="S", at=None, win=65535, extra=(), **fields):
        options = [("MSS", self.mss + 12)]
        if self.options:
            stamp = (int((self.now if at is None else at) * self.tick) + 100 * (1 if client else 2), self.echo[1 if client else 0])
            self.echo[0 if client else 1] = stamp[0]
            options += [("SAckOK", b""), ("Timestamp", stamp), ("NOP", None), ("WScale", 7)]
        return self.add(client, flags, seq=-1, ack=fields.pop("ack", 0), win=win, options=options + list(extra), at=at, **fields)

    def open(self, server_flags="SA", flags="S"):
        self.syn(flags=flags)
        self.now += self.rtt
        self.syn(client=False, flags=server_flags)
        self.now += 0.0001
        return self.add(True, "A")

    def bulk(self, count, window=10, lost=(), size=None, early=True):
        """Rounds of a window each; what is lost is repaired by SACK a round trip later."""
        size, base, sent = size or self.mss, self.next[0], 0
        codepoint = {"tos": 2} if self.ecn else {}
        while sent < count:
            number, start = min(window, count - sent), self.now
            for i in range(number):
                self.add(True, "A", seq=base + (sent + i) * size, length=size, at=start + i * 1e-4, **codepoint)
            gone = [i for i in range(number) if sent + i in lost]
            whole = gone[0] if gone else number
            for i in range(1, whole, 2):
                self.add(False, "A", ack=base + (sent + i + 1) * size, at=start + self.rtt + i * 1e-4)
            for i in range(whole + 1, number):
                if i not in gone:
                    # Blocks of what arrived behind the first gap, the newest first.
                    runs = [list(run) for _, run in itertools.groupby(sorted(set(range(whole + 1, i + 1)) - set(gone)), key=lambda x, c=itertools.count(): x - next(c))]
                    blocks = [base + (sent + edge) * size for run in runs[::-1][:3] for edge in (run[0], run[-1] + 1)]
                    self.add(False, "A", ack=base + (sent + whole) * size, at=start + self.rtt + i * 1e-4, sack=blocks)
            self.now = start + self.rtt + number * 1e-4
            if gone:
                for i in gone:
                    self.now += 1e-4
                    self.add(True, "A", seq=base + (sent + i) * size, length=size, **codepoint)
                self.now += self.rtt
            if gone or number % 2:
                self.add(False, "A", ack=base + (sent + number) * size)
            self.now += 1e-4
            sent += number
        return self

    def close(self):
        self.add(True, "FA")
        self.now += self.rtt
        self.add(False, "FA")
        self.now += 0.0001
        return self.add(True, "A")

    def wait(self, seconds):
        self.now += seconds
        return self


def plain(dice, count=None, **how):
    return Talk(dice, **how).open().bulk(count or dice.randint(60, 200)).close()


def framed(packets, wrap=None):
    """Ethernet frames, in a wrapping."""
    wrap = wrap or (lambda packet, _: Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / packet)
    return [(at, bytes(wrap(packet, packet[IP].src == CLIENT if IP in packet else True))) for at, packet in packets]


def pcap(frames, link=ETHERNET, snap=None, nano=False, order="<"):
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    out = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snap or 262144, link)]
    unit = 1_000_000_000 if nano else 1_000_000
    for at, frame, *wire in sorted(frames, key=lambda entry: entry[0]) if all(len(f) == 2 for f in frames) else frames:
        ticks = round((START + at) * 1e6) * (unit // 1_000_000)
        kept = frame[:snap] if snap else frame
        out.append(struct.pack(order + "IIII", ticks // unit, ticks % unit, len(kept), wire[0] if wire else len(frame)) + kept)
    return b"".join(out)


class Ng:
    """A pcapng file, block by block."""

    def __init__(self, order="<"):
        self.order, self.out = order, b""
        self.section()

    def block(self, kind, body):
        body += b"\0" * (-len(body) % 4)
        length = 12 + len(body)
        self.out += struct.pack(self.order + "II", kind, length) + body + struct.pack(self.order + "I", length)
        return self

    def options(self, pairs):
        body = b"".join(struct.pack(self.order + "HH", code, len(value)) + value + b"\0" * (-len(value) % 4) for code, value in pairs)
        return body + struct.pack(self.order + "HH", 0, 0) if pairs else b""

    def section(self):
        return self.block(0x0A0D0D0A, struct.pack(self.order + "IHHq", 0x1A2B3C4D, 1, 0, -1))

    def interface(self, link=ETHERNET, resolution=None, offset=None, snap=0):
        pairs = [(9, bytes([resolution]))] if resolution is not None else []
        pairs += [(14, struct.pack(self.order + "q", offset))] if offset is not None else []
        return self.block(1, struct.pack(self.order + "HHI", link, 0, snap) + self.options(pairs))

    def packet(self, at, frame, number=0, unit=1_000_000, offset=0, pairs=()):
        ticks = round((START - offset + at) * 1e6) * unit // 1_000_000
        body = struct.pack(self.order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame)) + frame
        return self.block(6, body + b"\0" * (-len(frame) % 4) + self.options(pairs))

    def simple(self, frame):
        return self.block(3, struct.pack(self.order + "I", len(frame)) + frame)

    def all(self, frames, **how):
        for at, frame in sorted(frames):
            self.packet(at, frame, **how)
        return self


class Situation(typing.NamedTuple):
    make: typing.Callable
    must: set
    may: set
    note: str
    why: dict


SITUATIONS = {}


def situation(must=(), may=(), note="", **why):
    """Registers a function of a die that gives the bytes of a capture; `why`: what makes a program's figures others."""
    def keep(function):
        SITUATIONS[function.__name__] = Situation(function, set(must), set(must) | set(may), note, why)
        return function
    return keep


# ---- Wrappings -------------------------------------------------------------------------------------------------------

def outer(client):
    ends = ("192.0.2.1", "192.0.2.2") if client else ("192.0.2.2", "192.0.2.1")
    return Ether(src="02:00:00:00:00:11", dst="02:00:00:00:00:12") / IP(src=ends[0], dst=ends[1])


INNER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
WRAPPINGS = {
    "vlan": lambda p, c: INNER / Dot1Q(vlan=7) / p,
    "qinq": lambda p, c: INNER / Dot1AD(vlan=7) / Dot1Q(vlan=9) / p,
    "qinq_8100_twice": lambda p, c: INNER / Dot1Q(vlan=7) / Dot1Q(vlan=9) / p,
    "vxlan": lambda p, c: outer(c) / UDP(sport=5555, dport=4789) / VXLAN(vni=5) / INNER / p,
    "vxlan_8472": lambda p, c: outer(c) / UDP(sport=5555, dport=8472) / VXLAN(vni=5) / INNER / p,
    "vxlan_vlan": lambda p, c: outer(c) / UDP(sport=5555, dport=4789) / VXLAN(vni=5) / INNER / Dot1Q(vlan=3) / p,
    "geneve": lambda p, c: outer(c) / UDP(sport=5555, dport=6081) / GENEVE(vni=5, proto=0x6558) / INNER / p,
    "gre": lambda p, c: outer(c) / GRE() / p,
    "gre_key_sequence": lambda p, c: outer(c) / GRE(key_present=1, key=7, seqnum_present=1, sequence_number=1) / p,
    "gre_ethernet": lambda p, c: outer(c) / GRE(proto=0x6558) / INNER / p,
    "mpls": lambda p, c: INNER / MPLS(label=16, s=1, ttl=60) / p,
    "mpls_two_labels": lambda p, c: INNER / MPLS(label=16, s=0, ttl=60) / MPLS(label=17, s=1, ttl=60) / p,
    "mpls_in_gre": lambda p, c: outer(c) / GRE(proto=0x8847) / MPLS(label=16, s=1, ttl=60) / p,
    "pppoe": lambda p, c: INNER / PPPoE(sessionid=3) / PPP(proto=0x21) / p,
    "gtp": lambda p, c: outer(c) / UDP(sport=2152, dport=2152) / GTP_U_Header(teid=1) / p,
    "ip_in_ip": lambda p, c: outer(c) / p,
    "ip_in_ip6": lambda p, c: INNER / IPv6(src="2001:db8::1" if c else "2001:db8::2", dst="2001:db8::2" if c else "2001:db8::1", nh=4) / p,
    "vxlan_in_gre": lambda p, c: outer(c) / GRE() / IP(src="198.51.100.1", dst="198.51.100.2") / UDP(sport=5, dport=4789) / VXLAN(vni=1) / INNER / p,
    "snap": lambda p, c: Raw(bytes.fromhex("020000000002020000000001") + struct.pack(">H", min(1500, len(p) + 8)) + bytes.fromhex("aaaa030000000800")) / p,
}
for wrapping in WRAPPINGS:
    def wrapped(dice, wrap=WRAPPINGS[wrapping]):
        return pcap(framed(Talk(dice, mss=1300).open().bulk(80, lost={33}).close().packets, wrap))
    wrapped.__name__ = wrapping
    situation(may={"losses"})(wrapped)


# ---- Files -----------------------------------------------------------------------------------------------------------

@situation(tcptrace="tcptrace stops at another section")
def sections(dice):
    frames = framed(plain(dice).packets)
    ng, third = Ng(), len(frames) // 3
    for part in (frames[:third], frames[third:2 * third], frames[2 * third:]):
        ng.section().interface().all(part)
    return ng.out


@situation()
def interfaces_of_two_resolutions(dice):
    ng = Ng().interface(resolution=6).interface(resolution=9)
    for number, (at, frame) in enumerate(sorted(framed(plain(dice).packets))):
        ng.packet(at, frame, number=number % 2, unit=(1_000_000, 1_000_000_000)[number % 2])
    return ng.out


@situation()
def binary_resolution(dice):
    return Ng().interface(resolution=0x80 | 20).all(framed(plain(dice).packets), unit=1 << 20).out


@situation(tcptrace="tcptrace does not add the interface's offset of time")
def resolution_of_a_second_offset(dice):
    return Ng().interface(offset=1_600_000_000).all(framed(plain(dice).packets), offset=1_600_000_000).out


@situation()
def big_endian_ng(dice):
    return Ng(">").interface().all(framed(plain(dice).packets)).out


@situation(tcptrace="tcptrace stops at a section of the other order")
def sections_of_both_orders(dice):
    frames = framed(plain(dice).packets)
    half = len(frames) // 2
    return Ng(">").interface().all(frames[:half]).out + Ng("<").interface().all(frames[half:]).out


@situation(note="simple packets have no time: nothing that needs one is told")
def simple_packets(dice):
    ng = Ng().interface()
    for _, frame in framed(plain(dice, 60).packets):
        ng.simple(frame)
    return ng.out


@situation()
def other_blocks_between(dice):
    ng = Ng().interface()
    for number, (at, frame) in enumerate(sorted(framed(plain(dice).packets))):
        ng.packet(at, frame, pairs=[(1, b"a comment"), (2, struct.pack("<I", 1 + number % 2))])
        if number == 5:
            ng.block(4, struct.pack("<HH", 1, 9) + b"\x0a\x01\x00\x01host\0" + b"\0" * 3 + struct.pack("<HH", 0, 0))
            ng.block(10, struct.pack("<II", 0x544C534B, 8) + b"CLIENT_R")
            ng.block(0x0BAD, struct.pack("<I", 32473) + b"custom")
            ng.block(0x7777, b"unknown!")
    return ng.block(5, struct.pack("<III", 0, 0, 0) + ng.options([(4, struct.pack("<Q", 900)), (5, struct.pack("<Q", 7))])).out


@situation()
def nanoseconds(dice):
    return pcap(framed(plain(dice).packets), nano=True)


@situation()
def big_endian(dice):
    return pcap(framed(plain(dice).packets), order=">")


@situation()
def snap_68(dice):
    return pcap(framed(plain(dice, options=False).packets), snap=68)


@situation(note="54 octets end before the options", tshark="tshark analyses no sequence numbers where the options are cut")
def snap_54(dice):
    return pcap(framed(plain(dice).packets), snap=54)


@situation(note="TCP's first 16 octets", tshark="tshark analyses no sequence numbers where the header is cut")
def snap_50(dice):
    return pcap(framed(plain(dice, options=False).packets), snap=50)


def linked(link, head):
    def made(dice):
        return pcap([(at, head(packet) + bytes(packet)) for at, packet in plain(dice).packets], link)
    return made


for name, link, head in [
    ("raw_ip", RAW, lambda p: b""),
    ("bsd_loopback", NULL, lambda p: struct.pack("<I", 2)),
    ("openbsd_loop", LOOP, lambda p: struct.pack(">I", 2)),
    ("ppp", PPP_LINK, lambda p: bytes.fromhex("ff030021")),
    ("ppp_without_address", PPP_LINK, lambda p: bytes.fromhex("0021")),
    ("cooked", COOKED, lambda p: bytes.fromhex("0004000100060200000000010000" "0800")),
    ("cooked_2", COOKED2, lambda p: bytes.fromhex("0800" "0000" "00000001" "0001" "04" "06" "0200000000010000")),
]:
    function = linked(link, head)
    function.__name__ = name
    situation()(function)


# ---- Headers ---------------------------------------------------------------------------------------------------------

@situation(must={"offloads"}, note="bundles")
def bundles(dice):
    return pcap(framed(Talk(dice, window=4000).open().bulk(40, window=2, size=dice.choice([43440, 64240, 26064])).close().packets))


@situation(must={"offloads"}, note="IP's length is 0: segmentation left to the interface", tcptrace="tcptrace does not take a length of 0 for that of the frame")
def bundles_without_length(dice):
    packets = Talk(dice, window=4000).open().bulk(30, window=2, size=43440).close().packets
    for _, packet in packets:
        if len(packet) > 2000:
            packet[IP].len = 0
    return pcap(framed(packets))


@situation()
def padded_frames(dice):
    return pcap([(at, frame.ljust(60, b"\0")) for at, frame in framed(plain(dice, options=False).packets)])


@situation()
def frames_with_check_sequence(dice):
    return pcap([(at, frame.ljust(60, b"\0") + b"\1\2\3\4") for at, frame in framed(plain(dice).packets)])


@situation()
def ip_options(dice):
    packets = plain(dice).packets
    for _, packet in packets:
        packet[IP].options = [b"\x94\x04\0\0"]
    return pcap(framed(packets))


def six(packets, extension):
    out = []
    for at, packet in packets:
        ends = ("2001:db8:1::1", "2001:db8:2::1") if packet.src == CLIENT else ("2001:db8:2::1", "2001:db8:1::1")
        out.append((at, bytes(INNER / extension(IPv6(src=ends[0], dst=ends[1], hlim=packet.ttl)) / packet[TCP])))
    return out


@situation()
def ipv6(dice):
    return pcap(six(plain(dice).packets, lambda head: head))


@situation(tcptrace="tcptrace takes the extension headers for payload")
def ipv6_extensions(dice):
    return pcap(six(plain(dice).packets, lambda head: head / IPv6ExtHdrHopByHop(options=PadN(optdata=b"\0" * 4)) / IPv6ExtHdrDestOpt(options=PadN(optdata=b"\0" * 4))))


@situation(note="later fragments count by what is sent or acknowledged behind them", tcptrace="tcptrace does not count later fragments")
def fragments(dice):
    packets = []
    for at, packet in plain(dice, 60).packets:
        packet.flags = 0
        parts = fragment(packet.__class__(bytes(packet)), fragsize=800) if len(packet) > 1000 and dice.random() < 0.2 else [packet]
        packets += [(at + i * 1e-6, part) for i, part in enumerate(parts)]
    return pcap(framed(packets))


@situation()
def icmp_beside(dice):
    packets = plain(dice).packets
    quoted = bytes(packets[10][1])[:28]
    packets.append((packets[10][0] + 1e-4, IP(src="192.0.2.9", dst=CLIENT) / ICMP(type=11, code=0) / Raw(quoted)))
    return pcap(framed(packets))


def with_options(dice, options, on="data"):
    packets = plain(dice, 80).packets
    for _, packet in packets:
        is_syn = bool(packet[TCP].flags & 2)
        if is_syn == (on == "syn"):
            packet[TCP].options = options(packet[TCP].options)
            packet[TCP].dataofs = None
    return pcap(framed(packets))


def raw_options(packets, octets):
    """Frames whose TCP options are these octets, as they are."""
    out = []
    for at, packet in packets:
        flat = bytearray(bytes(packet))
        if not packet[TCP].flags & 2:
            head, payload = flat[:40], bytes(packet[TCP].payload)
            head[32] = (5 + len(octets) // 4) << 4
            flat = head + octets + payload
            flat[2:4] = struct.pack(">H", len(flat))
        out.append((at, bytes(INNER / Raw(bytes(flat)))))
    return out


for name, octets in [
    ("option_of_length_0", bytes([8, 0, 1, 1])), ("option_of_length_1", bytes([8, 1, 1, 1])),
    ("option_too_long", bytes([8, 40, 1, 1])), ("sack_of_odd_length", bytes([5, 7, 0, 0, 0, 0, 0, 1])),
    ("unknown_options", bytes([253, 4, 0, 1, 76, 4, 0, 0])), ("end_of_options_first", bytes([0, 8, 10, 3])),
    ("timestamps_twice", bytes([1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 1, 1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 1])),
]:
    def odd(dice, octets=octets):
        return pcap(raw_options(plain(dice, 80, options=False).packets, octets))
    odd.__name__ = name
    situation()(odd)


@situation()
def mss_twice(dice):
    return with_options(dice, lambda options: options + [("MSS", 1460), ("NOP", None), ("NOP", None)], on="syn")


@situation(must={"offloads"}, note="the MSS is 536 then (RFC 9293, 3.7.1), and these packets are larger")
def no_mss(dice):
    return with_options(dice, lambda options: [one for one in options if one[0] != "MSS"], on="syn")


@situation(note="a scale above 14 is 14 (RFC 7323, 2.3)")
def scale_15(dice):
    return with_options(dice, lambda options: [("WScale", 15) if one[0] == "WScale" else one for one in options], on="syn")


@situation(must={"losses"})
def four_sack_blocks(dice):
    return pcap(framed(Talk(dice).open().bulk(80, window=20, lost={21, 24, 27, 30}).close().packets))


@situation()
def timestamps_go_back(dice):
    talk = Talk(dice).open().bulk(40)
    talk.tick = -1000
    return pcap(framed(talk.bulk(40).close().packets))


# ---- TCP -------------------------------------------------------------------------------------------------------------

@situation(must={"losses"})
def losses(dice):
    lost = {n for n in range(190) if n % 10 < 6 and dice.random() < 0.05} | {2}
    return pcap(framed(Talk(dice).open().bulk(200, lost=lost).close().packets))


@situation(must={"timeouts"}, may={"losses"})
def a_timeout(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(40)
    talk.add(True, "A", length=1448).wait(0.01)
    # A probe, and the timer.
    talk.wait(0.3).add(True, "A", seq=talk.next[0] - 1448, length=1448)
    talk.wait(0.6).add(True, "A", seq=talk.next[0] - 1448, length=1448)
    talk.wait(talk.rtt).add(False, "A")
    return pcap(framed(talk.wait(0.001).bulk(40).close().packets))


@situation()
def reordering(dice):
    packets = plain(dice, 120).packets
    # On the way from server to client the acknowledgements overtake one another.
    places = [n for n, (_, p) in enumerate(packets) if p.src == SERVER and n > 5]
    for n in places[::9]:
        packets[n][0] += 0.00025
    return pcap(framed(packets))


@situation()
def copies(dice):
    packets = plain(dice, 120).packets
    return pcap(framed([[at + shift, p] for at, p in packets for shift in (0, 3e-6)]))


@situation(must={"ecn_marks"})
def ecn_marked(dice):
    talk = Talk(dice, ecn=True).open("SAE", "SEC").bulk(60)
    for _, packet in talk.packets[30:40]:
        if packet.src == CLIENT and len(packet) > 200:
            packet.tos = 3
    talk.add(False, "AE")
    return pcap(framed(talk.bulk(40).close().packets))


@situation(must={"ecn_stripped"})
def ecn_lost(dice):
    return pcap(framed(Talk(dice).open("SAE", "SEC").bulk(60).close().packets))


@situation()
def ecn_refused(dice):
    return pcap(framed(Talk(dice).open("SA", "SEC").bulk(60).close().packets))


def shut(dice, probe):
    talk = Talk(dice).open().bulk(60)
    talk.add(False, "A", win=0).wait(0.2)
    for n in range(dice.randint(3, 5)):
        probe(talk)
        talk.wait(talk.rtt).add(False, "A", win=0)
        talk.wait(0.3 * 2**n)
    talk.add(False, "A", win=500).wait(0.001)
    return pcap(framed(talk.bulk(40).close().packets))


@situation(must={"receiver_stalls"})
def window_shut(dice):
    return shut(dice, lambda talk: talk.add(True, "A", seq=talk.next[0] - 1))


@situation(must={"receiver_stalls"})
def window_shut_probed_by_octets(dice):
    next_octet = lambda talk: (talk.add(True, "A", length=1), talk.next.__setitem__(0, talk.next[0] - 1))
    return shut(dice, next_octet)


@situation()
def half_close(dice):
    talk = Talk(dice).open().bulk(20).add(True, "FA").wait(0.02).add(False, "A")
    for n in range(60):
        talk.wait(0.001).add(False, "A", length=1448)
        talk.wait(0.00001).add(True, "A")
    talk.wait(0.001).add(False, "FA").add(True, "A")
    return pcap(framed(talk.packets))


@situation()
def reset_by_server(dice):
    return pcap(framed(Talk(dice).open().bulk(60).add(False, "RA", win=0).packets))


@situation()
def reset_by_client_then_data(dice):
    talk = Talk(dice).open().bulk(60).add(True, "RA", win=0)
    return pcap(framed(talk.wait(talk.rtt / 2).add(False, "A", length=100).wait(0.00001).add(True, "R", ack=0, win=0).packets))


@situation()
def port_used_again(dice):
    port = dice.randint(20000, 60000)
    first = plain(dice, 60, port=port)
    second = plain(dice, 60, port=port, first=(900_000, 7_000_000))
    return pcap(framed(first.packets + [[at + first.now + 2, p] for at, p in second.packets]))


@situation()
def port_used_again_after_reset(dice):
    port = dice.randint(20000, 60000)
    first = Talk(dice, port=port).open().bulk(40).add(False, "R", ack=0)
    second = plain(dice, 60, port=port, first=(5_000_000, 900))
    return pcap(framed(first.packets + [[at + first.now + 0.01, p] for at, p in second.packets]))


@situation()
def simultaneous_open(dice):
    talk = Talk(dice, rtt=0.02)
    talk.syn()
    talk.wait(0.005).syn(client=False)
    talk.wait(0.0001).syn(flags="SA")
    talk.wait(0.01).syn(client=False, flags="SA")
    return pcap(framed(talk.wait(0.001).bulk(60).close().packets))


@situation()
def keep_alives(dice):
    talk = Talk(dice).open().bulk(20)
    for _ in range(4):
        talk.wait(60).add(True, "A", seq=talk.next[0] - 1)
        talk.wait(talk.rtt).add(False, "A")
    return pcap(framed(talk.bulk(20).close().packets))


@situation(note="with an octet of what was acknowledged")
def keep_alives_of_an_octet(dice):
    talk = Talk(dice).open().bulk(20)
    for _ in range(4):
        talk.wait(60).add(True, "A", seq=talk.next[0] - 1, length=1)
        talk.wait(talk.rtt).add(False, "A")
    return pcap(framed(talk.bulk(20).close().packets))


@situation()
def numbers_wrap(dice):
    return pcap(framed(plain(dice, 120, first=(2**32 - 50_000, 2**32 - 10)).packets))


@situation()
def timestamps_wrap(dice):
    talk = Talk(dice)
    talk.open().bulk(120).close()
    for _, packet in talk.packets:
        packet[TCP].options = [(k, tuple((x - 250) % 2**32 for x in v)) if k == "Timestamp" else (k, v) for k, v in packet[TCP].options]
    return pcap(framed(talk.packets))


@situation(must={"lost_syns"})
def lost_syn(dice):
    talk = Talk(dice).syn().wait(1)
    return pcap(framed(talk.open().bulk(60).close().packets))


@situation(must={"lost_syns"})
def syn_with_fewer_options(dice):
    talk = Talk(dice).syn().wait(1)
    talk.options, talk.window = False, 65000
    return pcap(framed(talk.open().bulk(60).close().packets))


@situation(note="no finding: the first lines say it", tshark="the others time a SYN to its reset", tcptrace="the others time a SYN to its reset")
def refused(dice):
    return pcap(framed(Talk(dice).syn().wait(0.02).add(False, "RA", ack=0, win=0, options=[]).packets))


@situation()
def fast_open(dice):
    talk = Talk(dice)
    talk.syn(length=500).wait(talk.rtt).syn(client=False, flags="SA", ack=500)
    return pcap(framed(talk.wait(0.0001).add(True, "A").bulk(60).close().packets))


@situation()
def fast_open_refused(dice):
    talk = Talk(dice)
    talk.syn(length=500).wait(talk.rtt).syn(client=False, flags="SA", ack=0)
    talk.wait(0.0001).add(True, "A", seq=0, length=500).wait(talk.rtt).add(False, "A")
    return pcap(framed(talk.wait(0.0001).bulk(60).close().packets))


@situation(must={"delayed_ack_nagle"})
def small_writes(dice):
    talk = Talk(dice, rtt=0.005).open()
    for _ in range(dice.randint(10, 30)):
        talk.add(True, "PA", length=80).wait(talk.rtt + 0.04).add(False, "A")
        talk.wait(0.00005).add(True, "PA", length=60).wait(talk.rtt).add(False, "PA", length=200)
        talk.wait(0.0001)
    return pcap(framed(talk.close().packets))


@situation()
def requests_and_answers(dice):
    talk = Talk(dice).open()
    for _ in range(60):
        talk.add(True, "PA", length=dice.randint(20, 300)).wait(talk.rtt).add(False, "PA", length=dice.randint(20, 1400))
        talk.wait(dice.choice([0.001, 0.05])).add(True, "A").wait(0.001)
    return pcap(framed(talk.close().packets))


@situation()
def urgent(dice):
    packets = plain(dice, 80).packets
    for _, packet in packets[40:44]:
        if len(packet) > 200:
            packet[TCP].flags |= 0x20
            packet[TCP].urgptr = 5
    return pcap(framed(packets))


@situation()
def pushes(dice):
    packets = plain(dice, 80).packets
    for _, packet in packets[5::2]:
        packet[TCP].flags |= 8
    return pcap(framed(packets))


@situation(note="a number of another world moves nothing", tshark="tshark takes the number for true, and what follows for sent again")
def acknowledgement_of_nothing(dice):
    talk = Talk(dice).open().bulk(40)
    talk.add(False, "A", ack=700_000_000)
    return pcap(framed(talk.bulk(40).close().packets))


@situation()
def second_answer_to_the_syn(dice):
    talk = Talk(dice).open()
    other = Talk(dice, port=talk.port, first=(1000, 77_000_000), rtt=talk.rtt)
    other.syn(client=False, flags="SA", at=talk.now + 0.001)
    return pcap(framed(talk.packets + other.packets + talk.wait(0.002).bulk(60).close().packets[3:]))


@situation(must={"injected_reset"})
def injected_reset(dice):
    talk = Talk(dice).open().bulk(40)
    talk.add(False, "R", seq=talk.next[1] + 3, ack=0, ttl=200)
    return pcap(framed(talk.bulk(40).close().packets))


@situation(may={"capture_incomplete"})
def begun_late(dice):
    return pcap(framed(plain(dice, 200).packets[30:]))


@situation()
def begun_late_without_options(dice):
    return pcap(framed(plain(dice, 200, options=False).packets[30:]))


@situation(may={"capture_incomplete"})
def one_sided(dice):
    return pcap(framed([[at, p] for at, p in plain(dice, 120).packets if p.src == CLIENT]))


@situation(may={"capture_incomplete"})
def acknowledgements_alone(dice):
    return pcap(framed([[at, p] for at, p in plain(dice, 120).packets if p.src == SERVER]))


@situation(must={"capture_incomplete"})
def holes_in_the_capture(dice):
    packets = plain(dice, 200).packets
    return pcap(framed([one for n, one in enumerate(packets) if n < 4 or dice.random() > 0.05]))


def stepped(dice, seconds):
    packets = plain(dice, 160).packets
    half = len(packets) // 2
    return pcap([(at + (seconds if n >= half else 0), frame, len(frame)) for n, (at, frame) in enumerate(framed(packets))])


@situation(note="the others take the time as it stands")
def clock_back(dice):
    return stepped(dice, -dice.choice([2, 60, 3600]))


@situation(note="the others take the time as it stands", tcptrace="tcptrace begins another connection behind a long silence, which is the clock's here")
def clock_forward(dice):
    return stepped(dice, dice.choice([60, 3600, 86400]))


@situation(note="round trips over both clocks are wrong by what lies between their first packets", tshark="tshark takes the times as they stand", tcptrace="tcptrace begins another connection behind a long silence")
def interfaces_of_two_clocks(dice):
    ng, behind = Ng().interface().interface(), dice.choice([5, 3600])
    for number, (at, frame) in enumerate(sorted(framed(plain(dice).packets))):
        ng.packet(at - behind * (number % 2), frame, number=number % 2)
    return ng.out


@situation(must={"connection_died"})
def died(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(40)
    talk.add(True, "A", length=700)
    for n in range(8):
        talk.wait(0.22 * 2**n).add(True, "A", seq=talk.next[0] - 700, length=700)
    return pcap(framed(talk.packets))


@situation(must={"wrong_checksums"}, may={"losses"})
def damaged(dice):
    packets = Talk(dice).open().bulk(80, lost={33}).close().packets
    first = next(p for _, p in packets if bytes(p[TCP].payload) and p[TCP].seq == 1000 + 33 * 1448)
    first[TCP].chksum = 0x1234
    return pcap(framed(packets))


@situation(note="left to the interface")
def sums_left_out(dice):
    packets = plain(dice, 80).packets
    for _, packet in packets:
        if packet.src == CLIENT:
            packet[TCP].chksum = 0
    return pcap(framed(packets))


@situation()
def several_flows(dice):
    talks = [plain(dice, 40 + n, port=3000 + n) for n in range(6)]
    return pcap(framed(sorted((one for talk in talks for one in talk.packets), key=lambda one: one[0])))


@situation()
def data_with_the_answer_to_the_syn(dice):
    talk = Talk(dice)
    talk.syn().wait(talk.rtt).syn(client=False, flags="SA", length=300)
    return pcap(framed(talk.wait(0.0001).add(True, "A").bulk(60).close().packets))


@situation()
def both_ways(dice):
    talk = Talk(dice).open()
    for _ in range(30):
        for client in (True, False):
            talk.wait(0.0005).add(client, "A", length=1448)
            talk.wait(0.0005).add(client, "A", length=1448)
            talk.wait(talk.rtt if client else 0.0005).add(not client, "A")
    return pcap(framed(talk.close().packets))


# ---- Comparison ------------------------------------------------------------------------------------------------------

def names(held_back):
    """Every third one is held back."""
    return [name for number, name in enumerate(SITUATIONS) if (number % 3 == 2) == held_back]


def judge(name, capture):
    """What of it is not as it must be."""
    _, must, may, note, why = SITUATIONS[name]
    told = agreement.analysis(capture)
    counted = agreement.output("capinfos", "-Mc", "-T", "-r", capture).split()[-1]
    found = {finding["kind"] for flow in told["flows"] for finding in flow["findings"]}
    wrong = []
    if int(counted) != told["capture"]["packets"]:
        wrong.append(f"{told['capture']['packets']} packets, capinfos {counted}")
    wrong += [f"lacks {kind}" for kind in sorted(must - found)] + [f"says {kind}" for kind in sorted(found - may)]
    counts, different = agreement.compare(capture)
    different = [(*row[:-1], why.get(row[4], row[-1])) for row in different]
    return wrong, counts, different, note


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-back", action="store_true", help="the third that is looked at seldom")
    parser.add_argument("--only", action="append", help="this situation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="directory for the captures")
    args = parser.parse_args()
    compared, all_wrong, notes = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        keep = args.keep or pathlib.Path(scratch)
        keep.mkdir(parents=True, exist_ok=True)
        for name in args.only or names(args.held_back):
            capture = keep / f"{name}.cap"
            capture.write_bytes(SITUATIONS[name].make(random.Random(f"{args.seed} {name}")))
            wrong, counts, different, note = judge(name, capture)
            compared.append((name, counts, different))
            all_wrong += [f"{name}: {what}" for what in wrong]
            notes += [f"- {name}: {note}"] if note else []
    print(agreement.told(compared), *notes, "", sep="\n")
    sys.exit(agreement.concluded("situations", compared, all_wrong, "words or counts"))


if __name__ == "__main__":
    main()
