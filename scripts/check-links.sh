#!/usr/bin/env bash
# Every relative link in the Markdown files leads to a file that exists, and every page of the book is
# in its table of contents.
set -euo pipefail
cd "$(dirname "$0")/.."

bad=0
complain() {
    printf '%s\n' "$*" >&2
    bad=1
}

while IFS= read -r file; do
    while IFS= read -r target; do
        case $target in
        http://* | https://* | mailto:* | '#'*) continue ;;
        esac
        path=$(dirname "$file")/${target%%#*}
        [ -e "$path" ] || complain "$file: link to $target leads nowhere"
    # Code blocks and `code` hold brackets of their own.
    done < <(awk '/^ *```/ { code = !code; next } !code' "$file" | sed 's/`[^`]*`//g' |
        grep -oE '\]\([^) ]+\)' | sed 's/^](//; s/)$//' || true)
done < <(find . -name '*.md' -not -path './target/*' -not -path './.git/*' | sort)

for page in docs/src/*.md docs/src/*/*.md; do
    [ -e "$page" ] || continue
    name=${page#docs/src/}
    [ "$name" = SUMMARY.md ] && continue
    grep -qF "($name)" docs/src/SUMMARY.md || complain "$page is not in docs/src/SUMMARY.md"
done

exit "$bad"
