#!/usr/bin/env python3
"""Made-up captures of what the suites of other programs test, and whether `longfat analyze` says what is known of them.

    python3 -m venv venv && venv/bin/pip install scapy
    venv/bin/python bench/analyze/suites.py                # two thirds of them
    venv/bin/python bench/analyze/suites.py --held-back    # the others: look seldom

Protocols of applications, tunnels, floods, files, and odd turns of TCP, each with figures and findings that were written
down before the first look, as in `styles.py`.
"""

import struct

from situations import (
    CLIENT, COOKED, INNER, RAW, Dot1Q, Ether, IP, IPv6, MPLS, Ng, PPP, PPPoE, Raw, TCP, Talk, UDP, framed, outer, pcap,
)
from styles import ONE_LOST, UNSEEN, main, one_lost, registrar

SUITES = {}
suite = registrar(SUITES)
NOTHING_AGAIN = {"resent_segments": 0, "timeouts": 0, "unseen_bytes": 0, "duplicate_packets": 0}
OTHERS = "the others count what is sent at once for lost"


def said(talk, client, length, **how):
    """One message, and its acknowledgement a round trip later."""
    talk.add(client, "PA", length=length, **how)
    talk.wait(talk.rtt).add(not client, "A")
    return talk.wait(0.0001)


# ---- Applications ----------------------------------------------------------------------------------------------------

@suite(client={**NOTHING_AGAIN, "payload_bytes": 60, "data_packets": 60}, server={**NOTHING_AGAIN, "payload_bytes": 60})
def telnet_by_the_key(dice):
    talk = Talk(dice, rtt=0.03).open()
    for _ in range(60):
        talk.add(True, "PA", length=1).wait(0.03).add(False, "PA", length=1).wait(0.0002).add(True, "A").wait(dice.uniform(0.1, 0.3))
    return pcap(framed(talk.close().packets))


@suite(client={**NOTHING_AGAIN, "payload_bytes": 1500}, server={**NOTHING_AGAIN, "payload_bytes": 5 * 20 * 1448})
def requests_in_a_pipeline(dice):
    talk = Talk(dice, rtt=0.02).open()
    for _ in range(5):
        talk.add(True, "PA", length=300).wait(0.00002)
    for _ in range(5):
        talk.wait(0.02)
        for n in range(20):
            talk.add(False, "A", length=1448).wait(0.00012)
            if n % 2:
                talk.add(True, "A")
    return pcap(framed(talk.close().packets))


@suite(client={**NOTHING_AGAIN, "payload_bytes": 5 * 40 + 30 * 1448}, server={**NOTHING_AGAIN, "payload_bytes": 6 * 60})
def mail_with_a_banner(dice):
    talk = Talk(dice, rtt=0.05).open().wait(0.1)
    said(talk, False, 60)
    for _ in range(5):
        talk.add(True, "PA", length=40).wait(0.05).add(False, "PA", length=60).wait(0.0001).add(True, "A").wait(0.01)
    return pcap(framed(talk.bulk(30).close().packets))


@suite(whole={"flows": 2, "resent_segments": 0, "payload_bytes": 60 + 40 * 1448})
def a_server_that_calls_back(dice):
    control, data = Talk(dice, rtt=0.02, port=40001).open(), Talk(dice, rtt=0.02, port=20)
    said(control, True, 60)
    data.now = control.now
    data.open().bulk(40).close()
    for entry in data.packets:
        packet = entry[1]
        packet.src, packet.dst = packet.dst, packet.src
        port = {20: 20, 80: 40002}
        packet[TCP].sport, packet[TCP].dport = port[packet[TCP].sport], port[packet[TCP].dport]
    control.now = data.now
    return pcap(framed(control.packets + data.packets))


def with_option(packets, option, octets):
    """The same option on every packet, behind its own."""
    for _, packet in packets:
        packet[TCP].options = [*packet[TCP].options, (option, octets), ("NOP", None), ("NOP", None)]
    return packets


@suite(client={**NOTHING_AGAIN, "payload_bytes": 190, "keep_alives": 0}, server={**NOTHING_AGAIN, "payload_bytes": 190})
def signed_and_seldom(dice):
    talk = Talk(dice, rtt=0.02, options=False).open()
    for _ in range(10):
        talk.wait(30).add(True, "PA", length=19).wait(0.02).add(False, "PA", length=19).wait(0.0001).add(True, "A")
    return pcap(framed(with_option(talk.packets, 19, bytes(range(16)))))


@suite(client={**NOTHING_AGAIN, "payload_bytes": 12 * 29 * 8948}, server={"payload_bytes": 12 * 48})
def blocks_to_a_disk(dice):
    talk = Talk(dice, rtt=0.0006, mss=8948, window=8000).open()
    for _ in range(12):
        talk.bulk(29, window=29).add(False, "PA", length=48).wait(0.0001).add(True, "A").wait(0.0004)
    return pcap(framed(talk.close().packets))


@suite(may={"sender_idle"}, client={**NOTHING_AGAIN, "payload_bytes": 100 * 200}, server={**NOTHING_AGAIN, "payload_bytes": 100 * 3 * 1000})
def questions_to_a_database(dice):
    talk = Talk(dice, rtt=0.001).open()
    for _ in range(100):
        talk.add(True, "PA", length=200).wait(0.001)
        for _ in range(3):
            talk.add(False, "PA", length=1000).wait(0.00003)
        talk.add(True, "A").wait(dice.uniform(0.005, 0.04))
    return pcap(framed(talk.close().packets))


@suite(client={**NOTHING_AGAIN, "payload_bytes": 60, "keep_alives": 0}, server={**NOTHING_AGAIN, "payload_bytes": 60}, tcptrace="tcptrace begins another connection behind a long silence")
def pings_of_an_idle_talk(dice):
    talk = Talk(dice, rtt=0.04).open()
    for _ in range(10):
        talk.wait(60).add(False, "PA", length=6).wait(0.0002).add(True, "PA", length=6).wait(0.04).add(False, "A")
    return pcap(framed(talk.packets))


@suite(client=NOTHING_AGAIN, server={**NOTHING_AGAIN, "payload_bytes": 400 * 32, "data_packets": 400})
def events_of_a_screen(dice):
    talk = Talk(dice, rtt=0.002).open()
    for n in range(400):
        talk.wait(0.01).add(False, "PA", length=32)
        if n % 4 == 3:
            talk.wait(0.0005).add(True, "A")
    return pcap(framed(talk.close().packets))


@suite(client={"fast_open_segments": 0, "payload_bytes": 300, "resent_segments": 0, "timeouts": 0}, server={"resent_segments": 0, "payload_bytes": 40 * 1448})
def early_data_over_fast_open(dice):
    talk = Talk(dice, rtt=0.03)
    talk.add(True, "S", seq=-1, length=300, options=[("MSS", 1460), ("SAckOK", b""), ("Timestamp", (100, 0)), ("NOP", None), ("WScale", 7), (34, bytes(8))], win=65535)
    talk.wait(0.03).syn(client=False, flags="SA", ack=300)
    talk.wait(0.0001).add(True, "A")
    for n in range(40):
        talk.add(False, "A", length=1448).wait(0.00012)
        if n % 2:
            talk.add(True, "A")
    return pcap(framed(talk.close().packets))


# ---- Tunnels ---------------------------------------------------------------------------------------------------------

def as_six(packet):
    """The same over IPv6."""
    is_client = packet.src == CLIENT
    tcp = packet[TCP].copy()
    tcp.chksum = None
    ends = ("2001:db8:1::1", "2001:db8:2::1")
    return IPv6(src=ends[not is_client], dst=ends[is_client], hlim=packet.ttl) / tcp


TUNNELS = {
    "vxlan_of_any_protocol": lambda p, c: outer(c) / UDP(sport=5555, dport=4790) / Raw(bytes([0x0C, 0, 0, 1, 0, 0, 5, 0])) / p,
    "teredo": lambda p, c: outer(c) / UDP(sport=3544, dport=3544) / as_six(p),
    "six_in_four": lambda p, c: outer(c) / as_six(p),
    "l2tp": lambda p, c: outer(c) / UDP(sport=1701, dport=1701) / Raw(struct.pack(">HHH", 2, 7, 9) + b"\xff\x03\x00\x21") / p,
    "pseudo_wire": lambda p, c: INNER / MPLS(label=100, s=0) / MPLS(label=200, s=1) / Raw(bytes(4)) / INNER / p,
    "lisp": lambda p, c: outer(c) / UDP(sport=5555, dport=4341) / Raw(bytes([0x80, 0, 0, 9, 0, 0, 0, 1])) / p,
    "six_over_pppoe": lambda p, c: INNER / Dot1Q(vlan=7) / PPPoE(sessionid=3) / PPP(proto=0x57) / as_six(p),
}
for tunnel in TUNNELS:
    def tunnelled(dice, wrap=TUNNELS[tunnel]):
        return pcap(framed(one_lost(dice), wrap))
    tunnelled.__name__ = tunnel
    suite(may={"losses"}, client=ONE_LOST, tcptrace=UNSEEN, tshark="tshark does not look into this by itself")(tunnelled)


@suite(whole={"tcp_packets": 0, "flows": 0, "not_looked_into": {"SCTP": 30, "DNS": 20, "MACsec": 10}})
def no_tcp_at_all(dice):
    ends = {"src": "192.0.2.1", "dst": "192.0.2.2"}
    frames = [(n * 0.01, bytes(INNER / IP(**ends, proto=132) / Raw(struct.pack(">HHII", 5, 6, 7, 0) + bytes(20)))) for n in range(30)]
    frames += [(n * 0.01 + 0.003, bytes(INNER / IP(**ends) / UDP(sport=5353 + n, dport=53) / Raw(bytes(30)))) for n in range(1, 21)]
    frames += [(n * 0.01 + 0.006, bytes(Ether(type=0x88E5) / Raw(bytes(60)))) for n in range(10)]
    return pcap(frames)


# ---- Files -----------------------------------------------------------------------------------------------------------

@suite(may={"losses"}, client=ONE_LOST)
def frame_check_sequences_kept(dice):
    frames = [(at, frame + b"\x12\x34\x56\x78") for at, frame in framed(one_lost(dice))]
    return pcap(frames, link=1 | 4 << 28 | 1 << 26)


@suite(may={"losses"}, client={**ONE_LOST, "payload_bytes": 81 * 1200})
def padded_and_trailed(dice):
    return pcap([(at, frame.ljust(60, b"\0") + b"trailing") for at, frame in framed(one_lost(dice))])


@suite(must={"offloads"}, client={"resent_segments": 0, "payload_bytes": 40 * 14480}, tshark="tshark takes the length of zero as it stands", tcptrace="tcptrace takes the length of zero as it stands")
def lengths_of_zero(dice):
    packets = Talk(dice, window=4000).open().bulk(40, window=4, size=14480).close().packets
    for _, packet in packets:
        if packet.src == CLIENT and bytes(packet[TCP].payload):
            packet.len = 0
    return pcap(framed(packets))


@suite(may={"losses"}, client={**ONE_LOST, "payload_bytes": 81 * 1200})
def cut_at_96_by_the_nanosecond_big_endian(dice):
    return pcap(framed(one_lost(dice)), snap=96, nano=True, order=">")


@suite(may={"losses"}, client=ONE_LOST, whole={"flows": 1}, tcptrace="tcptrace takes one kind of link from a file")
def interfaces_of_three_kinds(dice):
    ng = Ng().interface().interface(link=RAW, resolution=9).interface(link=COOKED, resolution=3)
    for number, (at, packet) in enumerate(sorted(one_lost(dice), key=lambda entry: entry[0])):
        at, octets = round(at, 3), bytes(packet)
        kinds = ((bytes(INNER / packet), 1_000_000), (octets, 1_000_000_000), (struct.pack(">HHH8sH", 0, 1, 6, bytes(8), 0x0800) + octets, 1000))
        octets, unit = kinds[number % 3]
        ng.packet(at, octets, number=number % 3, unit=unit)
    return ng.out


@suite(may={"losses"}, client=ONE_LOST, whole={"flows": 1}, tcptrace="tcptrace does not add the interface's offset of time", tshark="tshark shows no times before 1970")
def before_1970(dice):
    return Ng().interface(offset=-2_000_000_000).all(framed(one_lost(dice))).out


@suite(whole={"packets": 0, "flows": 0, "damage_count": 0}, alone=True)
def empty(dice):
    return pcap([])


@suite(may={"losses"}, client={"resent_segments": 1}, whole={"damage_count": 1}, alone=True)
def cut_in_the_last_record(dice):
    return pcap(framed(one_lost(dice)))[:-10]


@suite(whole={"packets": 1, "tcp_packets": 1, "flows": 1, "resent_segments": 0})
def one_packet(dice):
    return pcap(framed(Talk(dice).syn(client=False, flags="SA").packets))


# ---- Floods ----------------------------------------------------------------------------------------------------------

def refused(number):
    """The frames of a SYN to a port of its own, and of the reset that answers it."""
    source, port = struct.pack(">I", 0x0A000000 + number // 50000), 10000 + number % 50000
    ends = source, b"\x0a\x02\x00\x01"
    for is_answer in (False, True):
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 40, number % 65536, 0x4000, 64, 6, 0) + ends[is_answer] + ends[not is_answer]
        ports = (80, port) if is_answer else (port, 80)
        flags = 0x5014 if is_answer else 0x5002
        numbers = (0, number + 1) if is_answer else (number, 0)
        yield bytes(INNER)[:12] + b"\x08\x00" + ip + struct.pack(">HHIIHHHH", *ports, *numbers, flags, 1024, 0, 0)


@suite(whole={"flows": 100_000, "flows_refused": 100_000, "resent_segments": 0}, alone=True)
def hundred_thousand_refused(dice):
    frames = [(n * 1e-4 + k * 2e-5, frame) for n in range(100_000) for k, frame in enumerate(refused(n))]
    return pcap(frames)


@suite(must={"lost_syns"}, whole={"flows": 300, "flows_not_completed": 300, "resent_syns": 600}, alone=True)
def flood_of_syns(dice):
    packets = []
    for n in range(300):
        talk = Talk(dice, port=2000 + n, first=(n * 1000, n * 77777))
        talk.now = n * 0.002
        talk.syn()
        for wait in (0.0001, 1, 2):
            talk.wait(wait).syn(client=False, flags="SA")
        packets += talk.packets
    return pcap(framed(packets))


@suite(client={"resent_segments": 0}, server={"resets": 30, "resent_segments": 0})
def storm_of_resets(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(40)
    start, first = talk.now, talk.next[0]
    for n in range(30):
        talk.add(True, "A", length=1448, at=start + n * 1e-4)
    for n in range(30):
        talk.add(False, "R", seq=talk.next[1], at=start + 0.02 + n * 1e-4, options=[], win=0)
    return pcap(framed(talk.packets))


@suite(client={"resent_segments": 0, "resets": 1}, server={"resent_segments": 0, "timeouts": 0}, tcptrace="tcptrace begins another connection behind a long silence")
def one_end_had_forgotten(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(40).wait(400)
    talk.add(False, "PA", length=100).wait(0.0001).add(True, "R", options=[], win=0)
    return pcap(framed(talk.packets))


# ---- Turns of TCP ----------------------------------------------------------------------------------------------------

@suite(client={**NOTHING_AGAIN, "keep_alives": 6}, tcptrace="tcptrace counts keep-alives of an octet as sent again, and begins another connection behind a long silence", tshark="tshark's lengths count the octet of keep-alives")
def keep_alives_of_an_octet(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(40)
    for _ in range(6):
        talk.wait(75).add(True, "A", seq=talk.next[0] - 1, length=1).wait(0.02).add(False, "A")
    return pcap(framed(talk.packets))


@suite(may={"connection_died"}, client={**NOTHING_AGAIN, "keep_alives": 9}, tcptrace="tcptrace begins another connection behind a long silence")
def keep_alives_without_an_answer(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(40).wait(7200)
    for _ in range(9):
        talk.add(True, "A", seq=talk.next[0] - 1).wait(75)
    return pcap(framed(talk.add(True, "RA").packets))


@suite(may={"window_limited"}, client={**NOTHING_AGAIN, "payload_bytes": 400 * 1448})
def a_scale_of_one_end_only(dice):
    talk = Talk(dice, rtt=0.07, window=65000).syn()
    talk.wait(0.07).add(False, "SA", seq=-1, ack=0, win=65535, options=[("MSS", 1460), ("SAckOK", b""), ("Timestamp", (7, 100))])
    return pcap(framed(talk.wait(0.0001).add(True, "A").bulk(400, window=40).close().packets))


@suite(may={"losses"}, client={**ONE_LOST, "data_segments": 201, "payload_bytes": 201 * 76})
def segments_of_76(dice):
    return pcap(framed(Talk(dice, mss=76).open().bulk(200, lost={33}).close().packets))


@suite(must={"timeouts"}, may={"losses"}, client={"resent_segments": 1, "timeouts": 1, "resent_bytes": 1448})
def other_data_again(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(40)
    base = talk.next[0]
    for n in range(4):
        talk.wait(0.0001).add(True, "A", length=1448)
    talk.wait(0.02).add(False, "A", ack=base + 1448).wait(0.35)
    talk.add(True, "A", seq=base + 1448, length=1448)
    talk.packets[-1][1][TCP].payload = Raw(b"y" * 1448)
    return pcap(framed(talk.wait(0.02).add(False, "A").bulk(20).close().packets))


@suite(may={"losses", "timeouts", "spurious_retransmissions"}, client={"unique_bytes": 20 * 1448 + 2450, "unseen_bytes": 0, "resent_bytes": 1400})
def cut_anew(dice):
    """[0, 700) [700, 1400), then [350, 1400) and [1050, 2450)."""
    talk = Talk(dice, rtt=0.02).open().bulk(20)
    base = talk.next[0]
    for start, length, wait in ((0, 700, 0.0001), (700, 700, 0.4), (350, 1050, 0.5), (1050, 1400, 0.0001)):
        talk.add(True, "A", seq=base + start, length=length).wait(wait)
    return pcap(framed(talk.wait(0.02).add(False, "A").packets))


@suite(may={"timeouts", "losses"}, client={"resent_segments": 2, "resent_bytes": 0, "unseen_bytes": 0})
def the_end_again(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(40)
    talk.add(True, "FA")
    for wait in (0.3, 0.6):
        talk.wait(wait).add(True, "FA", seq=talk.next[0] - 1)
    talk.wait(0.02).add(False, "FA").wait(0.0001).add(True, "A")
    return pcap(framed(talk.packets))


@suite(client={"resent_segments": 0, "timeouts": 0})
def more_behind_the_end(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(40)
    talk.add(True, "FA").wait(0.0001).add(True, "A", length=500)
    talk.wait(0.02).add(False, "A", ack=talk.next[0] - 500).wait(0.0001).add(False, "FA")
    return pcap(framed(talk.wait(0.0001).add(True, "A", seq=talk.next[0] - 500).packets))


@suite(client={"resent_segments": 0, "foreign_packets": 5, "unseen_bytes": 0, "payload_bytes": 80 * 1448}, tshark=OTHERS, tcptrace=OTHERS)
def far_out_of_the_window(dice):
    talk = Talk(dice, rtt=0.02).open().bulk(40)
    here = talk.next[0]
    for n in range(5):
        talk.wait(0.0001).add(True, "A", seq=here + 300_000_000 + n * 20_000_000, length=1448)
    talk.next[0] = here
    return pcap(framed(talk.bulk(40).close().packets))


@suite(may={"sender_idle"}, client={"resent_segments": 0, "duplicate_packets": 1, "timeouts": 0})
def an_old_packet_comes_back(dice):
    """By a loop of the path, two seconds late, with its old timestamp and identification."""
    talk = Talk(dice, rtt=0.02).open().bulk(60)
    late = next(packet.copy() for _, packet in talk.packets[-30:] if packet.src == CLIENT and bytes(packet[TCP].payload))
    talk.wait(2)
    talk.packets.append([talk.now, late])
    talk.wait(0.0001).add(False, "A")
    return pcap(framed(talk.bulk(40).close().packets))


@suite(may={"losses", "spurious_retransmissions"}, client={"resent_segments": 1, "dsacks": 1, "timeouts": 0})
def needless_and_told(dice):
    """Reordering at the path's end, a fast retransmission that was not needed, and the DSACK that says so."""
    talk = Talk(dice, rtt=0.04).open().bulk(40)
    base, start, size = talk.next[0], talk.now, 1448
    for n in range(8):
        talk.add(True, "A", seq=base + n * size, length=size, at=start + n * 1e-4)
    for n in range(1, 5):
        talk.add(False, "A", ack=base, at=start + 0.04 + n * 1e-4, sack=(base + size, base + (n + 1) * size))
    talk.add(True, "A", seq=base, length=size, at=start + 0.0405)
    talk.add(False, "A", ack=base + 8 * size, at=start + 0.0412)
    talk.add(False, "A", ack=base + 8 * size, at=start + 0.0806, sack=(base, base + size))
    talk.now = start + 0.081
    return pcap(framed(talk.bulk(40).close().packets))


@suite(client=NOTHING_AGAIN, server={**NOTHING_AGAIN, "ece_packets": 0})
def accurate_ecn_without_marks(dice):
    """Flags that were ECE and CWR are a counter, which begins at 5: no mark is told."""
    talk = Talk(dice, rtt=0.02, ecn=True).open(flags="SECN", server_flags="SAE").bulk(80, window=10).close()
    for _, packet in talk.packets[2:]:
        packet[TCP].flags = str(packet[TCP].flags) + "EN"
    talk.packets[1][1][TCP].flags = "SAC"
    return pcap(framed(talk.packets))


@suite(may={"losses"}, client=ONE_LOST)
def begun_in_the_middle_before_numbers_wrap(dice):
    return pcap(framed(one_lost(dice, first=(2**32 - 20_000, 2**32 - 3))[12:]))


@suite(may={"losses", "sack_missing"}, client={"resent_segments": 1, "timeouts": 0, "unseen_bytes": 0})
def begun_in_the_middle_without_options(dice):
    talk = Talk(dice, rtt=0.03, options=False).open().bulk(30)
    base, start, size = talk.next[0], talk.now, 1448
    for n in range(12):
        talk.add(True, "A", seq=base + n * size, length=size, at=start + n * 1e-4)
    for n in range(2, 9):
        talk.add(False, "A", ack=base + 3 * size, at=start + 0.03 + n * 1e-4)
    talk.add(True, "A", seq=base + 3 * size, length=size, at=start + 0.0307)
    talk.add(False, "A", ack=base + 12 * size, at=start + 0.061)
    talk.now = start + 0.0612
    return pcap(framed(talk.bulk(30).close().packets[8:]))


@suite(may={"losses"}, client=ONE_LOST)
def routes_recorded(dice):
    packets = one_lost(dice)
    for _, packet in packets:
        packet.options = [b"\x07\x27\x04" + bytes(36) + b"\0"]
    return pcap(framed(packets))


if __name__ == "__main__":
    main(SUITES, "suites", __doc__, kept_aside=3)
