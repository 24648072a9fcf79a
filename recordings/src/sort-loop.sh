#!/bin/sh
# Sorts a file again and again, with two threads each time: short processes, fork, exec and exit.
#
# usage: sort-loop.sh FILE ROUNDS
set -eu
round=0
while [ "$round" -lt "$2" ]; do
    LC_ALL=C sort --parallel=2 --buffer-size=16M "$1" >/dev/null
    round=$((round + 1))
done
