#!/usr/bin/env bash
# Runs Miri, the interpreter that notices undefined behaviour, over the unsafe code of the core crates.
# What runs, what can't, and why: docs/src/fuzzing.md.
#
# Needs: a nightly toolchain with the components miri and rust-src (added here when missing).
set -euo pipefail
cd "$(dirname "$0")/.."

rustup component list --toolchain nightly --installed | grep -q '^miri' ||
    rustup component add --toolchain nightly miri rust-src

# Isolation is off because the tests look at the environment and the clock. Leaks are not reported: the
# tests' mock leaks its spaces and CPUs on purpose, as a kernel's are never freed while in use.
export MIRIFLAGS=${MIRIFLAGS:--Zmiri-disable-isolation -Zmiri-ignore-leaks}

echo "==> core: unit tests"
# Left out: millions of steps of a counter, and of the allocators of tags, without any unsafe code.
cargo +nightly miri test -p shootdown --lib -- --skip kept_switches_are_counted_and_spilled_once \
    --skip tags::broadcast --skip tags::generations

# Takes seven minutes.
echo "==> core: the protocols on the mock (references to spaces in use, calls and their functions, gathers)"
cargo +nightly miri test -p shootdown --test protocol

echo "==> architecture: the pure parts"
# Left out: the tests that read what an assembler made (Miri has no inline assembly), and those that
# count through every value of a field or every combination of features.
cargo +nightly miri test -p shootdown-arch --lib -- \
    x86_64::cr4::tests x86_64::linear::tests \
    cpuid::tests::each_fact cpuid::tests::signatures cpuid::tests::false_claims cpuid::tests::leaves
