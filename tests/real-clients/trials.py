"""The trials: each is an ordinary client against an ordinary server and returns what it saw, as names and values. What must
hold of every network is asserted; all else is compared with what the same trial saw with plain forwarding."""

import contextlib
import hashlib
import json
import os
import shutil

from hosts import RELAY_WAN, bracketed, digest, run


def same(one, other):
    assert digest(one) == digest(other), f"{one} and {other} differ"


def curl(hosts, *arguments, **more):
    return hosts.inside("c", "curl", "-sS", "--globoff", "--max-time", "60", *arguments, **more)


def curl_download(hosts, address):
    target = hosts.work / "got"
    curl(hosts, "-o", target, f"http://{bracketed(address)}/large")
    same(target, hosts.work / "www/large")
    return {"bytes": target.stat().st_size}


def curl_many(hosts, address):
    urls = []
    for number in range(50):
        urls += ["-o", hosts.work / f"got{number}", f"http://{bracketed(address)}/small{number}"]
    curl(hosts, "--parallel", *urls)
    for number in range(50):
        same(hosts.work / f"got{number}", hosts.work / f"www/small{number}")
    return {"files": 50}


def curl_upload(hosts, address):
    target = hosts.work / f"www/put-{len(address)}"
    curl(hosts, "-T", hosts.work / "www/large", f"http://{bracketed(address)}/{target.name}")
    same(target, hosts.work / "www/large")
    os.remove(target)
    return {"bytes": 64 << 20}


def curl_http2(hosts, address):
    url = f"https://{bracketed(address)}"
    more = ["-k", "--http2"]
    who = curl(hosts, *more, f"{url}/who").stdout
    urls = []
    for number in range(50):
        urls += ["-o", hosts.work / f"got{number}", f"{url}/small{number}"]
    curl(hosts, *more, "--parallel", *urls, "-o", hosts.work / "got", f"{url}/large")
    for number in range(50):
        same(hosts.work / f"got{number}", hosts.work / f"www/small{number}")
    same(hosts.work / "got", hosts.work / "www/large")
    return {"seen as": who}


def curl_refused(hosts, address):
    found = curl(hosts, f"http://{bracketed(address)}:82/", check=False)
    return {"exit": found.returncode}


def curl_reset(hosts, address):
    found = curl(hosts, f"http://{bracketed(address)}:81/", check=False)
    return {"exit": found.returncode, "told of a reset": "reset" in found.stderr}


def ssh_options(hosts):
    return ["-i", hosts.work / "user_key", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
            "-o", "LogLevel=ERROR", "-o", "BatchMode=yes"]


def ssh_command(hosts, address):
    command = f"sha256sum {hosts.work}/www/large; echo $SSH_CLIENT; exit 3"
    found = hosts.inside("c", "ssh", *ssh_options(hosts), f"root@{address}", command, check=False)
    words = found.stdout.split()
    assert words and words[0] == digest(hosts.work / "www/large"), found
    return {"exit": found.returncode, "seen as": words[2]}


def scp_both_ways(hosts, address):
    remote = f"root@{bracketed(address)}:{hosts.work}"
    hosts.inside("c", "scp", "-q", *ssh_options(hosts), hosts.work / "www/large", f"{remote}/scp-up")
    hosts.inside("c", "scp", "-q", *ssh_options(hosts), f"{remote}/scp-up", hosts.work / "scp-down")
    same(hosts.work / "scp-down", hosts.work / "www/large")
    return {"bytes": 64 << 20}


def rsync_tree(hosts, address):
    target = hosts.work / "tree"
    hosts.inside("c", "rsync", "-a", "--checksum", f"rsync://{bracketed(address)}/tree/", f"{target}/")
    found = run("diff", "-r", hosts.work / "www", target, check=False)
    assert found.returncode == 0, found.stdout
    shutil.rmtree(target)
    return {"files": 51}


def iperf_both_ways(hosts, address):
    # Its server tells the two streams of "both" apart by the order of their coming.
    ways = {"up": (), "down": ("-R",), "both": ("--bidir",)}
    for more in ways.values():
        hosts.inside("c", "iperf3", "-c", address, "-n", "64M", "-C", "cubic", *more)
    return {"ways": list(ways)}


def git_round(hosts, address):
    bare, work = hosts.work / "repos/r.git", hosts.work / "clone"
    for folder in (bare, work, hosts.work / "again"):
        shutil.rmtree(folder, ignore_errors=True)
    run("git", "init", "-q", "--bare", bare)
    run("git", "-C", bare, "config", "http.receivepack", "true")
    url = f"http://{bracketed(address)}/git/r.git"

    def git(*command):
        hosts.inside("c", "git", "-c", "safe.directory=*", "-c", "user.name=t", "-c", "user.email=t@t", *command)

    git("clone", "-q", url, work)
    shutil.copy(hosts.work / "www/large", work / "large")
    git("-C", work, "add", "large")
    git("-C", work, "commit", "-q", "-m", "large")
    git("-C", work, "push", "-q", "origin", "HEAD:refs/heads/main")
    git("clone", "-q", "-b", "main", url, hosts.work / "again")
    same(hosts.work / "again/large", hosts.work / "www/large")
    return {"bytes": 64 << 20}


def some_rows(hosts):
    rows = hosts.work / "rows.csv"
    if not rows.exists():
        rows.write_text("".join(f"{n},{hashlib.sha256(str(n).encode()).hexdigest()}\n" for n in range(100_000)))
        rows.chmod(0o644)
    return rows


def postgres_round(hosts, address):
    def psql(*command):
        return hosts.inside("c", "psql", "-h", address, "-U", "postgres", "-qAtX", "-v", "ON_ERROR_STOP=1", *command)

    rows = some_rows(hosts)
    psql("-c", "drop table if exists t; create table t(n int primary key, h text)")
    psql("-c", f"\\copy t from '{rows}' csv")
    psql("-c", f"\\copy (select * from t order by n) to '{hosts.work}/back.csv' csv")
    same(rows, hosts.work / "back.csv")
    return {"seen as": psql("-c", "select inet_client_addr()").stdout.strip()}


def mariadb_round(hosts, address):
    def mariadb(statement):
        command = ["mariadb", "--no-defaults", "-h", address, "-u", "t", "--local-infile=1", "--max-allowed-packet=64M", "-BN", "d"]
        return hosts.inside("c", *command, "-e", statement).stdout

    rows = some_rows(hosts)
    mariadb("drop table if exists t; create table t(n int primary key, h text)")
    mariadb(f"load data local infile '{rows}' into table t fields terminated by ','")
    back = mariadb("select * from t order by n").replace("\t", ",")
    assert back == rows.read_text(), "rows differ"
    return {"seen as": mariadb("select user()").strip(), "large": mariadb("select length(repeat('x', 20000000))").strip()}


def redis_round(hosts, address):
    def redis(*words, **more):
        return hosts.inside("c", "redis-cli", "-h", address, *words, **more).stdout.strip()

    orders = "".join(f"SET key{n} {hashlib.sha256(str(n).encode()).hexdigest()}\r\n" for n in range(50_000))
    piped = redis("--pipe", input=orders).splitlines()[-1]
    value = hashlib.sha256(b"x").hexdigest() * 100_000
    redis("-x", "SET", "large", input=value)
    assert redis("GET", "large") == value, "a value of 6.4 MB differs"
    who = redis("CLIENT", "INFO").split("addr=")[1].split()[0].rsplit(":", 1)[0]
    return {"piped": piped, "key": redis("GET", "key49999"), "seen as": who, "wrong": redis("NONSENSE")}


def mqtt_round(hosts, address):
    """Messages of all sizes from one client to another, and the will of one that vanishes."""
    reader = hosts.start("c", "mosquitto_sub", "-h", address, "-t", "t/#", "-C", "102", "-q", "1", "-F", "%t %l", "-W", "30",
                         stdout=-1, text=True)
    wait_for_client = "for i in $(seq 100); do ss -tn state established dport = 1883 | grep -q 1883 && break; sleep 0.1; done"
    hosts.inside("c", "sh", "-c", f"{wait_for_client}; sleep 0.5")
    lines = "".join(f"message {n}\n" for n in range(100))
    publish = ["mosquitto_pub", "-h", address, "-q", "1"]
    hosts.inside("c", *publish, "-t", "t/small", "-l", input=lines)
    hosts.inside("c", *publish, "-t", "t/large", "-f", hosts.work / "medium")
    dying = hosts.start("c", *publish, "-t", "t/never", "-l", "--will-topic", "t/will", "--will-payload", "gone", stdin=-1)
    hosts.inside("c", "sh", "-c", f"{wait_for_client}; sleep 0.5")
    dying.kill()
    dying.wait()
    hosts.daemons.remove(dying)
    got, _ = reader.communicate(timeout=40)
    hosts.daemons.remove(reader)
    counted = {line: got.splitlines().count(line) for line in set(got.splitlines())}
    return {"exit": reader.returncode, "messages": dict(sorted(counted.items()))}


def samba_round(hosts, address):
    def smb(*commands):
        host = ["//server/share", "-I", address, "-N", "-p", "445", "-s", hosts.work / "smb.conf"]
        return hosts.inside("c", "smbclient", *host, "-c", "; ".join(commands), check=False)

    found = smb(f"put {hosts.work}/medium up", f"get up {hosts.work}/smb-down", "allinfo up")
    assert found.returncode == 0, found.stdout + found.stderr
    same(hosts.work / "smb-down", hosts.work / "medium")
    missing = smb(f"get nothing {hosts.work}/none")
    return {"missing file": missing.returncode, "told": missing.stdout.split(" opening")[0].strip()}


def by_peers(*words):
    """A trial that is a client of peers.py."""
    name, *more = words

    def trial(hosts, address):
        return json.loads(hosts.peers("c", name, address, *more))
    return trial


@contextlib.contextmanager
def settings(hosts, end, values):
    before = {key: hosts.sysctl(end, key, value) for key, value in values.items()}
    try:
        yield
    finally:
        for key, value in before.items():
            hosts.sysctl(end, key, f"'{value}'")


def options_off(hosts, address):
    """Clients without timestamps, selective acknowledgements and window scaling."""
    off = {f"net/ipv4/tcp_{name}": 0 for name in ("timestamps", "sack", "window_scaling")}
    with settings(hosts, "c", off):
        return by_peers("half-close")(hosts, address) | by_peers("address")(hosts, address)


def path_mtu(hosts, address):
    """The last hop takes packets of 1280 bytes only, and says so."""
    family, length = ("-6", 128) if ":" in address else ("-4", 32)
    route = ["route", "{}", f"{address}/{length}", "dev", "wan"]
    hosts.ip("r", family, *[word.format("replace") for word in route], "mtu", 1280)
    try:
        return by_peers("half-close")(hosts, address)
    finally:
        hosts.ip("r", family, *[word.format("del") for word in route])
        hosts.ip("c", family, "route", "flush", "cache")


def masqueraded(hosts, address):
    """The server sees the router's address."""
    table = "table inet masked { chain post { type nat hook postrouting priority 100; oifname wan masquerade; }; }"
    hosts.inside("r", "nft", table)
    try:
        seen = by_peers("half-close")(hosts, address) | by_peers("address")(hosts, address)
    finally:
        hosts.inside("r", "nft", "delete table inet masked")
    assert seen["address"] == RELAY_WAN["v6" if ":" in address else "v4"], f"not masqueraded: {seen}"
    return seen


TRIALS = {
    "curl download": curl_download, "curl parallel": curl_many, "curl upload": curl_upload, "curl HTTP/2": curl_http2,
    "curl refused": curl_refused, "curl reset": curl_reset, "ssh": ssh_command, "scp": scp_both_ways, "rsync": rsync_tree,
    "iperf3": iperf_both_ways, "git over HTTP": git_round, "PostgreSQL": postgres_round, "MariaDB": mariadb_round,
    "redis": redis_round, "memcached": by_peers("memcached"), "MQTT": mqtt_round, "SMTP": by_peers("smtp"),
    "Samba": samba_round, "websocket": by_peers("websocket"), "FTP passive": by_peers("ftp", "passive"),
    "FTP active": by_peers("ftp", "active"), "FTP abort": by_peers("ftp", "abort"),
    "FTP abort transfer": by_peers("ftp", "abort-transfer"), "urgent data": by_peers("urgent"),
    "1000 connections": by_peers("many"), "half-close": by_peers("half-close"), "TOS and TTL": by_peers("hops"),
    "options off": options_off, "path MTU": path_mtu, "masquerading": masqueraded,
}

