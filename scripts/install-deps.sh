#!/usr/bin/env bash
# What `shootdown record` and the examples in recordings/ need on Debian 12. Building, testing and
# replaying need none of this: only rustup, a stable toolchain and a C linker.
set -euo pipefail

packages=(
    linux-perf # records scheduling, system calls, faults and flushes from the kernel's tracepoints
    strace     # the fallback where perf is missing or not permitted
    sysbench   # recordings: random writes to a mapped file
    stress-ng  # recordings: mprotect and munmap from many threads
    make gcc   # recordings: a parallel compile
    golang-go  # recordings: a garbage-collected runtime
)

sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
$sudo apt-get update
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"

# Tracepoints are for root, or for everyone after this:
printf 'To record as an ordinary user: sysctl kernel.perf_event_paranoid=-1 and mount -o remount,mode=755 %s\n' \
    /sys/kernel/tracing
