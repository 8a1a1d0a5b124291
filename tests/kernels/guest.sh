#!/bin/bash
# The first process of a trial machine: runs every trial in /trials, and the test programs in /tests, each bounded in time.
# What it says to the console is read by run.py: 'TRIAL NAME CODE' and 'TEST NAME CODE', and lines of output before them.
export PATH=/usr/bin:/usr/sbin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /dev/net
mknod /dev/net/tun c 10 200 2>/dev/null # opening it loads the module
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mkdir -p /run/netns
mount -t cgroup2 none /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ln -s /proc/self/fd /dev/fd
ip link set lo up
echo "UP $(uname -r)"

# One living connection to port 9 of this machine, held by this shell.
peers() {
  sleep 100 | nc -l -p 9 >/dev/null &
  for _ in $(seq 50); do
    exec 5<>/dev/tcp/127.0.0.1/9 && return
    sleep 0.2
  done 2>/dev/null
}

# Something to acknowledge on that connection, for ten seconds.
talk() {
  for _ in $(seq 100); do
    echo >&5
    sleep 0.1
  done
}

# A server of transfers.
serve() {
  longfat transfer serve --listen 127.0.0.1 &
  sleep 4
}
export -f peers talk serve

# A trial may change it; the next one, and the tests, begin with the kernel's.
default_cc=$(cat /proc/sys/net/ipv4/tcp_congestion_control)
for trial in /trials/*; do
  [ -f "$trial" ] || continue
  name=${trial##*/}
  echo "BEGIN $name"
  timeout -s KILL 120 setsid bash "$trial" </dev/null >/tmp/said 2>&1
  code=$?
  tail -n 6 /tmp/said | cut -c1-300
  echo "TRIAL ${name#*-} $code"
  echo "$default_cc" >/proc/sys/net/ipv4/tcp_congestion_control
done
longfat doctor --json >/tmp/doctor.json 2>/dev/null
echo "DOCTOR-BEGIN"; cat /tmp/doctor.json; echo "DOCTOR-END"
for test in /tests/*; do
  [ -x "$test" ] || continue
  timeout -s KILL "${TEST_LIMIT:-900}" "$test" --test-threads 1 </dev/null >/tmp/said 2>&1
  code=$?
  # Which one was not over in time.
  [ $code -ne 137 ] || tail -n 2 /tmp/said | cut -c1-300
  # A panic's own words come in the lines after it.
  grep -aE -A 4 '^test .*FAILED|^test result|panicked' /tmp/said | cut -c1-300
  echo "TEST ${test##*/} $code"
done
echo "DOWN"
poweroff -f
