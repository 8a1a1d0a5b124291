"""Puts the packets of a capture into a tunnel or a VLAN, for kernels that have no such interface: the TCP in them is the kernel's own."""

import struct

from wire import checksum


def outer(protocol, inner_bytes):
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + inner_bytes, 7, 0, 64, protocol, 0, b"\xc0\0\2\1", b"\xc0\0\2\2")
    return header[:10] + checksum(header).to_bytes(2, "big") + header[12:]


def put(kind, frame, wire_bytes):
    """The frame, and how long it is on the wire."""
    ethernet, rest, on_wire = frame[:12], frame[14:], wire_bytes - 14
    if kind == "vlan":
        return ethernet + b"\x81\0\0\5" + frame[12:], wire_bytes + 4
    if kind == "gre":
        return ethernet + b"\x08\0" + outer(47, on_wire + 4) + b"\0\0\x08\0" + rest, wire_bytes + 24
    if kind == "ipip":
        return ethernet + b"\x08\0" + outer(4, on_wire) + rest, wire_bytes + 20
    raise ValueError(f"no packet can be put into '{kind}'; vlan, gre and ipip are known")


def wrapped(path, kind):
    """Rewrites a pcap file (this machine's byte order)."""
    data, at = path.read_bytes(), 24
    out = [data[:16] + struct.pack("I", 65_535) + data[20:24]]
    while at + 16 <= len(data):
        seconds, fraction, kept, on_wire = struct.unpack_from("IIII", data, at)
        frame, length = put(kind, data[at + 16 : at + 16 + kept], on_wire)
        out += [struct.pack("IIII", seconds, fraction, len(frame), length), frame]
        at += 16 + kept
    path.write_bytes(b"".join(out))
