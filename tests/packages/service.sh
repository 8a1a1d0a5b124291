#!/bin/bash
# Within a Debian whose first process is systemd (tests/packages/boot): the package is installed, its relay runs as a service in
# the unit's sandbox and carries connections of a client to a server, through changes of its file, an upgrade of the
# package, a hand-over to the new program, a kill and a hang; then all of it is purged, and nothing is left.
#
# Beside it lie the package and the same one with a higher version: old.deb, new.deb.
set -u
export DEBIAN_FRONTEND=noninteractive
exec 3>&1

say() { echo "$(date +%T) $*" >&3; }
fail() {
  say "FAILED: $*"
  systemctl status --no-pager --full longfat-relay >&3 2>&1
  journalctl --no-pager -b -u longfat-relay -n 40 -o cat >&3
  exit 1
}
until_true() { # SECONDS COMMAND...
  local left=$(($1 * 5))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $((left -= 1)) -gt 0 ] || return 1
    sleep 0.2
  done
}
main_pid() { systemctl show -P MainPID longfat-relay; }
totals() { longfat relay status --name edge --json --top 0; }
total() { totals | grep -oE "\"$1\": ?[0-9]+" | grep -oE '[0-9]+$' | head -n 1; }
# A transfer from the client's host to the server's, through the relay, every byte compared.
carry() { ip netns exec client longfat transfer send 10.2.0.2 --verify "$@"; }
state() { find / -xdev \( -path /proc -o -path /sys -o -path /root -o -path /tmp -o -path /var -o -path /run \) -prune -o -print | sort; }
network() { nft list ruleset; ip rule; ip -6 rule; ip route show table all | grep -v "proto kernel"; cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding; }

hosts() {
  for host in client server; do
    ip netns add $host
    ip -n $host link set lo up
  done
  ip link add lan0 type veth peer name eth0 netns client
  ip link add wan0 type veth peer name eth0 netns server
  ip addr add 10.1.0.1/24 dev lan0 && ip link set lan0 up
  ip addr add 10.2.0.1/24 dev wan0 && ip link set wan0 up
  ip -n client addr add 10.1.0.2/24 dev eth0 && ip -n client link set eth0 up && ip -n client route add default via 10.1.0.1
  ip -n server addr add 10.2.0.2/24 dev eth0 && ip -n server link set eth0 up && ip -n server route add default via 10.2.0.1
  ip link set lo up
  # As the unit asks for: forwarding is the administrator's.
  echo 1 > /proc/sys/net/ipv4/ip_forward
  echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
}

programs() { grep -lx longfat /proc/[0-9]*/comm 2>/dev/null | wc -l; }

relay_file() { # ROUND-TRIP
  mkdir -p /etc/longfat
  cat > /etc/longfat/relay.toml <<TOML
name = "edge"
metrics = "127.0.0.1:9469"
drain = "5s"

[intercept]
interfaces = ["lan0"]

[defaults]
server = { cc = "cubic", rate = "1Gbit", rtt = "$1" }

[[rule]]
name = "held"
port = 5202
accept = "after-server"

[[rule]]
name = "all"
TOML
}

installed() {
  state > /root/before
  apt-get install -y -qq /root/old.deb >/root/apt.log 2>&1 || { cat /root/apt.log >&3; fail "apt-get install"; }
  [ "$(systemctl is-active longfat-relay)" = inactive ] || fail "the relay was started by being installed"
  [ "$(systemctl is-enabled longfat-relay)" = disabled ] || fail "the relay was enabled by being installed"
  say "installed $(dpkg-query -W longfat | tr '\t' ' ') on $(. /etc/os-release; echo "$PRETTY_NAME"), Linux $(uname -r), systemd $(systemctl --version | sed -n '1s/.*(\(.*\)).*/\1/p') ($KIND)"
}

# The unit's sandbox, as the kernel sees it.
confined() {
  local pid=$1 status
  status=$(cat "/proc/$pid/status")
  has() { grep -qE "^$1:[[:space:]]*$2" <<<"$status" || fail "process $pid has not $1 $2: $(grep "^$1:" <<<"$status")"; }
  has NoNewPrivs 1
  has Seccomp 2
  has Uid "$(id -u longfat)"
  # CAP_NET_BIND_SERVICE and CAP_NET_ADMIN; the relay has given CAP_NET_RAW up.
  has CapEff 0000000000001400
  for path in /usr/bin/x /etc/longfat/x /var/x; do
    nsenter -t "$pid" -m touch $path 2>/dev/null && fail "$path can be written within the sandbox"
  done
  [ -z "$(nsenter -t "$pid" -m ls -A /root 2>/dev/null)" ] || fail "/root can be read within the sandbox"
  nsenter -t "$pid" -m sh -c 'echo 1 > /proc/sys/kernel/panic' 2>/dev/null && fail "kernel tunables can be written within the sandbox"
  return 0
}

started() {
  relay_file 28ms
  systemctl enable --now longfat-relay 2>/dev/null || fail "systemctl enable --now"
  [ "$(systemctl is-active longfat-relay)" = active ] || fail "the relay is not active"
  confined "$(main_pid)"
  say "started as $(ps_user "$(main_pid)"), NoNewPrivs, seccomp, read-only system, two capabilities: $(systemd-analyze security --no-pager longfat-relay | tail -n 1 | sed 's/^[^a-zA-Z]*//')"
}
ps_user() { stat -c %U "/proc/$1"; }

carried() {
  ip netns exec server longfat transfer serve >/root/serve.log 2>&1 &
  ip netns exec server longfat transfer serve --listen 5202 >>/root/serve.log 2>&1 &
  until_true 20 ip netns exec client bash -c 'exec 9<>/dev/tcp/10.2.0.2/5201' || fail "nobody listens on the server's port"
  local before
  before=$(total connections)
  carry --duration 2s >/root/carry.log 2>&1 || { cat /root/carry.log >&3; fail "a transfer through the relay"; }
  ip netns exec client longfat transfer send 10.2.0.2:5202 --verify --duration 1s >/root/carry.log 2>&1 ||
    { cat /root/carry.log >&3; fail "a transfer whose handshake is held"; }
  [ "$(total connections)" -gt "$before" ] || fail "the relay carried none of it: $(totals)"
  say "carried $(($(total connections) - before)) connections, byte for byte, one rule early and one after the server"
}

# One transfer lives through all that follows, until 'alive' looks at its end.
long_transfer() { carry --rate 20Mbit --duration 25s --timeout 20s >/root/long.log 2>&1 & long=$!; until_true 10 lives || fail "no living connection"; }
lives() { [ "$(total live)" -ge 1 ]; }

file_read_again() {
  local pid
  pid=$(main_pid)
  relay_file 40ms
  systemctl reload longfat-relay || fail "systemctl reload"
  [ "$(main_pid)" = "$pid" ] && lives || fail "reloading changed the process, or ended a connection"
  say "systemctl reload: the file was read again, the connection lives"
}

package_upgraded() {
  local pid
  pid=$(main_pid)
  apt-get install -y -qq /root/new.deb >/root/apt.log 2>&1 || { cat /root/apt.log >&3; fail "the package's upgrade"; }
  [ "$(main_pid)" = "$pid" ] && lives || fail "the upgrade of the package ended the relay, or a connection"
  say "package upgraded to $(dpkg-query -W -f '${Version}' longfat): the relay and its connection live"
  mkdir -p /etc/systemd/system/longfat-relay.service.d
  cp /usr/share/doc/longfat/examples/longfat-relay-upgrade.conf /etc/systemd/system/longfat-relay.service.d/upgrade.conf
  systemctl daemon-reload
  systemctl reload longfat-relay || fail "systemctl reload with the upgrade's drop-in"
  until_true 10 eval '[ "$(main_pid)" != '"$pid"' ]' || fail "no new process took over"
  [ "$(systemctl is-active longfat-relay)" = active ] || fail "systemd lost the relay"
  lives || fail "the connection did not come over"
  confined "$(main_pid)"
  [ "$(readlink "/proc/$(main_pid)/exe")" = /usr/bin/longfat ] || fail "not the new program: $(readlink "/proc/$(main_pid)/exe")"
  wait $long || { cat /root/long.log >&3; fail "the transfer that lived through reload and upgrade"; }
  say "systemctl reload handed the connection over to the new program; it ended with every byte"
}

restarted() {
  local pid
  pid=$(main_pid)
  kill -KILL "$pid"
  until_true 20 eval '[ "$(main_pid)" != '"$pid"' ] && [ "$(systemctl is-active longfat-relay)" = active ]' || fail "not started again after a kill"
  carry --duration 1s >/root/carry.log 2>&1 || { cat /root/carry.log >&3; fail "a transfer after a kill"; }
  printf '[Service]\nWatchdogSec=4s\n' > /etc/systemd/system/longfat-relay.service.d/watchdog.conf
  systemctl daemon-reload
  systemctl restart longfat-relay || fail "systemctl restart"
  pid=$(main_pid)
  kill -STOP "$pid"
  until_true 40 eval '[ "$(main_pid)" != '"$pid"' ] && [ "$(systemctl is-active longfat-relay)" = active ]' || fail "the watchdog let a hanging relay be"
  carry --duration 1s >/root/carry.log 2>&1 || { cat /root/carry.log >&3; fail "a transfer after the watchdog"; }
  say "killed, and hung until the watchdog: each time systemd started it again, and it carried"
}

stopped() {
  systemctl stop longfat-relay || fail "systemctl stop"
  network > /root/network-after
  diff /root/network-before /root/network-after >&3 || fail "rules or routes were left by the relay"
  say "stopped: firewall, routes and sysctls are as before"
  systemctl start longfat-relay || fail "systemctl start"
}

purged() {
  # The servers of transfers have become the user 'longfat', too.
  # bash's own kill: the program is in a package that a plain Debian need not have.
  kill -KILL $(ip netns pids server)
  until_true 20 eval '[ -z "$(ip netns pids server)" ]' || fail "a server of transfers does not end"
  # Those that were killed are gone for good once this shell has asked for them.
  wait 2>/dev/null
  # A keeper is a unit of its own, which the guide has people enable.
  systemctl enable --now longfat-relay-keeper 2>/dev/null || fail "systemctl enable --now longfat-relay-keeper"
  rm -r /etc/longfat/relay.toml /etc/systemd/system/longfat-relay.service.d
  apt-get purge -y -qq longfat >/root/apt.log 2>&1 || { cat /root/apt.log >&3; fail "apt-get purge"; }
  network > /root/network-after
  diff /root/network-before /root/network-after >&3 || fail "purging left rules or routes"
  state > /root/after
  local left
  # What useradd keeps of the former state of its files is the system's own.
  left=$(comm -13 /root/before /root/after | grep -vxE '/etc/(passwd|group|shadow|gshadow|subuid|subgid)-' || true)
  [ -z "$left" ] || fail "left behind: $left"
  ! getent passwd longfat && ! getent group longfat || fail "the user or the group longfat was left"
  [ "$(programs)" = 0 ] && [ ! -e /run/longfat-relay ] && [ ! -e /run/longfat ] || fail "a process, or a directory below /run, was left"
  systemctl list-units --all --no-legend | grep longfat && fail "systemd still knows the unit"
  say "purged while it ran: no file, user, process, unit, rule or route is left"
}

hosts
network > /root/network-before
installed
started
carried
long_transfer
file_read_again
package_upgraded
restarted
stopped
purged
say "SERVICE OK in $SECONDS s"
