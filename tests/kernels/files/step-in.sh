# A client, this machine as its router, and a server: a transfer that a relay on this machine steps into.
#   step-in.sh inserted                     right after the handshake
#   step-in.sh adopted 'adopt_after = …'    in mid-stream
# It succeeds when the relay says that it has, and the transfer ends well.
counted=$1
ip netns add client && ip netns add server || exit
ip link add lan type veth peer name eth0 netns client
ip link add wan type veth peer name eth0 netns server
ip addr add 10.1.0.1/24 dev lan && ip link set lan up
ip addr add 10.2.0.1/24 dev wan && ip link set wan up
for end in client:10.1.0 server:10.2.0; do
  name=${end%:*} net=${end#*:}
  ip -n "$name" addr add "$net.2/24" dev eth0
  ip -n "$name" link set lo up && ip -n "$name" link set eth0 up
  ip -n "$name" route add default via "$net.1"
done
cat >/tmp/step-in.toml <<EOF
[control]
socket = "/tmp/step-in.sock"

[intercept]
interfaces = ["lan"]
forwarding = true

[[rule]]
name = "far"
accept = "end-to-end"
$2
EOF
longfat relay run /tmp/step-in.toml &
relay=$!
ip netns exec server longfat transfer serve --listen 10.2.0.2 &
server=$!
trap 'kill $relay $server; wait $relay; ip link del lan; ip link del wan; ip netns del client; ip netns del server' EXIT
for _ in $(seq 40); do
  longfat relay status --socket /tmp/step-in.sock >/dev/null 2>&1 && break
  # A relay that refuses to begin says why by its exit code.
  kill -0 $relay 2>/dev/null || { wait $relay; exit; }
  sleep 0.5
done
ip netns exec client longfat transfer send 10.2.0.2 --duration 8s --json >/tmp/step-in.json &
transfer=$!
for _ in $(seq 40); do
  longfat relay status --socket /tmp/step-in.sock --json | grep -qE "\"$counted\": *[1-9]" && break
  kill -0 $transfer 2>/dev/null || break
  sleep 0.5
done
wait $transfer || exit
longfat relay status --socket /tmp/step-in.sock --json | tee /tmp/step-in.status | grep -E "\"$counted\": *[1-9]"
