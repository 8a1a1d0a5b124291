#!/usr/bin/env python3
"""Made-up captures of more than thirty styles of capturing, and whether `longfat analyze` says what is known of them.

    python3 -m venv venv && venv/bin/pip install scapy
    venv/bin/python bench/analyze/styles.py
    venv/bin/python bench/analyze/styles.py --only vpn_in_vpn --keep DIR

`situations.py` is about wrappings, files and turns of TCP; this is about where and how a capture comes to be: tunnels in tunnels,
bundles of several sizes, a place in the middle, mirror ports, merged files, resets of strangers. Each style states figures that
must come out exactly (`figures`), the findings that must and may be there, and is compared with tshark and tcptrace as well.
"""

import argparse
import pathlib
import random
import struct
import sys
import tempfile
import typing

import agreement
from situations import (
    CLIENT, COOKED2, INNER, SERVER, Dot1AD, Dot1Q, Ether, GRE, IP, IPv6, MPLS, PPP, PPPoE, Raw, TCP, Talk, UDP, VXLAN, framed, outer, pcap, plain,
)
from scapy.all import ESP, IPv6ExtHdrFragment, IPv6ExtHdrRouting, fragment, fragment6
from scapy.layers.inet6 import IPv6ExtHdrDestOpt, PadN


class Style(typing.NamedTuple):
    make: typing.Callable
    must: set
    may: set
    figures: dict
    why: dict
    alone: bool


STYLES = {}
# Sums over the client's direction, the server's, or something of the whole capture.
CLIENT_SIDE, SERVER_SIDE = "client", "server"


def registrar(styles):
    """A decorator of functions of a die that give the bytes of a capture; `alone`: other programs stop at it."""
    def style(must=(), may=(), client=None, server=None, whole=None, alone=False, **why):
        def keep(function):
            figures = {CLIENT_SIDE: client or {}, SERVER_SIDE: server or {}, "whole": whole or {}}
            styles[function.__name__] = Style(function, set(must), set(must) | set(may), figures, why, alone)
            return function
        return keep
    return style


style = registrar(STYLES)
ONE_LOST = {"resent_segments": 1, "timeouts": 0, "duplicate_packets": 0, "unseen_bytes": 0}
UNSEEN = "tcptrace does not look into this"


def one_lost(dice, **how):
    return Talk(dice, mss=how.pop("mss", 1200), **how).open().bulk(80, lost={33}).close().packets


def shifted(packets, seconds):
    return [[at + seconds, packet] for at, packet in packets]


# ---- Tunnels in tunnels ----------------------------------------------------------------------------------------------

@style(may={"losses"}, client=ONE_LOST, tcptrace=UNSEEN)
def vpn_in_vpn(dice):
    wrap = lambda p, c: outer(c) / UDP(sport=9, dport=4789) / VXLAN(vni=1) / INNER / IP(src="198.51.100.1", dst="198.51.100.2") / GRE() / IP(src="203.0.113.1", dst="203.0.113.2") / p
    return pcap(framed(one_lost(dice), wrap))


@style(may={"losses"}, client=ONE_LOST, tcptrace=UNSEEN)
def pppoe_in_two_tags(dice):
    return pcap(framed(one_lost(dice), lambda p, c: INNER / Dot1AD(vlan=5) / Dot1Q(vlan=6) / PPPoE(sessionid=3) / PPP(proto=0x21) / p))


@style(may={"losses"}, client=ONE_LOST, tcptrace=UNSEEN)
def tags_on_the_way_out_only(dice):
    return pcap(framed(one_lost(dice), lambda p, c: INNER / Dot1Q(vlan=7) / p if c else INNER / p))


@style(may={"losses"}, client=ONE_LOST, tcptrace=UNSEEN)
def labels_on_the_way_back_only(dice):
    return pcap(framed(one_lost(dice), lambda p, c: INNER / p if c else INNER / MPLS(label=20, s=0) / MPLS(label=21, s=1) / p))


@style(whole={"tcp_packets": 0, "flows": 0, "not_looked_into": {"ESP (encrypted)": 40, "WireGuard (encrypted)": 20}})
def encrypted(dice):
    packets = [[n * 0.01, IP(src="192.0.2.1", dst="192.0.2.2") / ESP(spi=5, seq=n, data=bytes(300))] for n in range(40)]
    packets += [[n * 0.01 + 0.005, IP(src="192.0.2.1", dst="192.0.2.2") / UDP(sport=51820, dport=51820) / Raw(bytes([4, 0, 0, 0]) + bytes(60))] for n in range(20)]
    return pcap(framed(packets))


# ---- Bundles ---------------------------------------------------------------------------------------------------------

def gathered(dice, most):
    """As a receiver's host gathers them: neighbours of one direction become one packet of so many segments at most."""
    packets, out = Talk(dice, window=4000).open().bulk(240, window=24).close().packets, []
    packets.sort(key=lambda entry: entry[0])
    for at, packet in packets:
        size = len(packet[TCP].payload)
        if out and size and packet.src == CLIENT:
            last = out[-1][1]
            so_far = len(last[TCP].payload)
            if last.src == CLIENT and so_far and last[TCP].seq + so_far == packet[TCP].seq and so_far + size <= most * 1448:
                last[TCP].payload = Raw(bytes(so_far + size))
                continue
        out.append([at, packet])
    return pcap(framed(out))


for most in (2, 7, 17, 44):
    def gathering(dice, most=most):
        return gathered(dice, most)
    gathering.__name__ = f"gathered_by_{most}"
    style(must={"offloads"}, client={"resent_segments": 0, "payload_bytes": 240 * 1448, "data_segments": 240})(gathering)


@style(must={"offloads"}, may={"losses"}, client={"resent_segments": 2, "resent_bytes": 2 * 1448, "timeouts": 0})
def a_part_of_a_bundle_again(dice):
    talk = Talk(dice, rtt=0.02, window=4000).open().bulk(20, window=2, size=14480)
    base = talk.next[0]
    talk.add(True, "A", length=14480).wait(talk.rtt)
    talk.add(False, "A", ack=base + 2896, sack=(base + 2 * 2896, base + 14480)).wait(0.0001)
    talk.add(True, "A", seq=base + 2896, length=2896).wait(talk.rtt).add(False, "A")
    return pcap(framed(talk.wait(0.0001).bulk(20, window=2, size=14480).close().packets))


# ---- Places ----------------------------------------------------------------------------------------------------------

@style(may={"losses"}, client={"resent_segments": 1, "lost_before_segments": 1, "timeouts": 0, "unseen_bytes": 0})
def at_a_middle_box(dice):
    """One is lost before the box and one behind it."""
    talk, packets = Talk(dice, rtt=0.04), []
    talk.open().bulk(100, lost={23, 67}).close()
    seen = 0
    lost = (talk.first[0] + 23 * 1448) % 2**32
    for at, packet in talk.packets:
        is_first = packet[TCP].seq == lost and len(packet[TCP].payload) and not seen
        seen += is_first
        # From the client half of half the round trip is over; from the server the rest has to come.
        if not is_first:
            packets.append([at + (0.01 if packet.src == CLIENT else -0.01), packet])
    return pcap(framed(packets))


@style(client={"resent_segments": 0, "duplicate_packets": 0}, server={"resent_segments": 0})
def at_a_middle_box_that_is_far_from_both(dice):
    talk = Talk(dice, rtt=0.6)
    talk.open().bulk(80).close()
    return pcap(framed([[at + (0.15 if p.src == CLIENT else -0.15), p] for at, p in talk.packets]))


def merged(dice, late, spoils=lambda p: p):
    packets = plain(dice, 100, rtt=0.03).packets
    there = [[at + (late if p.src == CLIENT else -late), spoils(p.copy())] for at, p in packets]
    return pcap(framed(packets + there))


@style(client={"resent_segments": 0, "timeouts": 0}, server={"resent_segments": 0}, tshark="both places' packets are in it", tcptrace="both places' packets are in it")
def files_of_both_ends_merged(dice):
    return merged(dice, 0.014)


@style(client={"resent_segments": 0, "timeouts": 0}, server={"resent_segments": 0}, tshark="both places' packets are in it", tcptrace="both places' packets are in it")
def files_before_and_behind_a_router_merged(dice):
    def routed(packet):
        packet.ttl -= 1
        return packet
    return merged(dice, 0.0002, routed)


@style(client={"resent_segments": 0, "timeouts": 0, "payload_bytes": 80 * 1448}, tshark="each packet is there three times", tcptrace="each packet is there three times")
def every_interface_of_a_bridge(dice):
    frames = []
    for at, packet in plain(dice, 80).packets:
        for number in range(3):
            head = struct.pack(">HHIHBB8s", 0x0800, 0, 2 + number, 1, 4 if number else 0, 6, bytes(8))
            frames.append((at + number * 4e-6, head + bytes(packet)))
    return pcap(frames, COOKED2)


@style(may={"capture_incomplete"}, server={"resent_segments": 0})
def acknowledgements_with_sack_alone(dice):
    return pcap(framed([[at, p] for at, p in Talk(dice).open().bulk(120, lost={33, 71}).close().packets if p.src == SERVER]))


# ---- What is kept ----------------------------------------------------------------------------------------------------

@style(client={"resent_segments": 0, "payload_bytes": 100 * 1448, "unseen_bytes": 0}, tshark="tshark analyses no sequence numbers where the options are cut", tcptrace="tcptrace leaves out packets that are cut in the header")
def snap_lengths_that_change(dice):
    frames = framed(plain(dice, 100).packets)
    return pcap([(at, frame[:dice.choice([54, 58, 66, 80, 2000])], len(frame)) for at, frame in sorted(frames)])


@style(client={"resent_segments": 0, "payload_bytes": 70_000 * 65_160, "unseen_bytes": 0, "foreign_packets": 0}, must={"offloads"}, tcptrace="tcptrace's octets are 32 bits", may={"sender_ticks", "receiver_ticks", "window_limited"})
def numbers_that_wrap_in_bulk(dice):
    """4.6 GB in bundles, with headers alone in the file."""
    talk, frames = Talk(dice, options=True, first=(2**32 - 5000, 77), rtt=0.001), []
    talk.open()
    frames = [(at, frame, len(frame)) for at, frame in framed(talk.packets)]
    talk.packets.clear()
    talk.add(True, "A", length=1).add(False, "A")
    data, ack = (bytearray(frame[:66]) for _, frame in framed(talk.packets))
    size, window = 65_160, 4
    for n in range(70_000):
        at = talk.now + (n // window) * 0.0011 + (n % window) * 1e-5
        start = (2**32 - 5000 + n * size) % 2**32
        data[16:18], data[18:20], data[38:42] = struct.pack(">H", 52 + size), struct.pack(">H", n % 65536), struct.pack(">I", start)
        data[58:62] = struct.pack(">I", int(at * 1000) + 100)
        frames.append((at, bytes(data), 66 + size))
        if n % window == window - 1:
            at += 0.001
            ack[18:20], ack[42:46] = struct.pack(">H", n // window % 65536), struct.pack(">I", (start + size) % 2**32)
            # 66 segments of scale 7 are more than two bundles.
            ack[48:50], ack[58:66] = struct.pack(">H", 4000), struct.pack(">II", int(at * 1000) + 200, int(at * 1000) + 100)
            frames.append((at, bytes(ack), 66))
    frames.sort(key=lambda entry: entry[0])
    return pcap(frames)


@style(client={"resent_segments": 0})
def times_from_the_start_of_the_machine(dice):
    import situations
    kept, situations.START = situations.START, 0.0
    try:
        return pcap(framed(plain(dice, 100).packets))
    finally:
        situations.START = kept


@style(client={"resent_segments": 0, "duplicate_packets": 0}, whole={"flows": 1})
def a_leap_second(dice):
    """The clock is back by a second in the middle."""
    packets = plain(dice, 160).packets
    packets.sort(key=lambda entry: entry[0])
    half = len(packets) // 2
    return pcap([(at - (1.0 if n >= half else 0), frame, len(frame)) for n, (at, frame) in enumerate(framed(packets))])


# ---- TCP -------------------------------------------------------------------------------------------------------------

@style(must={"sender_idle"}, client={"resent_segments": 0, "duplicate_packets": 1, "timeouts": 0}, tshark="tshark takes a copy for sent again")
def an_old_duplicate_that_paws_discards(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(60)
    at, old = next((at, p) for at, p in talk.packets if len(p[TCP].payload) and p[TCP].seq == talk.first[0] + 30 * 1448)
    talk.wait(2).packets.append([talk.now, old.copy()])
    talk.add(False, "A", at=talk.now + 1e-5)
    return pcap(framed(talk.wait(0.01).bulk(60).close().packets))


@style(may={"losses", "timeouts", "lfp_syndrome"}, client={"resent_segments": 10, "timeouts": 1})
def sack_that_is_taken_back(dice):
    """The receiver told of nine, runs out of memory, and wants all of them again."""
    talk = Talk(dice, rtt=0.02).open().bulk(40)
    base, size = talk.next[0], talk.mss
    for n in range(10):
        talk.add(True, "A", seq=base + n * size, length=size, at=talk.now + n * 1e-4)
    talk.wait(talk.rtt + 0.001)
    for n in range(1, 10):
        talk.add(False, "A", ack=base, sack=(base + size, base + (n + 1) * size), at=talk.now + n * 1e-4)
    talk.wait(0.0015)
    # What is sent again is lost as well; then the timer, and all that was told of before.
    talk.wait(0.25).add(True, "A", seq=base, length=size).wait(talk.rtt)
    talk.add(False, "A", ack=base + size)
    for n in range(1, 10):
        talk.wait(0.0001).add(True, "A", seq=base + n * size, length=size)
        talk.wait(talk.rtt).add(False, "A", ack=base + (n + 1) * size)
    return pcap(framed(talk.wait(0.001).bulk(40).close().packets))


@style(client={"keep_alives": 4, "resent_segments": 0}, server={"keep_alives": 5, "resent_segments": 0})
def keep_alives_of_both_ends(dice):
    talk = Talk(dice).open().bulk(20).wait(0.01).add(False, "A", length=300).wait(0.02).add(True, "A")
    for n in range(9):
        client = n % 2 == 1
        talk.wait(75).add(client, "A", seq=talk.next[0 if client else 1] - 1, length=n % 3 == 0)
        talk.wait(0.02).add(not client, "A")
    return pcap(framed(talk.bulk(20).close().packets))


@style(may={"connection_died"}, client={"keep_alives": 9, "resent_segments": 0, "timeouts": 0})
def keep_alives_that_nobody_answers(dice):
    talk = Talk(dice).open().bulk(30).wait(7200)
    for n in range(9):
        talk.add(True, "A", seq=talk.next[0] - 1).wait(75)
    return pcap(framed(talk.add(True, "RA").packets))


@style(client={"resent_segments": 0}, server={"payload_bytes": 200 * 1448, "resent_segments": 0})
def half_closed_for_long(dice):
    talk = Talk(dice, rtt=0.02).open().add(True, "PA", length=300).wait(0.02).add(False, "A").add(True, "FA").wait(0.02).add(False, "A")
    for n in range(100):
        talk.wait(0.02).add(False, "A", length=1448).add(False, "A", length=1448, at=talk.now + 1e-4)
        talk.wait(0.0002).add(True, "A")
    return pcap(framed(talk.wait(0.02).add(False, "FA").wait(0.0001).add(True, "A").packets))


@style(must={"lost_syns"}, may={"timeouts"}, client={"resent_segments": 1, "resent_syns": 1}, server={"resent_segments": 1, "resent_syns": 1})
def crossing_syns_that_were_lost(dice):
    """Both ends open, both first SYNs are lost behind the capture, both come again."""
    talk = Talk(dice, rtt=0.02)
    talk.syn().wait(0.005).syn(client=False).wait(0.995).syn().wait(0.005).syn(client=False)
    talk.wait(0.0001).syn(flags="SA").wait(0.01).syn(client=False, flags="SA")
    return pcap(framed(talk.wait(0.001).bulk(60).close().packets))


@style(must={"injected_reset"}, client={"resent_segments": 0})
def a_stranger_resets_both(dice):
    """The right number, another distance; what is under way still comes."""
    talk = Talk(dice, rtt=0.05).open().bulk(60)
    talk.add(True, "A", length=1448).wait(0.01)
    talk.add(False, "R", ack=0, ttl=119, win=0, options=[])
    talk.add(True, "R", ack=0, ttl=119, win=0, options=[], at=talk.now + 1e-5)
    talk.wait(0.04).add(False, "A")
    return pcap(framed(talk.packets))


@style(client={"resent_segments": 0})
def a_reset_of_the_server_itself(dice):
    """Another TTL (a kernel's 64 behind a proxy's 57 would be 57 again): nothing else is odd."""
    return pcap(framed(Talk(dice, rtt=0.05).open().bulk(60).wait(0.01).add(False, "RA", win=0, options=[]).packets))


@style(must={"ecn_marks"}, client={"resent_segments": 0, "ce_packets": 90})
def every_packet_is_marked(dice):
    talk = Talk(dice, ecn=True, rtt=0.02).open("SAE", "SEC").bulk(90)
    for _, packet in talk.packets:
        if packet.src == CLIENT and len(packet[TCP].payload):
            packet.tos = 3
    talk.add(False, "AE")
    return pcap(framed(talk.close().packets))


def with_option(packets, on_syn, on_data):
    for _, packet in packets:
        octets = on_syn if packet[TCP].flags & 2 else on_data
        if octets:
            packet[TCP].options = packet[TCP].options + [(octets[0], octets[2:])]
            packet[TCP].dataofs = None
    return packets


@style(client={"resent_segments": 0}, whole={"flows": 2})
def two_subflows_of_mptcp(dice):
    capable = bytes([30, 12, 0x01, 0x81]) + bytes(range(8))
    join = bytes([30, 12, 0x10, 1]) + bytes(range(8))
    dss = bytes([30, 20, 0x20, 0x05]) + bytes(16)
    first = with_option(plain(dice, 60, port=5001, mss=1428).packets, capable, dss)
    second = with_option(plain(dice, 40, port=5002, mss=1428).packets, join, dss)
    return pcap(framed(first + shifted(second, 0.01)))


@style(client={"resent_segments": 0, "fast_open_segments": 0})
def fast_open_asks_for_a_cookie(dice):
    talk = Talk(dice)
    talk.syn(extra=[(34, b"")]).wait(talk.rtt).syn(client=False, flags="SA", extra=[(34, bytes(8))])
    return pcap(framed(talk.wait(0.0001).add(True, "A").bulk(60).close().packets))


@style(client={"resent_segments": 1, "fast_open_segments": 1, "resent_bytes": 400, "timeouts": 0})
def fast_open_of_which_a_part_is_taken(dice):
    talk = Talk(dice)
    talk.syn(length=1000, extra=[(34, bytes(8))]).wait(talk.rtt).syn(client=False, flags="SA", ack=600)
    talk.wait(0.0001).add(True, "A", seq=600, length=400).wait(talk.rtt).add(False, "A")
    return pcap(framed(talk.wait(0.0001).bulk(60).close().packets))


@style(client={"resent_segments": 0}, server={"resent_segments": 1}, whole={"flows": 2}, may={"losses", "timeouts"})
def a_port_used_again_at_once(dice):
    """The first connection's FIN comes once more, and then a SYN with a higher number (RFC 6191)."""
    port = dice.randint(20000, 60000)
    first = Talk(dice, port=port, rtt=0.02).open().bulk(60).close()
    first.wait(0.21).add(False, "FA", seq=first.next[1] - 1).wait(0.0001).add(True, "A")
    second = plain(dice, 60, port=port, rtt=0.02, first=(first.first[0] + first.next[0] + 64_000, 8_000_000))
    return pcap(framed(first.packets + shifted(second.packets, first.now + 0.5)))


@style(client={"resent_segments": 1, "timeouts": 0}, may={"losses"})
def a_fin_with_data_that_was_lost(dice):
    """A lone tail with the FIN: the probe repairs it."""
    talk = Talk(dice, rtt=0.02).open().bulk(60)
    talk.add(True, "PFA", length=700).wait(0.05).add(True, "PFA", seq=talk.next[0] - 701, length=700)
    talk.wait(talk.rtt).add(False, "FA").wait(0.0001).add(True, "A")
    return pcap(framed(talk.packets))


@style(client={"resent_segments": 0, "payload_bytes": 90 * 1308, "data_segments": 90})
def a_router_clamps_the_mss(dice):
    """Behind the capture: the SYN leaves with 1460, and the answer says 1320."""
    talk = Talk(dice, mss=1308, rtt=0.02)
    talk.open().bulk(90).close()
    talk.packets[0][1][TCP].options = [("MSS", 1460) if name == "MSS" else (name, value) for name, value in talk.packets[0][1][TCP].options]
    return pcap(framed(talk.packets))


@style(client={"resent_segments": 0}, server={"resent_segments": 0})
def stretch_acknowledgements(dice):
    """A receiver that answers every sixteenth."""
    talk, size = Talk(dice, rtt=0.03, window=3000).open(), 1448
    for _ in range(30):
        base, start = talk.next[0], talk.now
        for n in range(32):
            talk.add(True, "A", seq=base + n * size, length=size, at=start + n * 1e-4)
        for n in (16, 32):
            talk.add(False, "A", ack=base + n * size, at=start + talk.rtt + n * 1e-4)
        talk.wait(talk.rtt + 0.0034)
    return pcap(framed(talk.close().packets))


@style(must={"sender_idle"}, client={"resent_segments": 0})
def a_video_in_chunks(dice):
    talk = Talk(dice, rtt=0.02).open()
    for _ in range(12):
        talk.bulk(25).wait(2)
    return pcap(framed(talk.close().packets))


@style(whole={"flows": 400, "tcp_packets": 400, "flows_unanswered": 400})
def a_scan(dice):
    packets = []
    for n in range(400):
        packets += shifted(Talk(dice, port=1024 + n).syn().packets, n * 0.002)
    return pcap(framed(packets))


def six_ends(packet):
    return ("2001:db8:1::1", "2001:db8:2::1") if packet.src == CLIENT else ("2001:db8:2::1", "2001:db8:1::1")


@style(may={"losses"}, client=ONE_LOST, tcptrace=UNSEEN)
def ipv6_routing_and_options(dice):
    head = lambda p: IPv6(src=six_ends(p)[0], dst=six_ends(p)[1], hlim=p.ttl) / IPv6ExtHdrDestOpt(options=PadN(optdata=bytes(4))) / IPv6ExtHdrRouting(addresses=[], segleft=0)
    return pcap([(at, bytes(INNER / head(p) / p[TCP])) for at, p in one_lost(dice)])


@style(may={"losses"}, client=ONE_LOST, tcptrace=UNSEEN)
def ipv6_atomic_fragments(dice):
    head = lambda p, n: IPv6(src=six_ends(p)[0], dst=six_ends(p)[1], hlim=p.ttl) / IPv6ExtHdrFragment(offset=0, m=0, id=n)
    return pcap([(at, bytes(INNER / head(p, n) / p[TCP])) for n, (at, p) in enumerate(one_lost(dice))])


@style(client={"resent_segments": 0, "payload_bytes": 60 * 1448, "unseen_bytes": 0}, tshark="tshark puts fragments together, and counts the packet at its last", tcptrace=UNSEEN)
def ipv6_fragments(dice):
    frames = []
    for n, (at, p) in enumerate(plain(dice, 60).packets):
        whole = IPv6(src=six_ends(p)[0], dst=six_ends(p)[1], hlim=p.ttl) / IPv6ExtHdrFragment(id=n) / p[TCP]
        parts = fragment6(IPv6(bytes(whole)), 1000) if len(p) > 1000 else [whole]
        frames += [(at + i * 1e-6, bytes(INNER / part)) for i, part in enumerate(parts)]
    return pcap(frames)


@style(client={"resent_segments": 0, "payload_bytes": 60 * 1448}, tshark="tshark puts fragments together, and counts the packet at its last", tcptrace="tcptrace does not count later fragments")
def fragments_that_come_last_first(dice):
    """As some hosts send them: the header comes last."""
    frames = []
    for at, packet in plain(dice, 60).packets:
        packet.flags = 0
        parts = fragment(IP(bytes(packet)), fragsize=800) if len(packet) > 1000 else [packet]
        frames += [(at + i * 1e-6, bytes(INNER / part)) for i, part in enumerate(parts[::-1])]
    return pcap(frames)


@style(must={"receiver_stalls"}, client={"window_probes": 6, "resent_segments": 0, "timeouts": 0, "zero_windows": 1})
def a_window_that_stays_shut_for_minutes(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(60)
    talk.add(False, "A", win=0)
    for n in range(6):
        talk.wait(0.25 * 2**n * (4 if n > 3 else 1)).add(True, "A", seq=talk.next[0] - 1).wait(talk.rtt).add(False, "A", win=0)
    talk.wait(5).add(False, "A", win=500)
    return pcap(framed(talk.wait(0.001).bulk(40).close().packets))


@style(must={"losses"}, client={"resent_segments": 6, "timeouts": 0})
def losses_over_a_satellite(dice):
    return pcap(framed(Talk(dice, rtt=0.6, window=3000).open().bulk(300, window=60, lost={70, 75, 131, 190, 194, 250}).close().packets))


@style(client={"resent_segments": 0}, server={"resent_segments": 0, "duplicate_packets": 0})
def acknowledgements_that_answer_each_other(dice):
    """A loop of acknowledgements: each end answers the other's, with numbers that say nothing new."""
    talk = Talk(dice, rtt=0.004).open().bulk(40)
    for n in range(60):
        talk.wait(0.002).add(n % 2 == 0, "A")
    return pcap(framed(talk.bulk(20).close().packets))


# ---- Comparison ------------------------------------------------------------------------------------------------------

def side(flow, which):
    """The direction of one end: the server's port is 80."""
    is_server = lambda one: one["from"].endswith(":80")
    return [one for one in flow["directions"] if is_server(one) == (which == SERVER_SIDE)][0]


def figures(told, expected):
    """Figures that are not as they must be."""
    for which, wanted in expected.items():
        for key, value in wanted.items():
            if which != "whole":
                found = sum(side(flow, which)[key] for flow in told["flows"])
            elif key == "not_looked_into":
                found = {entry["what"]: entry["packets"] for entry in told["capture"][key]}
            else:
                found = told["totals"].get(key, told["capture"].get(key))
            if found != value:
                yield f"{which}: {key} is {found}, not {value}"


def judge(style, capture):
    told = agreement.analysis(capture)
    found = {finding["kind"] for flow in told["flows"] for finding in flow["findings"]}
    wrong = list(figures(told, style.figures))
    wrong += [f"lacks {kind}" for kind in sorted(style.must - found)] + [f"says {kind}" for kind in sorted(found - style.may)]
    if style.alone:
        return wrong, {}, []
    counted = agreement.output("capinfos", "-Mc", "-T", "-r", capture).split()[-1]
    if int(counted) != told["capture"]["packets"]:
        wrong.append(f"{told['capture']['packets']} packets, capinfos {counted}")
    counts, different = agreement.compare(capture)
    return wrong, counts, [(*row[:-1], style.why.get(row[4], row[-1])) for row in different]


def main(styles, what, about, kept_aside=0):
    """`kept_aside`: one in so many is looked at only when asked for."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=styles, help="this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="directory for the captures")
    if kept_aside:
        parser.add_argument("--held-back", action="store_true", help="those that are looked at seldom")
    args = parser.parse_args()
    is_wanted = lambda number: not kept_aside or (number % kept_aside == kept_aside - 1) == args.held_back
    compared, all_wrong = [], []
    with tempfile.TemporaryDirectory() as scratch:
        keep = args.keep or pathlib.Path(scratch)
        keep.mkdir(parents=True, exist_ok=True)
        for name in args.only or [name for number, name in enumerate(styles) if is_wanted(number)]:
            capture = keep / f"{name}.cap"
            capture.write_bytes(styles[name].make(random.Random(f"{args.seed} {name}")))
            wrong, counts, different = judge(styles[name], capture)
            compared += [] if styles[name].alone else [(name, counts, different)]
            all_wrong += [f"{name}: {one}" for one in wrong]
    print(agreement.told(compared))
    sys.exit(agreement.concluded(what, compared, all_wrong, "words or figures"))


if __name__ == "__main__":
    main(STYLES, "styles", __doc__)
