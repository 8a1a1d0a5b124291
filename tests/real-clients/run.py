#!/usr/bin/env python3
"""Real clients and servers through the relay: transparent, IPv4 and IPv6, every byte compared.

    tests/real-clients/run.py                  # all of it, with both ways of accepting
    tests/real-clients/run.py --only git

Three network namespaces, made here: client - relay - server. Each trial is an ordinary client program against an
ordinary server program; it passes when what arrived equals what was sent, or when a refusal looks like one. Needs
root, iproute2, nftables, curl, nginx, openssh, rsync, iperf3, git, fcgiwrap and PostgreSQL (Debian's packages). The
table is written to tests/real-clients/results/DATE.md. Exit status 1 when a trial fails.
"""

import argparse
import datetime
import glob
import hashlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RELAY = ROOT / "target/release/examples/relay"
SERVER = {"v4": "10.78.2.2", "v6": "fd78:2::2"}


def run(*command, **more):
    more = {"check": True, "capture_output": True, "text": True, "timeout": 120} | more
    try:
        return subprocess.run([str(part) for part in command], **more)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{error.stdout or ''}{error.stderr or ''}")
        raise


class Hosts:
    """client - relay - server, and what runs in them."""

    def __init__(self):
        tag = f"lfrc{os.getpid()}"
        self.names = {end: f"{tag}{end}" for end in "crs"}
        self.daemons = []

    def inside(self, end, *command, **more):
        return run("ip", "netns", "exec", self.names[end], *command, **more)

    def start(self, end, *command, **more):
        command = ["ip", "netns", "exec", self.names[end], *map(str, command)]
        log = open(self.work / "daemons.log", "a")
        process = subprocess.Popen(command, stdout=more.pop("stdout", log), stderr=log, **more)
        self.daemons.append(process)
        return process

    def __enter__(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="longfat-clients-"))
        self.work.chmod(0o755)
        for name in self.names.values():
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        for end, port, net in (("c", "lan", 1), ("s", "wan", 2)):
            host, relay = self.names[end], self.names["r"]
            run("ip", "-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", relay)
            for name, device, last in ((host, "eth0", 2), (relay, port, 1)):
                run("ip", "-n", name, "addr", "add", f"10.78.{net}.{last}/24", "dev", device)
                run("ip", "-n", name, "-6", "addr", "add", f"fd78:{net}::{last}/64", "dev", device, "nodad")
                run("ip", "-n", name, "link", "set", device, "up")
            run("ip", "-n", host, "route", "add", "default", "via", f"10.78.{net}.1")
            run("ip", "-n", host, "-6", "route", "add", "default", "via", f"fd78:{net}::1")
        for key in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            self.inside("r", "sh", "-c", f"echo 1 > /proc/sys/{key}")
        return self

    def __exit__(self, *_):
        for process in reversed(self.daemons):
            process.terminate()
        for process in self.daemons:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False)
        shutil.rmtree(self.work, ignore_errors=True)


def bracketed(address):
    return f"[{address}]" if ":" in address else address


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def same(one, other):
    assert digest(one) == digest(other), f"{one} and {other} differ"


def wait_for_port(hosts, port, address="10.78.2.2"):
    script = f"import socket; socket.create_connection(('{address}', {port}), 1)"
    for _ in range(100):
        if subprocess.run(["ip", "netns", "exec", hosts.names["s"], "python3", "-c", script],
                          capture_output=True).returncode == 0:
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens on port {port}")


# Servers -------------------------------------------------------------------------------------------------------------

NGINX = """
daemon off; pid {work}/nginx.pid; error_log {work}/nginx.log; user root;
events {{}}
http {{
  access_log off; client_max_body_size 0; client_body_temp_path {work}/body;
  server {{
    listen 80; listen [::]:80; root {work}/www; dav_methods PUT;
    location /reset {{ return 444; }}
    location ~ ^/git(/.*) {{
      fastcgi_pass unix:{work}/cgi.sock; include /etc/nginx/fastcgi_params;
      fastcgi_param SCRIPT_FILENAME /usr/lib/git-core/git-http-backend;
      fastcgi_param GIT_PROJECT_ROOT {work}/repos; fastcgi_param GIT_HTTP_EXPORT_ALL ""; fastcgi_param PATH_INFO $1;
      fastcgi_param REMOTE_USER tester;
    }}
  }}
}}
"""

RESETTER = """
import socket, struct
listener = socket.create_server(("::", 81), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 1000\\r\\n\\r\\nhalf")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
"""


def serve_web(hosts):
    work = hosts.work
    (work / "www").mkdir()
    (work / "repos").mkdir()
    (work / "www/large").write_bytes(os.urandom(64 << 20))
    for number in range(50):
        (work / f"www/small{number}").write_bytes(os.urandom(number * 97))
    (work / "nginx.conf").write_text(NGINX.format(work=work))
    hosts.start("s", "fcgiwrap", "-s", f"unix:{work}/cgi.sock")
    hosts.start("s", "nginx", "-c", work / "nginx.conf")
    hosts.start("s", "python3", "-c", RESETTER)
    wait_for_port(hosts, 80)
    wait_for_port(hosts, 81)


def serve_ssh(hosts):
    work = hosts.work
    os.makedirs("/run/sshd", exist_ok=True)
    for key in ("host", "user"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", work / f"{key}_key")
    shutil.copy(work / "user_key.pub", work / "authorized")
    (work / "sshd.conf").write_text(
        f"Port 22\nHostKey {work}/host_key\nAuthorizedKeysFile {work}/authorized\nStrictModes no\nUsePAM no\n"
        f"PermitRootLogin yes\nPidFile {work}/sshd.pid\nSubsystem sftp internal-sftp\n")
    hosts.start("s", "/usr/sbin/sshd", "-D", "-f", work / "sshd.conf")
    wait_for_port(hosts, 22)


def serve_rsync(hosts):
    work = hosts.work
    (work / "rsyncd.conf").write_text(f"use chroot = no\n[tree]\npath = {work}/www\nread only = yes\nuid = root\n")
    hosts.start("s", "rsync", "--daemon", "--no-detach", f"--config={work}/rsyncd.conf")
    wait_for_port(hosts, 873)


def serve_iperf(hosts):
    hosts.start("s", "iperf3", "-s")
    wait_for_port(hosts, 5201)


def serve_postgres(hosts):
    programs = pathlib.Path(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1])
    data = hosts.work / "pg"
    data.mkdir()
    shutil.chown(data, "postgres")
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    run(*as_postgres, programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", cwd="/")
    with open(data / "pg_hba.conf", "a") as file:
        file.write("host all all 10.78.0.0/16 trust\nhost all all fd78::/16 trust\n")
    hosts.start("s", *as_postgres, programs / "postgres", "-D", data, "-c", "listen_addresses=*",
                "-c", f"unix_socket_directories={data}", cwd="/")
    wait_for_port(hosts, 5432)


# Trials --------------------------------------------------------------------------------------------------------------

def curl(hosts, *arguments, **more):
    return hosts.inside("c", "curl", "-sS", "--globoff", "--max-time", "60", *arguments, **more)


def curl_download(hosts, address):
    target = hosts.work / "got"
    curl(hosts, "-o", target, f"http://{bracketed(address)}/large")
    same(target, hosts.work / "www/large")
    return "64 MiB"


def curl_many(hosts, address):
    urls = []
    for number in range(50):
        urls += ["-o", hosts.work / f"got{number}", f"http://{bracketed(address)}/small{number}"]
    curl(hosts, "--parallel", *urls)
    for number in range(50):
        same(hosts.work / f"got{number}", hosts.work / f"www/small{number}")
    return "50 files, parallel"


def curl_upload(hosts, address):
    curl(hosts, "-T", hosts.work / "www/large", f"http://{bracketed(address)}/put-{len(address)}")
    same(hosts.work / f"www/put-{len(address)}", hosts.work / "www/large")
    os.remove(hosts.work / f"www/put-{len(address)}")
    return "64 MiB"


def curl_refused(hosts, address):
    found = curl(hosts, f"http://{bracketed(address)}:82/", check=False)
    # 7: could not connect. (With early accept the connection is made and then reset: 52 or 56.)
    expected = (7,) if hosts.accept == "after-server" else (7, 52, 56)
    assert found.returncode in expected, f"curl says {found.returncode}: {found.stderr}"
    return found.stderr.strip().split(": ", 1)[-1].split(" after ")[0][:60]


def curl_reset(hosts, address):
    found = curl(hosts, f"http://{bracketed(address)}:81/", check=False)
    # 56: failure in receiving, which a reset is; 18 would be a premature end.
    assert found.returncode == 56 and "reset" in found.stderr, f"curl says {found.returncode}: {found.stderr}"
    return "reset in mid-answer seen as reset"


def ssh_options(hosts):
    return ["-i", hosts.work / "user_key", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
            "-o", "LogLevel=ERROR", "-o", "BatchMode=yes"]


def ssh_command(hosts, address):
    found = hosts.inside("c", "ssh", *ssh_options(hosts), f"root@{address}", f"sha256sum {hosts.work}/www/large; exit 3",
                         check=False)
    assert found.returncode == 3 and found.stdout.split()[0] == digest(hosts.work / "www/large"), found
    return "command, output and status"


def scp_both_ways(hosts, address):
    remote = f"root@{bracketed(address)}:{hosts.work}"
    hosts.inside("c", "scp", "-q", *ssh_options(hosts), hosts.work / "www/large", f"{remote}/scp-up")
    hosts.inside("c", "scp", "-q", *ssh_options(hosts), f"{remote}/scp-up", hosts.work / "scp-down")
    same(hosts.work / "scp-down", hosts.work / "www/large")
    return "64 MiB there and back"


def rsync_tree(hosts, address):
    target = hosts.work / "tree"
    hosts.inside("c", "rsync", "-a", "--checksum", f"rsync://{bracketed(address)}/tree/", f"{target}/")
    found = run("diff", "-r", hosts.work / "www", target, check=False)
    assert found.returncode == 0, found.stdout
    shutil.rmtree(target)
    return "51 files, 64 MiB"


def iperf_both_ways(hosts, address):
    # Its server tells the two streams of "both" apart by the order of their coming.
    ways = {"up": (), "down": ("-R",), "both": ("--bidir",)}
    for more in ways.values():
        hosts.inside("c", "iperf3", "-c", address, "-n", "64M", "-C", "cubic", *more)
    return f"64 MiB {', '.join(ways)}"


def git_round(hosts, address):
    bare, work = hosts.work / "repos/r.git", hosts.work / "clone"
    for folder in (bare, work, hosts.work / "again"):
        shutil.rmtree(folder, ignore_errors=True)
    run("git", "init", "-q", "--bare", bare)
    run("git", "-C", bare, "config", "http.receivepack", "true")
    url = f"http://{bracketed(address)}/git/r.git"
    git = lambda *command: hosts.inside("c", "git", "-c", "safe.directory=*", "-c", "user.name=t", "-c", "user.email=t@t",
                                        *command)
    git("clone", "-q", url, work)
    shutil.copy(hosts.work / "www/large", work / "large")
    git("-C", work, "add", "large")
    git("-C", work, "commit", "-q", "-m", "large")
    git("-C", work, "push", "-q", "origin", "HEAD:refs/heads/main")
    git("clone", "-q", "-b", "main", url, hosts.work / "again")
    same(hosts.work / "again/large", hosts.work / "www/large")
    return "clone, push 64 MiB, clone"


def postgres_round(hosts, address):
    psql = lambda *command, **more: hosts.inside("c", "psql", "-h", address, "-U", "postgres", "-qAtX",
                                                 "-v", "ON_ERROR_STOP=1", *command, **more)
    rows = hosts.work / "rows.csv"
    rows.write_text("".join(f"{n},{hashlib.sha256(str(n).encode()).hexdigest()}\n" for n in range(100_000)))
    rows.chmod(0o644)
    psql("-c", "drop table if exists t; create table t(n int primary key, h text)")
    psql("-c", f"\\copy t from '{rows}' csv")
    psql("-c", f"\\copy (select * from t order by n) to '{hosts.work}/back.csv' csv")
    same(rows, hosts.work / "back.csv")
    seen = psql("-c", "select inet_client_addr()").stdout.strip()
    assert seen in ("10.78.1.2", "fd78:1::2"), f"the server sees {seen}"
    return "100,000 rows there and back; the client's own address"


TRIALS = {
    "curl download": curl_download, "curl parallel": curl_many, "curl upload": curl_upload,
    "curl refused": curl_refused, "curl reset": curl_reset, "ssh": ssh_command, "scp": scp_both_ways,
    "rsync": rsync_tree, "iperf3": iperf_both_ways, "git over HTTP": git_round, "PostgreSQL": postgres_round,
}


class Relay:
    """The relay between the hosts, and how many connections to each of the server's addresses it says that it has carried: a relay that
    let everything pass unrelayed could not be told from one that carries it."""

    def __init__(self, hosts, program, accept):
        self.process = hosts.start("r", program, "lan", accept, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().startswith("ready"), "the relay does not start"
        self.carried = dict.fromkeys(SERVER.values(), 0)
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        for line in self.process.stdout:
            for address in self.carried:
                self.carried[address] += line.startswith("closed: ") and f" to {bracketed(address)}:" in line

    def wait_for_more_than(self, before, address):
        """A connection is reported when both legs have ended, which may be after its client has."""
        deadline = time.monotonic() + 10
        while self.carried[address] <= before:
            assert time.monotonic() < deadline, "nothing of it went through the relay"
            time.sleep(0.01)


def trials(accept, options, rows):
    with Hosts() as hosts:
        hosts.accept = accept
        for serve in (serve_web, serve_ssh, serve_rsync, serve_iperf, serve_postgres):
            serve(hosts)
        relay = Relay(hosts, options.relay, accept)
        for name, trial in TRIALS.items():
            if options.only and not name.startswith(options.only):
                continue
            for family, address in SERVER.items():
                begun, carried = time.monotonic(), relay.carried[address]
                try:
                    outcome, good = trial(hosts, address), True
                    relay.wait_for_more_than(carried, address)
                except (AssertionError, subprocess.SubprocessError, OSError) as error:
                    outcome, good = f"FAILED: {error}".splitlines()[0], False
                seconds = time.monotonic() - begun
                rows.append((accept, name, family, "yes" if good else "NO", outcome, f"{seconds:.1f}"))
                print(f"{accept:13} {name:15} {family}  {'ok  ' if good else 'FAIL'} {seconds:5.1f} s  {outcome}",
                      flush=True)
        assert relay.process.poll() is None, "the relay ended by itself"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="trials whose name begins so")
    parser.add_argument("--accept", action="append", choices=["early", "after-server"])
    parser.add_argument("--relay", default=RELAY, type=pathlib.Path, help="the program (the crate's example)")
    parser.add_argument("--dry", action="store_true", help="keep no table")
    options = parser.parse_args()
    rows = []
    for accept in options.accept or ("after-server", "early"):
        trials(accept, options, rows)
    lines = [f"# {datetime.date.today().isoformat()}", "", "| accept | trial | IP | met | what | s |", "|---|---|---|---|---|---|",
             *(f"| {' | '.join(row)} |" for row in rows)]
    if not options.dry and not options.only:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / f"{datetime.date.today().isoformat()}.md").write_text("\n".join(lines) + "\n")
    failed = sum(row[3] != "yes" for row in rows)
    print(f"{len(rows)} trials, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
