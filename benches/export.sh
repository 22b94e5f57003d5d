#!/usr/bin/env bash
# Export and fork beside `cp -a --reflink=always`, and an export after 60 changes beside `rsync -a`, on a tree of FILES files.
#
# `export -` to a file and to a pipe stands beside `tar c`.
#
#   export.sh [ROUNDS] [FILES]      ROUNDS: 7; FILES: 36000; FS="xfs btrfs", BIN=target/release/ckptfs, CKPTFS_BENCH_DIR=/var/tmp
#
# Everything is measured in turn in each round, so that what else the machine does meets all alike. Prints a table in Markdown: median (least, most) in
# milliseconds, and ratios of medians.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. benches/lib.sh export

ROUNDS=${1:-7}
FILES=${2:-36000}

# Sixty files of the tree get one more line.
change() { head -n 60 "$WORK/changed" | (cd "$tree" && while IFS= read -r file; do echo "$1" >>"$file"; done); }

measure() {
    local fs=$1 dir round
    make_image "$fs" 12G
    tree=$dir/tree
    benches/tree.sh "$tree" "$FILES" >/dev/null
    sync
    (cd "$tree" && find . -type f -size +0 | sort | awk 'NR % 500 == 1') >"$WORK/changed"
    "$BIN" mount "$tree" >/dev/null 2>&1
    "$BIN" -C "$tree" checkpoint >/dev/null
    # What cp and rsync read: a plain directory beside, the same tree.
    "$BIN" -C "$tree" fork 1 "$dir/plain" >/dev/null
    rsync -a "$dir/plain/" "$dir/rsynced/"
    "$BIN" -C "$tree" export 1 "$dir/exported" >/dev/null
    sync
    for round in $(seq "$ROUNDS"); do
        timed cp cp -a --reflink=always "$dir/plain" "$dir/cp"
        timed export "$BIN" -C "$tree" export 1 "$dir/export"
        timed fork "$BIN" -C "$tree" fork 1 "$dir/fork"
        timed tar sh -c 'tar -c -C "$1" . >"$2"' sh "$dir/plain" "$dir/tar"
        timed stream sh -c '"$1" -C "$2" export 1 - >"$3"' sh "$BIN" "$tree" "$dir/stream"
        timed tar-pipe sh -c 'tar -c -C "$1" . | cat' sh "$dir/plain"
        timed stream-pipe sh -c '"$1" -C "$2" export 1 - | cat' sh "$BIN" "$tree"
        rm -rf "$dir/cp" "$dir/export" "$dir/fork" "$dir/tar" "$dir/stream"
        sync -f "$dir"
        change "$round"
        timed checkpoint "$BIN" -C "$tree" checkpoint
        timed diff "$BIN" -C "$tree" diff latest~1 latest
        timed after60 "$BIN" -C "$tree" export latest "$dir/exported"
        (cd "$dir/plain" && head -n 60 "$WORK/changed" | while IFS= read -r file; do echo "$round" >>"$file"; done)
        timed rsync rsync -a "$dir/plain/" "$dir/rsynced/"
        timed restore "$BIN" -C "$tree" restore 1
        sync -f "$dir"
    done
    printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$fs" "$(cell cp)" "$(cell export)" "$(ratio export cp)" "$(cell fork)" "$(ratio fork cp)" "$(cell after60)" "$(cell rsync)" >>"$WORK/table"
    printf '| %s | %s | %s | %s | %s |\n' "$fs" "$(cell checkpoint)" "$(cell restore)" "$(cell diff)" "$(cell fork)" >>"$WORK/others"
    printf '| %s | %s | %s | %s | %s | %s | %s |\n' "$fs" "$(cell tar)" "$(cell stream)" "$(ratio stream tar)" "$(cell tar-pipe)" "$(cell stream-pipe)" "$(ratio stream-pipe tar-pipe)" >>"$WORK/streams"
}

measure_all
echo "Milliseconds: median (least, most)."
echo
echo '| filesystem | `cp -a --reflink=always` | export | export / cp | fork | fork / cp | export after 60 changes | `rsync -a` after 60 changes |'
echo '|---|---|---|---|---|---|---|---|'
cat "$WORK/table"
echo
echo '| filesystem | checkpoint | restore of 60 | diff of 60 | fork |'
echo '|---|---|---|---|---|'
cat "$WORK/others"
echo
echo '| filesystem | `tar c` to a file | `export -` | export / tar | `tar c` to a pipe | `export -` to a pipe | export / tar |'
echo '|---|---|---|---|---|---|---|'
cat "$WORK/streams"
