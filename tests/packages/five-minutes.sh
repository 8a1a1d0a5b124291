#!/bin/bash
# Within a Debian whose first process is systemd (tests/packages/boot): the commands of page.sh, timed one by one,
# as root.
set -u
export DEBIAN_FRONTEND=noninteractive
BAR_S=300
begun=$(date +%s%N)

fail() { echo "FAILED: $*"; tail -n 20 /root/said 2>/dev/null; exit 1; }
tenths() { local ms=$((($(date +%s%N) - $1) / 1000000)); echo "$((ms / 1000)).$((ms / 100 % 10))"; }
step() { # COMMAND EXIT-CODE
  local command=${1//sudo /} at code
  at=$(date +%s%N)
  # In this shell: what a command leaves in the background is there for the next one.
  eval "$command" >/root/said 2>&1
  code=$?
  printf '%7s s  %s\n' "$(tenths "$at")" "$1"
  # What of all features this Debian lacks is its own matter; those that the page uses are asked for below.
  [[ $command != "longfat doctor" || $code != 3 ]] || code=0
  [ "$code" = "$2" ] || fail "exit code $code, not $2: $1"
}
until_said() { # FILE WORDS
  for _ in $(seq 200); do
    grep -qs -- "$2" "$1" && return
    sleep 0.1
  done
  fail "'$1' never said '$2'"
}

for compiler in cc gcc clang cargo rustc make; do
  ! command -v $compiler >/dev/null || fail "'$compiler' is here: this would prove nothing"
done
echo "$(. /etc/os-release; echo "$PRETTY_NAME"), Linux $(uname -r), $(systemctl --version | sed -n 1p) ($KIND)"
. /root/page.sh
longfat doctor relay transfer simulate >/root/said 2>&1 || fail "a feature that the page uses does not work"
taken=$((($(date +%s%N) - begun) / 1000000000))
[ "$(systemctl is-active longfat-relay)" = active ] || fail "the relay is no running service"
relayed=$(longfat relay status --json --top 0 | grep -oE '"connections": ?[0-9]+' | grep -oE '[0-9]+$' | head -n 1)
[ "${relayed:-0}" -gt 0 ] || fail "the relay carried no connection"
[ -s first/report.html ] || fail "there is no page of the experiment"
# An emulated processor's time decides nothing.
[ "$KIND" = machine ] || [ $taken -lt $BAR_S ] || fail "$taken s for the whole page: the bar is $BAR_S s"
echo "FIVE MINUTES OK: the whole page in $taken s; the relay is a service and carried $relayed connections; report.html has $(stat -c %s first/report.html) bytes"
