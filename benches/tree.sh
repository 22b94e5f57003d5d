#!/usr/bin/env bash
# Makes a tree of real files for demonstrations and measurements.
#
#   tree.sh DEST [FILES]     FILES: how many regular files exactly (default 36000)
#
# The files are the sources of the crates that cargo has fetched for this project: thousands of real ones, of real sizes, there
# without a download. When they are fewer than FILES the set is repeated as set-2, set-3, ... TREE_SOURCE names another source.
set -euo pipefail

DEST=${1:?usage: tree.sh DEST [FILES]}
FILES=${2:-36000}
SOURCE=${TREE_SOURCE:-${CARGO_HOME:-$HOME/.cargo}/registry/src}

if [ -e "$DEST" ] && [ -n "$(ls -A "$DEST")" ]; then
    echo "tree: $DEST is not empty" >&2
    exit 1
fi
if [ ! -d "$SOURCE" ]; then
    echo "tree: no crates in $SOURCE. Hint: run \`cargo fetch\` first, or name a directory in TREE_SOURCE" >&2
    exit 1
fi
mkdir -p "$DEST"
DEST=$(cd "$DEST" && pwd)
cd "$SOURCE"

list=$(mktemp)
trap 'rm -f "$list"' EXIT

# Sorted, so that the same crates give the same tree.
find . -type f -print0 | LC_ALL=C sort -z >"$list"
available=$(tr -cd '\0' <"$list" | wc -c)
if [ "$available" = 0 ]; then
    echo "tree: there are no files in $SOURCE" >&2
    exit 1
fi

left=$FILES set=1
while [ "$left" -gt 0 ]; do
    count=$((left < available ? left : available))
    mkdir -p "$DEST/set-$set"
    head -z -n "$count" "$list" | tar --null --no-recursion -T - -cf - | tar -C "$DEST/set-$set" -xf -
    left=$((left - count)) set=$((set + 1))
done
