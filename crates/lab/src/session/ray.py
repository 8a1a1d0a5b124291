"""Runs on Ray, started by 'longfat lab run --on ray'. Lines of JSON both ways: session/ray.rs says which.

Standard input: what to join, then a line per run. When it ends, what is under way is cancelled. Standard output: what came
of it.
"""

import sys

# Modules come from where Python has them, never from the directory it was started in: that may be a stranger's pack.
sys.path[:] = [path for path in sys.path if path]

import collections
import contextlib
import json
import os
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time

#: How often a run is done again when its worker, or its program, was killed.
RETRIES = 3
#: Most runs handed to Ray at once: each waits with its plan in memory.
AT_ONCE = 1000
#: What a host for emulated runs is started with: 'ray start --resources'.
HOST = "longfat_host"
#: How long the address of a cluster may take to connect, and how long a cluster may take then until it is joined.
CONNECT_S = 10
JOIN_S = 60
#: How long cancelled runs may take to remove what they made.
CANCEL_S = 30
#: Longest pack of a run, and what is kept of what its program said: a worker may be anybody's.
PACK_BYTES = 4 << 30
SAID_BYTES = 4096
#: How soon the end of the input is seen.
LOOK_S = 0.1
#: How soon the end of a run is seen.
POLL_S = 0.02

# What others print must not come between the lines.
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def tell(kind, /, **said):
    print(json.dumps({kind: said}), file=out, flush=True)


class Killed(Exception):
    """The program was killed: it says nothing about the run."""


def carry_out(job, program, said_bytes):
    """One plan in, one packed run out: where, exit code, pack, what was said. On any host of the cluster."""
    beside = os.path.join(os.path.dirname(sys.executable), "longfat")
    paths = (program, beside, shutil.which("longfat"))
    found = next((path for path in paths if path and os.access(path, os.X_OK)), None)
    if not found:
        return socket.gethostname(), 3, b"", f"there is no program 'longfat', neither {program} nor on PATH; install it"
    with tempfile.TemporaryFile() as packed, tempfile.TemporaryFile() as said:
        process = subprocess.Popen([found, "lab", "worker"], stdin=subprocess.PIPE, stdout=packed, stderr=said)
        try:
            # Left open: when this process is killed, the program sees its input end and gives up.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(job.encode() + b"\n")
                process.stdin.flush()
            # Ray cancels by an exception, which no call that lasts would see.
            while process.poll() is None:
                time.sleep(POLL_S)
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            code = process.wait()
        packed.seek(0)
        said.seek(max(0, said.seek(0, os.SEEK_END) - said_bytes))
        pack, words = packed.read(), said.read().decode(errors="replace").strip()
    if code < 0:
        raise Killed(f"'{found} lab worker' was killed by signal {-code}")
    return socket.gethostname(), code, pack, words


def lines_of_input(into, is_joining):
    for line in sys.stdin:
        into.put(json.loads(line))
    into.put(None)
    if is_joining.is_set():
        # Ray tries for minutes to reach a cluster that is not there, and cannot be told to stop.
        os._exit(2)


class Unreachable(Exception):
    """Nobody answers where the cluster should be."""


def end_of(address):
    """Host and port of a cluster's address; none where Ray finds it by itself ('auto', a name of a file)."""
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


def no_cluster(address, why):
    mend = "is the head up there ('ray status' tells on it), and does a firewall let this host in? --address names another"
    return Unreachable(f"no cluster at {address}: {why}; {mend}")


def reach(address):
    """Ray itself tries for minutes to reach a cluster that is not there."""
    end = end_of(address)
    if not end:
        return
    reached = queue.SimpleQueue()

    def connect():
        try:
            socket.create_connection(end, timeout=CONNECT_S).close()
            reached.put(None)
        except OSError as error:
            reached.put(error.strerror or str(error))

    # A name may be looked up for longer than its addresses are tried.
    threading.Thread(target=connect, daemon=True).start()
    try:
        why = reached.get(timeout=CONNECT_S)
    except queue.Empty:
        why = f"it has not answered within {CONNECT_S} s"
    if why:
        raise no_cluster(address, why)


def give_up(address, is_joining):
    if is_joining.is_set():
        tell("broken", why=str(no_cluster(address, f"what answers there has not let this host in within {JOIN_S} s")))
        os._exit(2)


@contextlib.contextmanager
def joining(address, is_joining):
    """For as long as Ray joins a cluster, which cannot be told to stop."""
    is_joining.set()
    reach(address)
    patience = threading.Timer(JOIN_S, give_up, (address, is_joining))
    patience.daemon = True
    patience.start()
    try:
        yield
    finally:
        patience.cancel()
        is_joining.clear()


@contextlib.contextmanager
def joined(setup, is_joining):
    """Ray: at the address, or of its own, whose files go with it."""
    # Nobody is told that it was used.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    address = setup["address"] or os.environ.get("RAY_ADDRESS")
    place = None
    if not address:
        # Short: names of sockets have at most 107 bytes.
        place = tempfile.mkdtemp(prefix="longfat-ray-", dir="/tmp")
        quiet.update(num_cpus=setup["at_once"], resources={HOST: 1}, include_dashboard=False, _temp_dir=place)
    try:
        with joining(address, is_joining) if address else contextlib.nullcontext():
            ray.init(address=address or "local", **quiet)
        yield
    finally:
        ray.shutdown()
        if place:
            shutil.rmtree(place, ignore_errors=True)


def work(setup, lines):
    needs = {"num_cpus": 1, "resources": {HOST: 1} if setup["emulated"] else {}}
    has = ray.cluster_resources()
    at_once = int(has.get(HOST if setup["emulated"] else "CPU", 0))
    if setup["emulated"] and not at_once:
        why = f"no host of the cluster has the resource '{HOST}', of which an emulated run takes one"
        mend = f"start hosts for them with: ray start --num-cpus 1 --resources '{{\"{HOST}\": 1}}' …"
        return tell("missing", what="a host to emulate on", why=why, mend=mend)
    limit = setup["at_once"] or AT_ONCE
    hosts = sum(node["Alive"] for node in ray.nodes())
    tell("ready", version=ray.__version__, hosts=hosts, at_once=min(at_once, limit))
    remote = ray.remote(max_retries=RETRIES, retry_exceptions=[Killed], **needs)(carry_out)
    waiting, under_way = collections.deque(), {}
    while True:
        with contextlib.suppress(queue.Empty):
            # With nothing to do, the next line is waited for.
            while (line := lines.get(block=not (waiting or under_way))) is not None:
                waiting.append(line)
            break
        while waiting and len(under_way) < limit:
            line = waiting.popleft()
            under_way[remote.remote(line["job"], setup["program"], SAID_BYTES)] = line
        for reference in ray.wait(list(under_way), timeout=LOOK_S)[0]:
            receive(reference, under_way.pop(reference))
    for reference in under_way:
        ray.cancel(reference)
    if under_way:
        ray.wait(list(under_way), num_returns=len(under_way), timeout=CANCEL_S)


def strange(answer):
    """What is wrong with a worker's answer, if anything is."""
    if type(answer) is not tuple or tuple(map(type, answer)) != (str, int, bytes, str):
        return f"{type(answer).__name__}, not a host, an exit code, a pack and what was said"
    _, code, pack, _ = answer
    if not 0 <= code <= 255:
        return f"the exit code {str(code)[:20]}"
    return f"a pack of {len(pack)} bytes, of {PACK_BYTES} at most" if len(pack) > PACK_BYTES else None


def receive(reference, line):
    try:
        answer = ray.get(reference)
    except ray.exceptions.RayError as error:
        why = f"tried {RETRIES + 1} times: {getattr(error, 'cause', None) or error}"
        return tell("failed", index=line["index"], code=2, said=why[:SAID_BYTES])
    if wrong := strange(answer):
        return tell("failed", index=line["index"], code=2, said=f"a worker answered with {wrong}")
    host, code, pack, said = answer
    if code:
        return tell("failed", index=line["index"], code=code, said=f"host {host}: {said}"[:SAID_BYTES])
    with open(line["pack"], "wb") as file:
        file.write(pack)
    tell("made", index=line["index"])


try:
    import ray
except ModuleNotFoundError as error:
    tell("missing", what="Ray for Python", why=f"{sys.executable}: {error}", mend=f"{sys.executable} -m pip install ray")
    sys.exit(3)

setup = json.loads(sys.stdin.readline())
lines, is_joining = queue.SimpleQueue(), threading.Event()
threading.Thread(target=lines_of_input, args=(lines, is_joining), daemon=True).start()
try:
    with joined(setup, is_joining):
        work(setup, lines)
except Unreachable as error:
    tell("broken", why=str(error))
    sys.exit(2)
except Exception as error:
    tell("broken", why=f"{type(error).__name__}: {error}")
    sys.exit(2)
