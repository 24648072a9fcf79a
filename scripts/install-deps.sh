#!/usr/bin/env bash
# What parts of the project need on Debian 12. Building, testing and replaying need none of this: only
# rustup, a stable toolchain and a C linker.
#
#   scripts/install-deps.sh [record|tlc|metal|metal-bochs]...     all by default
#
# record: `shootdown record` and the examples in recordings/. tlc: scripts/tlc.sh. metal: `cargo xtask` on QEMU.
# metal-bochs: `cargo xtask --machine bochs`, `--loader`, and ISOs for a machine of your own.
set -euo pipefail

record=(
    linux-perf # records scheduling, system calls, faults and flushes from the kernel's tracepoints
    strace     # the fallback where perf is missing or not permitted
    sysbench   # recordings: random writes to a mapped file
    stress-ng  # recordings: mprotect and munmap from many threads
    make gcc   # recordings: a parallel compile
    golang-go  # recordings: a garbage-collected runtime
)

tlc=(
    openjdk-17-jre-headless # runs TLC
    maven                   # fetches TLC from Maven Central
)

metal=(
    qemu-system-x86 # the bare-metal image on an emulated x86-64
    qemu-system-arm # and AArch64
)

metal_bochs=(
    bochs bochsbios bochs-term vgabios  # a second model of x86-64, drawing on a terminal
    grub-common grub-pc-bin grub-efi-amd64-bin xorriso mtools # which boots from an ISO, as a PC does
    ovmf # and QEMU by UEFI
)

packages=()
[ $# -gt 0 ] || set -- record tlc metal metal-bochs
for part in "$@"; do
    case $part in
    record) packages+=("${record[@]}") ;;
    tlc) packages+=("${tlc[@]}") ;;
    metal) packages+=("${metal[@]}") ;;
    metal-bochs) packages+=("${metal_bochs[@]}") ;;
    *)
        printf "unknown part '%s': give record, tlc, metal, metal-bochs or nothing\n" "$part" >&2
        exit 2
        ;;
    esac
done

sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
$sudo apt-get update
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"

# Tracepoints are for root, or for everyone after this:
[[ " $* " != *' record '* ]] || printf 'To record as an ordinary user: sysctl kernel.perf_event_paranoid=-1 and mount -o remount,mode=755 %s\n' \
    /sys/kernel/tracing
