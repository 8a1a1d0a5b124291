#!/usr/bin/env python3
"""Both ends of one connection that behaves in a given way; started by causes.py in a network namespace each.

    traffic.py serve PORT BEHAVIOUR_JSON
    traffic.py send HOST PORT BEHAVIOUR_JSON
"""

import fcntl
import json
import socket
import struct
import sys
import termios
import threading
import time

BLOCK = b"\x07" * 65536
SO_MAX_PACING_RATE = 47


def option(sock, level, name, value):
    if value is not None:
        sock.setsockopt(level, name, value)


def congestion_control(sock, name):
    if name:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def serve(port, behaviour):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    option(listener, socket.SOL_SOCKET, socket.SO_RCVBUF, behaviour.get("rcvbuf"))
    listener.bind(("0.0.0.0", port))
    listener.listen(64)
    print("ready", flush=True)
    if behaviour.get("crowd"):
        read_all(listener)
    connection, _ = listener.accept()
    if behaviour.get("answer"):
        answer(connection, behaviour)
    else:
        read(connection, behaviour)


def read_all(listener):
    """Whoever comes, and whatever they send."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=read, args=(connection, {}), daemon=True).start()


def read(connection, behaviour):
    """Everything, or only so many bytes a second."""
    rate, start, got, waited = behaviour.get("read_bytes_per_s"), time.monotonic(), 0, 0
    while True:
        data = connection.recv(65536 if rate is None else 16384)
        if not data:
            return
        got += len(data)
        if rate and got - waited >= behaviour.get("read_at_once", 0):
            waited = got
            time.sleep(max(0, start + got / rate - time.monotonic()))


def answer(connection, behaviour):
    """Each request of a known size with an answer of another, after some thought."""
    request, size = behaviour["request"], behaviour["answer"]
    got = 0
    if behaviour.get("chatter"):
        threading.Thread(target=chatter, args=(connection,), daemon=True).start()
    while True:
        data = connection.recv(65536)
        if not data:
            return
        got += len(data)
        while got >= request:
            got -= request
            time.sleep(behaviour.get("think_s", 0))
            connection.sendall(BLOCK[:size])


def chatter(connection):
    """Some bytes now and then, whatever the other side does."""
    while True:
        connection.sendall(BLOCK[:50])
        time.sleep(0.25)


def connect(host, port, behaviour):
    sock = socket.socket()
    congestion_control(sock, behaviour.get("cc", "cubic"))
    option(sock, socket.SOL_SOCKET, socket.SO_SNDBUF, behaviour.get("sndbuf"))
    option(sock, socket.SOL_SOCKET, SO_MAX_PACING_RATE, behaviour.get("pacing_bytes_per_s"))
    option(sock, socket.IPPROTO_TCP, socket.TCP_MAXSEG, behaviour.get("mss"))
    if behaviour.get("no_delay"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.connect((host, port))
    return sock


def send(host, port, behaviour):
    if behaviour.get("crowd"):
        members = [threading.Thread(target=send, args=(host, port, one)) for one in behaviour["crowd"]]
        for member in members:
            member.start()
        for member in members:
            member.join()
        return
    if behaviour.get("short_bytes"):
        shorts(host, port, behaviour)
    sock = connect(host, port, behaviour)
    if behaviour.get("answer"):
        ask(sock, behaviour)
    elif behaviour.get("bytes"):
        sock.sendall(b"\x07" * behaviour["bytes"])
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)
    elif behaviour.get("burst_bytes"):
        bursts(sock, behaviour)
    elif behaviour.get("idle"):
        sock.sendall(BLOCK[:1000])
        time.sleep(3600)
    else:
        while True:
            sock.sendall(BLOCK)


def shorts(host, port, behaviour):
    """One short transfer after the other, each over a connection of its own that is left open until the next begins."""
    while True:
        with connect(host, port, behaviour) as sock:
            sock.sendall(b"\x07" * behaviour["short_bytes"])
            time.sleep(behaviour["pause_s"])


def bursts(sock, behaviour):
    """So many bytes at once, then a pause: with `drained` from when they are acknowledged on."""
    burst = b"\x07" * behaviour["burst_bytes"]
    while True:
        sock.sendall(burst)
        while behaviour.get("drained") and unacknowledged(sock):
            time.sleep(0.002)
        time.sleep(behaviour["pause_s"])


def unacknowledged(sock):
    """Bytes (SIOCOUTQ)."""
    return struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0]


def ask(sock, behaviour):
    """A request, in so many writes, then its answer."""
    request, size, writes = behaviour["request"], behaviour["answer"], behaviour.get("writes", 1)
    while True:
        for part in range(writes):
            sock.sendall(BLOCK[:request // writes + (request % writes if part == 0 else 0)])
        got = 0
        while got < size:
            data = sock.recv(65536)
            if not data:
                return
            got += len(data)
        time.sleep(behaviour.get("own_think_s", 0))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        try:
            send(sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
        except (BrokenPipeError, ConnectionResetError):
            pass
