#!/usr/bin/env bash
# Fuzzes every target (or those named) for a while, beginning with the seeds in fuzz/corpus and
# fuzz/regressions. What is found on the way stays in target/fuzz/corpus, so that the next run goes on
# from there; inputs that break something are left in target/fuzz/artifacts.
#
#   scripts/fuzz.sh [SECONDS [TARGET...]]
#
# Needs: a nightly toolchain with rustup, a C++ compiler, and `cargo install cargo-fuzz`.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
if [ $# -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(cd fuzz/fuzz_targets && ls | sed 's/\.rs$//'); fi

# The code under test is safe Rust almost everywhere, so the sanitizer is left out: Miri looks at the
# rest, and without it twice as many inputs are tried.
cargo +nightly fuzz build -s none
host=$(rustc -vV | sed -n 's/^host: //p')

failed=0
for target in "${targets[@]}"; do
    found=target/fuzz/corpus/$target artifacts=target/fuzz/artifacts/$target
    mkdir -p "$found" "$artifacts"
    arguments=("$found")
    for seeds in "fuzz/corpus/$target" "fuzz/regressions/$target"; do
        [ -d "$seeds" ] && arguments+=("$seeds")
    done
    [ "$target" = profile_text ] && arguments+=(profiles)
    [ "$target" = litmus_text ] && arguments+=(litmus/*)
    [ -f "fuzz/dictionaries/$target.dict" ] && arguments+=("-dict=fuzz/dictionaries/$target.dict")
    log=target/fuzz/$target.log
    if "fuzz/target/$host/release/$target" "${arguments[@]}" -artifact_prefix="$artifacts/" \
        -max_total_time="$seconds" -max_len=16384 -timeout=20 -rss_limit_mb=3000 \
        -print_final_stats=1 >"$log" 2>&1; then
        verdict=ok
    else
        verdict="FAILED, see $log" failed=1
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
    edges=$(grep -o 'cov: [0-9]*' "$log" | tail -1 | cut -d' ' -f2)
    printf '%-18s %10s runs %6s edges  %s\n' "$target" "${runs:-0}" "${edges:-?}" "$verdict"
done
exit $failed
