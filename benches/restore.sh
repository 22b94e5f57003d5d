#!/usr/bin/env bash
# Restore beside the floor: clone + chmod + utimens + rename of the same files by a C program with two threads.
#
#   restore.sh [ROUNDS] [FILES]      ROUNDS: 5; FILES: 12000; FS="xfs btrfs", BIN=target/release/ckptfs, CKPTFS_BENCH_DIR=/var/tmp
#   STRACE=1 restore.sh ...          prints the daemon's system calls a file, and measures nothing else
#   PERF=out restore.sh ...          records the daemon with perf to this file in the last round
#
# In each round, in turn: the floor; a restore after every file was changed; one after 60 were; one after FILES names were renamed; one after all were
# removed. Prints tables in Markdown: medians in milliseconds (least, most), of the whole process and as the verb says, microseconds a file, the daemon's
# CPU, and ratios to the floor.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. benches/lib.sh restore

ROUNDS=${1:-5}
FILES=${2:-12000}

each() { awk -v ms="$(median "$1")" -v files="$2" 'BEGIN { printf "%.0f", ms * 1000 / files }'; }

# The daemon's processor time, milliseconds.
cpu() { awk -v hz="$(getconf CLK_TCK)" '{ print ($14 + $15) * 1000 / hz }' "/proc/$1/stat"; }

daemon() { awk '{ print $2 }' < <("$BIN" -C "$dir/tree" status --json | tr ',{}' '\n' | awk -F: '$1 ~ /"pid"/ { print "pid", $2; exit }'); }

# Restores the last checkpoint and notes what it took; then waits until nobody has anything to do.
restore() {
    local name=$1 from to before
    sync -f "$dir"
    sleep 0.3
    before=$(cpu "$pid")
    from=$(date +%s%N)
    "$BIN" -C "$dir/tree" restore "$first" --json >"$WORK/said" 2>&1
    to=$(date +%s%N)
    sed -n 's/.*"duration_us":\([0-9]*\).*/\1/p' "$WORK/said" | awk '{ printf "%.2f\n", $1 / 1000 }' >>"$times/$name-verb"
    awk -v ns=$((to - from)) 'BEGIN { printf "%.1f\n", ns / 1e6 }' >>"$times/$name"
    awk -v a="$before" -v b="$(cpu "$pid")" 'BEGIN { print b - a }' >>"$times/$name-cpu"
}

mark() { first=$("$BIN" -C "$dir/tree" checkpoint --json | sed -n 's/.*"id":\([0-9]*\).*/\1/p'); }

change() { (cd "$dir/tree" && head -n "$1" "$WORK/names" | tr '\n' '\0' | xargs -0 sh -c 'for path; do echo changed >>"$path"; done' sh); }

measure() {
    local fs=$1 round
    make_image "$fs" 8G
    mkdir "$dir/tree"
    # Small files, a hundred in a directory: what costs is the file and not its bytes.
    (cd "$dir/tree" && for at in $(seq "$FILES"); do echo "d$((at / 100))/f$at"; done >"$WORK/names" &&
        cut -d/ -f1 "$WORK/names" | uniq | xargs mkdir && while read -r path; do echo "a file named $path" >"$path"; done <"$WORK/names")
    cp -a "$dir/tree" "$dir/plain"
    "$BIN" mount "$dir/tree" --seal=off --tripwire=off >/dev/null
    pid=$(daemon)
    for round in $(seq "$ROUNDS"); do
        if [ -z "${STRACE:-}" ]; then
            cp -a --reflink=always "$dir/plain" "$dir/copy"
            mkdir "$dir/staging"
            sync -f "$dir"
            "$WORK/floor" "$dir/plain" "$dir/staging" "$dir/copy" "$WORK/names" 2 >"$WORK/said"
            awk '{ printf "%.1f\n", $1 / 1000 }' "$WORK/said" >>"$times/floor"
            awk '{ printf "%.1f\n", $2 / 1000 }' "$WORK/said" >>"$times/floor-cpu"
            rm -rf "$dir/copy" "$dir/staging"
        fi
        mark
        change "$FILES"
        if [ -n "${STRACE:-}" ]; then
            # What is measured is all that there is.
            sync -f "$dir"
            strace -c -f -p "$pid" -o "$WORK/strace" 2>/dev/null &
            sleep 2
            restore all
            kill -INT $! && wait $! || true
            awk -v files="$FILES" '$4 ~ /^[0-9]+$/ && $NF != "total" && $4 / files >= 0.05 { printf "%s=%.2f ", $NF, $4 / files } END { print "" }' "$WORK/strace" >>"$WORK/raw"
            return
        fi
        if [ -n "${PERF:-}" ] && [ "$round" = "$ROUNDS" ]; then
            perf record -q -g -p "$pid" -o "$PERF" >/dev/null 2>&1 &
            sleep 1
            restore all
            kill -INT $! && wait $! || true
        else
            restore all
        fi
        mark
        change 60
        restore few
        mark
        (cd "$dir/tree" && python3 -c 'import os, sys
for path in map(str.strip, open(sys.argv[1])): os.rename(path, path + ".moved")' "$WORK/names")
        restore moved
        mark
        (cd "$dir/tree" && rm -rf d*)
        restore removed
    done
    # How long somebody waits who looks for names that the kernel does not know, while all are restored; and what memory that took.
    mark
    change "$FILES"
    before=$(awk '/VmHWM/ { print $2 }' "/proc/$pid/status")
    python3 -c 'import os, sys, time
longest, number = 0, 0
open(sys.argv[2] + ".looks", "w")
while not os.path.exists(sys.argv[2]):
    began = time.monotonic()
    os.path.exists(f"{sys.argv[1]}/none-{number}")
    longest, number = max(longest, time.monotonic() - began), number + 1
    time.sleep(0.001)
print(f"{longest * 1000:.1f}")' "$dir/tree" "$WORK/over-$fs" >"$WORK/longest" &
    looker=$!
    until [ -e "$WORK/over-$fs.looks" ]; do sleep 0.05; done
    restore beside
    touch "$WORK/over-$fs"
    wait "$looker"
    after=$(awk '/VmHWM/ { print $2 }' "/proc/$pid/status")
    echo "$fs: with all $FILES restored the longest look-up beside it took $(cat "$WORK/longest") ms; the daemon's largest size was $before KiB before and $after KiB after." >>"$WORK/beside"
    {
        echo "| $fs, by hand | | $(cell floor) | $(each floor "$FILES") | $(each floor-cpu "$FILES") | | |"
        for name in all few moved removed; do
            files=$([ $name = few ] && echo 60 || echo "$FILES")
            echo "| $fs, $name | $(cell $name) | $(cell $name-verb) | $(each $name-verb "$files") | $(each $name-cpu "$files") | $([ $name = few ] || ratio $name-verb floor) | $([ $name = few ] || ratio $name-cpu floor-cpu) |"
        done
    } >>"$WORK/table"
}

cc -O2 -pthread -o "$WORK/floor" benches/restore.c
measure_all
if [ -n "${STRACE:-}" ]; then cat "$WORK/raw"; exit; fi
echo '| what | the whole process, ms | the verb, ms | us a file | CPU, us a file | verb / by hand | CPU / by hand |'
echo '|---|---|---|---|---|---|---|'
cat "$WORK/table"
echo
cat "$WORK/beside"
