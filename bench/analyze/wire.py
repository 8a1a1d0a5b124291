"""A cable between two packet sockets that does to each frame what a kind of traffic asks for: slow, exact, and its own witness.

`fate(packet)` gives back what becomes of a frame: a list of (extra seconds, octets); nothing, one, or several.
"""

import ctypes
import heapq
import select
import socket
import struct
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
FIN, SYN, RST, PSH, ACK, ECE = 1, 2, 4, 8, 16, 64


def enter(namespace):
    with open(f"/run/netns/{namespace}") as handle:
        if LIBC.setns(handle.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


def inside(namespace, function):
    """Runs a function in a namespace, in a thread of its own; a socket made there stays there."""
    box = []

    def body():
        try:
            enter(namespace)
            box.append((function(), None))
        except Exception as error:  # handed on below
            box.append((None, error))

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join()
    result, error = box[0]
    if error:
        raise error
    return result


def checksum(octets):
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets[: len(octets) & ~1])) + (octets[-1] << 8 if len(octets) & 1 else 0)
    while total > 0xFFFF:
        total = (total >> 16) + (total & 0xFFFF)
    return ~total & 0xFFFF


class Packet:
    """A frame and what is in it, as far as kinds ask."""

    def __init__(self, frame, forth):
        self.frame, self.forth, self.is_tcp = bytearray(frame), forth, False
        kind = int.from_bytes(frame[12:14], "big")
        if kind == 0x0800 and frame[23] == 6:
            self.tcp, end = 14 + 4 * (frame[14] & 15), 14 + int.from_bytes(frame[16:18], "big")
        elif kind == 0x86DD and frame[20] == 6:
            self.tcp, end = 54, 54 + int.from_bytes(frame[18:20], "big")
        else:
            return
        self.is_tcp, self.ip_bytes = True, end - 14
        self.sequence, self.acknowledgement = struct.unpack_from("!II", frame, self.tcp + 4)
        self.flags = frame[self.tcp + 13]
        self.payload = end - self.tcp - 4 * (frame[self.tcp + 12] >> 4)
        self.is_data = self.payload > 0

    def is_syn(self):
        return self.is_tcp and bool(self.flags & SYN)

    def with_window(self, window):
        return self.changed(self.tcp + 14, window, self.tcp + 16)

    def with_ce(self):
        """Marked as by a queue (IPv4)."""
        return self.changed(14, int.from_bytes(self.frame[14:16], "big") | 3, 24)

    def changed(self, at, value, sum_at):
        """Another word, and the checksum that fits it (RFC 1624)."""
        frame = bytearray(self.frame)
        old, check = int.from_bytes(frame[at : at + 2], "big"), int.from_bytes(frame[sum_at : sum_at + 2], "big")
        total = (~check & 0xFFFF) + (~old & 0xFFFF) + value
        while total > 0xFFFF:
            total = (total >> 16) + (total & 0xFFFF)
        frame[at : at + 2], frame[sum_at : sum_at + 2] = value.to_bytes(2, "big"), (~total & 0xFFFF).to_bytes(2, "big")
        return bytes(frame)

    def damaged(self):
        """Its last octet is another one."""
        return bytes(self.frame[:-1]) + bytes([self.frame[-1] ^ 0x55])


class Wire:
    """Between the interfaces `a` (at the sender) and `b` of a namespace, with so many seconds of delay each way."""

    def __init__(self, namespace, delay_s, fate):
        self.delay_s, self.fate, self.waiting, self.number, self.over = delay_s, fate, [], 0, False
        self.ends = [inside(namespace, lambda name=name: self.open(name)) for name in ("a", "b")]
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    @staticmethod
    def open(name):
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        end.bind((name, 3))
        end.setblocking(False)
        return end

    def run(self):
        while not self.over:
            timeout = max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else 0.05
            for end in select.select(self.ends, [], [], min(timeout, 0.05))[0]:
                self.take(end)
            now = time.monotonic()
            while self.waiting and self.waiting[0][0] <= now:
                _, _, to, frame = heapq.heappop(self.waiting)
                self.send(to, frame)

    def take(self, end):
        forth = end is self.ends[0]
        for _ in range(64):
            try:
                frame = end.recv(65536)
            except BlockingIOError:
                return
            now = time.monotonic()
            for extra_s, octets in self.fate(Packet(frame, forth)):
                self.number += 1
                heapq.heappush(self.waiting, (now + self.delay_s + extra_s, self.number, self.ends[forth], octets))

    @staticmethod
    def send(to, frame):
        try:
            to.send(frame)
        except OSError:
            pass  # A full queue: a loss like any other.

    def stop(self):
        self.over = True
        self.thread.join()
        for end in self.ends:
            end.close()
