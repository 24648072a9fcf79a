#!/bin/sh
# Writes a small C project with a Makefile: FILES sources that include the usual headers.
#
# usage: make-project.sh DIRECTORY FILES
set -eu
mkdir -p "$1"
objects=
part=0
while [ "$part" -lt "$2" ]; do
    cat >"$1/part$part.c" <<END
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int part$part(int n) {
    char text[64];
    int sum = 0;
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%d", i * $part);
        sum += (int)strlen(text) + atoi(text);
    }
    return sum;
}
END
    objects="$objects part$part.o"
    part=$((part + 1))
done
printf 'CFLAGS = -O1\nall:%s\nclean:\n\trm -f *.o\n' "$objects" >"$1/Makefile"
