#!/usr/bin/python3
"""Servers and clients of our own, where what matters is what a socket sees.

    peers.py serve NAME PORT           # a server
    peers.py NAME ADDRESS [WORDS]      # a client; prints what it saw as one line of JSON
"""

import ftplib
import hashlib
import json
import random
import smtplib
import socket
import struct
import sys
import threading
import time

PATIENCE_S = 20
RESET = struct.pack("ii", 1, 0)


def noise(seed, count):
    return random.Random(seed).randbytes(count)


def short_digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def shown(address):
    """An IPv4 client of an IPv6 listener by its own address."""
    return address.removeprefix("::ffff:")


def read_all(connection):
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def connected(address, port):
    return socket.create_connection((address, port), PATIENCE_S)


# Servers -------------------------------------------------------------------------------------------------------------

def listening(port):
    return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=2048)


def each(port, serve):
    listener = listening(port)
    while True:
        connection, peer = listener.accept()
        threading.Thread(target=quietly, args=(serve, connection, peer), daemon=True).start()


def quietly(serve, connection, peer):
    with connection:
        try:
            serve(connection, peer)
        except OSError:
            pass


def serve_resetter(port):
    def serve(connection, _):
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    each(port, serve)


def serve_echo(port):
    """Says who the client is, then returns every line."""
    def serve(connection, peer):
        connection.sendall(f"{shown(peer[0])} {peer[1]}\n".encode())
        while data := connection.recv(1 << 16):
            connection.sendall(data)
    each(port, serve)


def serve_collector(port):
    """Takes all up to the end, then says what it was and a megabyte more."""
    def serve(connection, _):
        connection.sendall(short_digest(read_all(connection)).encode() + noise(1, 1 << 20))
    each(port, serve)


def serve_smtp(port):
    from aiosmtpd.controller import Controller

    class Handler:
        async def handle_DATA(self, server, session, envelope):
            return f"250 {shown(session.peer[0])} {short_digest(envelope.content)}"

    for address in ("0.0.0.0", "::"):
        Controller(Handler(), hostname=address, port=port, data_size_limit=1 << 26).start()
    threading.Event().wait()


def serve_websocket(port):
    import asyncio
    import websockets

    async def talk(connection, *_):
        await connection.send(shown(connection.remote_address[0]))
        async for message in connection:
            await connection.send(message)
        # Its close code is what the client sent.

    async def serve():
        async with websockets.serve(talk, None, port, max_size=1 << 24):
            await asyncio.Future()

    asyncio.run(serve())


def serve_hops(port):
    """Says by which TOS (without ECN) and TTL the client's packets come; on the next port, whether those with a TTL of 63 at
    least do (RFC 5082), as routers one hop away would."""
    seen = {}
    threading.Thread(target=watch, args=(port, seen), daemon=True).start()
    near = listening(port + 1)
    near.setsockopt(socket.IPPROTO_IP, 21, 63)  # IP_MINTTL
    near.setsockopt(socket.IPPROTO_IPV6, 73, 63)  # IPV6_MINHOPCOUNT
    threading.Thread(target=accept_all, args=(near,), daemon=True).start()

    def serve(connection, peer):
        read_all(connection)
        time.sleep(0.2)  # what watches the packets may be behind
        connection.sendall(json.dumps(sorted(seen.get(peer[1], []))).encode())
    each(port, serve)


def accept_all(listener):
    while True:
        connection, _ = listener.accept()
        connection.sendall(b"near")
        connection.close()


def watch(port, seen):
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    while True:
        data, (_, protocol, kind, *_) = packets.recvfrom(200)
        if kind == socket.PACKET_OUTGOING or len(data) < 44:
            continue
        if protocol == 0x0800 and data[9] == 6:
            tos, ttl, tcp = data[1], data[8], data[4 * (data[0] & 15):]
        elif protocol == 0x86dd and data[6] == 6:
            tos, ttl, tcp = int.from_bytes(data[:2], "big") >> 4 & 255, data[7], data[40:]
        else:
            continue
        source, destination = struct.unpack("!HH", tcp[:4])
        if destination == port:
            seen.setdefault(source, set()).add((tos & ~3, ttl))


# Clients -------------------------------------------------------------------------------------------------------------

def many(address, count="1000"):
    """So many connections at once; each says a line of its own, half-closes and hears it again."""
    clients = []
    for _ in range(int(count)):
        clients.append(connected(address, 7))
    right_addresses = right_answers = 0
    for number, client in enumerate(clients):
        client.sendall(f"line {number}\n".encode())
        client.shutdown(socket.SHUT_WR)
    for number, client in enumerate(clients):
        who, answer, rest = read_all(client).decode().split("\n")
        own = client.getsockname()
        right_addresses += who == f"{own[0]} {own[1]}"
        right_answers += (answer, rest) == (f"line {number}", "")
    return {"connections": len(clients), "own address and port": right_addresses, "answers": right_answers}


def half_close(address, total=str(3 << 20)):
    with connected(address, 9) as client:
        data = noise(2, int(total))
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = read_all(client)
    return {"arrived": answer[:16].decode() == short_digest(data), "after the half-close": short_digest(answer[16:])}


def address_seen(address):
    """The client's address as the server sees it."""
    with connected(address, 7) as client:
        return {"address": client.makefile().readline().split()[0]}


def hops(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(PATIENCE_S)
        if family == socket.AF_INET6:
            client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0xb8)
        else:
            client.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0xb8)
        client.connect((address, 179))
        client.sendall(noise(3, 100_000))
        client.shutdown(socket.SHUT_WR)
        found = json.loads(read_all(client))
    try:
        with socket.create_connection((address, 180), 5) as near:
            answer = near.recv(10).decode()
    except OSError as error:
        answer = type(error).__name__
    return {"TOS": sorted({tos for tos, _ in found}), "TTL": sorted({ttl for _, ttl in found}), "TTL security": answer}


def memcached(address):
    with connected(address, 11211) as client:
        lines = client.makefile("rb")
        values = {f"k{n}".encode(): noise(n, 500_000) for n in range(10)}
        for key, value in values.items():
            client.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
            assert lines.readline() == b"STORED\r\n"
        found = {}
        client.sendall(b"get " + b" ".join(values) + b"\r\n")
        while (line := lines.readline()) != b"END\r\n":
            _, key, _, size = line.split()
            found[key] = lines.read(int(size) + 2)[:-2]
        client.sendall(b"nonsense\r\nquit\r\n")
        return {"as stored": found == values, "error": lines.readline().decode().strip(), "end": lines.read().decode()}


def smtp(address):
    with smtplib.SMTP(address, 25, timeout=PATIENCE_S, local_hostname="client") as client:
        body = noise(5, 2 << 20).hex()
        text = "\r\n".join(body[at:at + 70] for at in range(0, len(body), 70)) + "\r\n"
        client.ehlo()
        client.mail("a@example.org")
        client.rcpt("b@example.org")
        code, answer = client.data(text)
        refused = client.docmd("NONSENSE")[0]
        who, digest = answer.decode().split()
        return {"code": code, "from": who, "as sent": digest == short_digest(text.encode()), "nonsense": refused}


def websocket(address):
    import asyncio
    import websockets
    host = f"[{address}]" if ":" in address else address

    async def talk():
        async with websockets.connect(f"ws://{host}:8765", max_size=1 << 24, open_timeout=PATIENCE_S) as client:
            who = await client.recv()
            right = 0
            for message in [*(f"message {n}" for n in range(200)), noise(6, 3 << 20)]:
                await client.send(message)
                right += await client.recv() == message
            await asyncio.wait_for(await client.ping(), PATIENCE_S)
            await client.close(4321, "enough")
            return {"from": who, "messages": right, "closed by": client.close_code}

    return asyncio.run(asyncio.wait_for(talk(), PATIENCE_S))


def ftp(address, how):
    with ftplib.FTP(timeout=8) as client:
        client.connect(address, 21)
        client.login()
        client.set_pasv(how != "active")
        return {"passive": transfers, "active": transfers, "abort": abort_idle, "abort-transfer": abort_transfer}[how](client)


def transfers(client):
    parts = []
    client.retrbinary("RETR medium", parts.append)
    data = b"".join(parts)
    import io
    name = f"in/{random.randrange(1 << 40)}"
    stored = client.storbinary(f"STOR {name}", io.BytesIO(data))[:3]
    parts.clear()
    client.retrbinary(f"RETR {name}", parts.append)
    return {"down": short_digest(data), "stored": stored, "same again": b"".join(parts) == data, "list": len(client.nlst())}


def abort_idle(client):
    return {"reply": client.abort()[:3], "then": client.sendcmd("NOOP")[:3]}


def abort_transfer(client):
    """All replies from ABOR to QUIT's."""
    with client.transfercmd("RETR large") as data:
        data.recv(1000)
        # As client.abort(), which takes no other reply than 225, 226 and 426.
        client.sock.sendall(b"ABOR\r\n", socket.MSG_OOB)
        replies = [client.getmultiline()[:3]]
    client.putcmd("QUIT")
    while replies[-1] != "221":
        replies.append(client.getmultiline()[:3])
    client.close()
    return {"replies": replies}


def urgent(address):
    """3 MB, an urgent byte, half a second, 3 MB, to a server."""
    with connected(address, 9) as client:
        part = noise(7, 3_000_000)
        client.sendall(part)
        client.send(b"!", socket.MSG_OOB)
        time.sleep(0.5)
        client.sendall(part)
        client.shutdown(socket.SHUT_WR)
        # The server does not ask for the urgent byte: the kernel takes it out of the stream.
        return {"arrived": read_all(client)[:16].decode() == short_digest(part + part)}


CLIENTS = {"many": many, "half-close": half_close, "address": address_seen, "hops": hops, "memcached": memcached, "smtp": smtp,
           "websocket": websocket, "ftp": ftp, "urgent": urgent}
SERVERS = {"resetter": serve_resetter, "echo": serve_echo, "collector": serve_collector, "smtp": serve_smtp,
           "websocket": serve_websocket, "hops": serve_hops}


def main():
    name, *words = sys.argv[1:]
    if name == "serve":
        SERVERS[words[0]](int(words[1]))
        return
    try:
        seen = CLIENTS[name](*words)
    except (OSError, EOFError, AssertionError, ftplib.Error, smtplib.SMTPException) as error:
        seen = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
