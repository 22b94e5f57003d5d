#!/usr/bin/env bash
# Import beside `cp -a --reflink=always`, on a tree of FILES files: into a new tree, the same hashed, and again with nothing changed.
#
#   import.sh [ROUNDS] [FILES]      ROUNDS: 5; FILES: 36000; FS="xfs btrfs", THREADS="1 2 4", BIN=target/release/ckptfs, CKPTFS_BENCH_DIR=/var/tmp
#
# Everything is measured in turn in each round, so that what else the machine does meets all alike. Prints tables in Markdown: median (least, most) in
# milliseconds, files a second by the median, ratios of medians, and what --hash found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. benches/lib.sh import

ROUNDS=${1:-5}
FILES=${2:-36000}
THREADS=${THREADS:-1 2 4}
SAID=$WORK/said

rate() { awk -v ms="$(median "$1")" -v files="$FILES" 'BEGIN { printf "%d", files * 1000 / ms }'; }

# Nothing of what came before is written back, or freed, while something is measured.
settle() { sync -f "$1"; }

measure() {
    local fs=$1 dir round threads
    make_image "$fs" 12G
    benches/tree.sh "$dir/plain" "$FILES" >/dev/null
    sync
    for round in $(seq "$ROUNDS"); do
        settle "$dir"
        timed cp cp -a --reflink=always "$dir/plain" "$dir/copy"
        rm -rf "$dir/copy"
        for threads in $THREADS; do
            settle "$dir"
            timed "fresh-$threads" "$BIN" import "$dir/plain" --into "$dir/tree" --threads "$threads"
            settle "$dir"
            timed "again-$threads" "$BIN" import "$dir/plain" --into "$dir/tree" --threads "$threads"
            "$BIN" mount "$dir/tree" >/dev/null 2>&1
            # The daemon is told that nothing has changed so far.
            "$BIN" import "$dir/plain" --into "$dir/tree" --threads "$threads" >/dev/null 2>&1
            timed "mounted-$threads" "$BIN" import "$dir/plain" --into "$dir/tree" --threads "$threads"
            "$BIN" umount "$dir/tree" >/dev/null 2>&1
            rm -rf "$dir/tree"
            settle "$dir"
            timed "hash-$threads" "$BIN" import "$dir/plain" --into "$dir/tree" --hash --threads "$threads"
            if [ "$round" = 1 ] && [ "$threads" = "${THREADS##* }" ]; then grep 'files hashed' "$WORK/said" >"$WORK/found-$fs"; fi
            rm -rf "$dir/tree"
            sync -f "$dir"
        done
    done
    for threads in $THREADS; do
        echo "| $fs | $threads | $(cell cp) | $(cell "fresh-$threads") | $(rate "fresh-$threads") | $(ratio "fresh-$threads" cp) | $(cell "hash-$threads") | $(rate "hash-$threads") | $(cell "again-$threads") | $(cell "mounted-$threads") |" >>"$WORK/table"
    done
    {
        echo
        echo "$fs, every round, milliseconds:"
        echo '```'
        for name in "$times"/*; do echo "$(basename "$name"): $(tr '\n' ' ' <"$name")"; done
        cat "$WORK/found-$fs"
        echo '```'
    } >>"$WORK/raw"
}

measure_all
echo "Milliseconds: median (least, most)."
echo
echo '| filesystem | threads | `cp -a --reflink=always` | import | files/s | import / cp | import `--hash` | files/s | import again, nothing changed | the same, mounted |'
echo '|---|---|---|---|---|---|---|---|---|'
cat "$WORK/table" "$WORK/raw"
