#!/bin/sh
# Makes every recording of this directory again. Needs root, perf, gcc, go, rustc, make, sysbench, coreutils and
# an idle machine; `shootdown` must be on the PATH. Works in a temporary directory.
#
# usage: record-all.sh OUTPUT-DIRECTORY
set -eu
src=$(cd "$(dirname "$0")" && pwd)
out=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# Ahead of everything else the machine does, so that every CPU is the program's.
record() {
    name=$1
    shift
    shootdown record -o "$out/$name.sdr" -- chrt --rr 1 "$@"
}

gcc -O2 -pthread -o unmap "$src/unmap.c"
record unmap-stress ./unmap 2 250

go build -o collect "$src/collect.go"
record go-gc ./collect 700

fileio="--file-total-size=64M --file-num=128 --file-test-mode=rndwr --file-io-mode=mmap"
sysbench fileio $fileio prepare >/dev/null
record sysbench-fileio-mmap \
    sysbench fileio $fileio --file-fsync-mode=fdatasync --threads=2 --time=1 run >/dev/null

sh "$src/make-project.sh" project 60
record make-j2 make -s -C project -j2 all

cp "$src/units.rs" .
record rustc rustc -O -C codegen-units=8 --crate-type lib units.rs

awk 'BEGIN { srand(7); for (i = 0; i < 250000; i++) print int(rand() * 1e9) }' >numbers
cp "$src/sort-loop.sh" .
record sort-loop sh sort-loop.sh numbers 40
