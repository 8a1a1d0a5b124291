"""The servers: ordinary programs with configurations of their own, each on the server's host."""

import glob
import os
import pathlib
import shutil

from hosts import PEERS, PYTHON, run

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
  server {{
    listen 443 ssl http2; listen [::]:443 ssl http2; root {work}/www; dav_methods PUT;
    ssl_certificate {work}/tls.crt; ssl_certificate_key {work}/tls.key;
    location /who {{ return 200 "$remote_addr $server_protocol"; }}
  }}
}}
"""


def serve_web(hosts):
    work = hosts.work
    (work / "www").mkdir()
    (work / "repos").mkdir()
    (work / "www/large").write_bytes(os.urandom(64 << 20))
    (work / "medium").write_bytes(os.urandom(8 << 20))
    for number in range(50):
        (work / f"www/small{number}").write_bytes(os.urandom(number * 97))
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=server", "-keyout", work / "tls.key", "-out", work / "tls.crt")
    (work / "nginx.conf").write_text(NGINX.format(work=work))
    hosts.start("s", "fcgiwrap", "-s", f"unix:{work}/cgi.sock")
    hosts.start("s", "nginx", "-c", work / "nginx.conf")
    for port in (80, 443):
        hosts.wait_for_port(port)


def serve_own(hosts):
    """The programs of peers.py."""
    for name, port in (("resetter", 81), ("echo", 7), ("collector", 9), ("smtp", 25), ("websocket", 8765), ("hops", 179)):
        hosts.start("s", PYTHON, PEERS, "serve", name, port)
        if name != "hops":
            hosts.wait_for_port(port)


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
    hosts.wait_for_port(22)


def serve_rsync(hosts):
    work = hosts.work
    (work / "rsyncd.conf").write_text(f"use chroot = no\n[tree]\npath = {work}/www\nread only = yes\nuid = root\n")
    hosts.start("s", "rsync", "--daemon", "--no-detach", f"--config={work}/rsyncd.conf")
    hosts.wait_for_port(873)


def serve_iperf(hosts):
    hosts.start("s", "iperf3", "-s")
    hosts.wait_for_port(5201)


def as_user(name):
    return ["setpriv", f"--reuid={name}", f"--regid={name}", "--clear-groups"]


def serve_postgres(hosts):
    programs = pathlib.Path(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1])
    data = hosts.work / "pg"
    data.mkdir()
    shutil.chown(data, "postgres")
    run(*as_user("postgres"), programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", cwd="/")
    with open(data / "pg_hba.conf", "a") as file:
        file.write("host all all 10.78.0.0/16 trust\nhost all all fd78::/16 trust\n")
    hosts.start("s", *as_user("postgres"), programs / "postgres", "-D", data, "-c", "listen_addresses=*",
                "-c", f"unix_socket_directories={data}", cwd="/")
    hosts.wait_for_port(5432)


def serve_mariadb(hosts):
    data = hosts.work / "my"
    data.mkdir()
    shutil.chown(data, "mysql")
    run("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=mysql", "--skip-test-db",
        "--auth-root-authentication-method=normal", cwd="/")
    hosts.start("s", "mariadbd", "--no-defaults", f"--datadir={data}", "--user=mysql", "--bind-address=*", "--skip-name-resolve",
                f"--socket={data}/s", f"--pid-file={data}/pid", "--max-allowed-packet=64M", "--local-infile=1", cwd="/")
    hosts.wait_for_port(3306)
    run("mariadb", "--no-defaults", f"--socket={data}/s", "-u", "root", "-e",
        "create database d; create user t@'%'; grant all on *.* to t@'%'")


def serve_redis(hosts):
    hosts.start("s", "redis-server", "--port", 6379, "--bind", "0.0.0.0", "::", "--protected-mode", "no", "--save", "",
                "--dir", hosts.work)
    hosts.wait_for_port(6379)


def serve_memcached(hosts):
    hosts.start("s", "memcached", "-u", "root", "-l", "0.0.0.0,::", "-p", 11211, "-m", 128)
    hosts.wait_for_port(11211)


def serve_mqtt(hosts):
    (hosts.work / "mosquitto.conf").write_text(
        "listener 1883 0.0.0.0\nlistener 1883 ::\nallow_anonymous true\nuser root\nconnection_messages true\n"
        f"log_dest file {hosts.work}/mosquitto.log\n")
    hosts.start("s", "mosquitto", "-c", hosts.work / "mosquitto.conf")
    hosts.wait_for_port(1883)


SAMBA = """
[global]
  server role = standalone server
  map to guest = bad user
  guest account = nobody
  disable netbios = yes
  smb ports = 445
  interfaces = lo eth0
  load printers = no
  private dir = {work}/smb
  lock directory = {work}/smb
  state directory = {work}/smb
  cache directory = {work}/smb
  pid directory = {work}/smb
  ncalrpc dir = {work}/smb/rpc
  log file = {work}/smb/log
[share]
  path = {work}/shared
  guest ok = yes
  read only = no
"""


def serve_samba(hosts):
    for folder in ("smb", "shared"):
        (hosts.work / folder).mkdir()
    (hosts.work / "shared").chmod(0o777)
    (hosts.work / "smb.conf").write_text(SAMBA.format(work=hosts.work))
    hosts.start("s", "smbd", "--foreground", "--no-process-group", "-s", hosts.work / "smb.conf")
    hosts.wait_for_port(445)


FTP = """
listen=NO
listen_ipv6=YES
anonymous_enable=YES
anon_root={work}/ftp
anon_upload_enable=YES
anon_umask=022
write_enable=YES
no_anon_password=YES
async_abor_enable=YES
connect_from_port_20=YES
background=NO
seccomp_sandbox=NO
secure_chroot_dir={work}/empty
"""


def serve_ftp(hosts):
    for folder in ("ftp", "ftp/in", "empty"):
        (hosts.work / folder).mkdir()
    shutil.chown(hosts.work / "ftp/in", "ftp")
    os.link(hosts.work / "www/large", hosts.work / "ftp/large")
    shutil.copy(hosts.work / "medium", hosts.work / "ftp/medium")
    (hosts.work / "vsftpd.conf").write_text(FTP.format(work=hosts.work))
    hosts.start("s", "vsftpd", hosts.work / "vsftpd.conf")
    hosts.wait_for_port(21)


SERVERS = [serve_web, serve_own, serve_ssh, serve_rsync, serve_iperf, serve_postgres, serve_mariadb, serve_redis,
           serve_memcached, serve_mqtt, serve_samba, serve_ftp]
