#!/usr/bin/env bash
# What a long history costs: the same tree with 10 checkpoints and with many, with some files changed before each.
#
#   growth.sh [CHECKPOINTS] [CHANGES] [FILES]      10000, 60, 36000; FS="xfs btrfs", BIN=target/release/ckptfs, CKPTFS_BENCH_DIR=/var/tmp
#
# Prints a table in Markdown for each filesystem: sizes on disk, memory of the daemon, and medians of nine in milliseconds. The last column is after
# `gc --keep-last 10`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. benches/lib.sh growth

COUNT=${1:-10000}
CHANGES=${2:-60}
FILES=${3:-36000}
ROUNDS=9

make_image() {
    truncate -s 16G "$WORK/image"
    case $1 in
        xfs) mkfs.xfs -q -m reflink=1 "$WORK/image" ;;
        btrfs) mkfs.btrfs -q "$WORK/image" ;;
    esac
    mkdir -p "$WORK/mnt"
    mount -o loop "$WORK/image" "$WORK/mnt"
}

make_tree() {
    local n dir
    mkdir "$TREE"
    for ((n = 0; n < FILES; n += 50)); do
        dir=$TREE/d$((n / 1000))/s$((n / 50 % 20))
        mkdir -p "$dir"
        for ((m = n; m < n + 50 && m < FILES; m++)); do echo "file $m" >"$dir/f$m"; done
    done
}

# Changes CHANGES files, other ones each time, and makes a checkpoint.
step() {
    local n number
    for ((n = 0; n < CHANGES; n++)); do
        number=$(((STEPS * CHANGES + n) * 7919 % FILES))
        echo more >>"$TREE/d$((number / 1000))/s$((number / 50 % 20))/f$number"
    done
    STEPS=$((STEPS + 1))
    "$BIN" -C "$TREE" checkpoint >/dev/null
}

median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }

# Median of the milliseconds that a command takes.
took() {
    local begun round all=()
    for ((round = 0; round < ROUNDS; round++)); do
        begun=${EPOCHREALTIME/./}
        "$@" >/dev/null
        all+=($((${EPOCHREALTIME/./} - begun)))
    done
    awk -v us="$(median "${all[@]}")" 'BEGIN { printf "%.1f", us / 1000 }'
}

verb() { "$BIN" -C "$TREE" "$@"; }
old_view() { ls -l "$TREE/.snapshots/$OLDEST/d0/s0"; }
every_view() { for id in $(seq 1 "$STEPS"); do ls -l "$TREE/.snapshots/$id/d1/s1" >/dev/null 2>&1 || true; done; }
mounted() {
    local begun round all=()
    for ((round = 0; round < ROUNDS; round++)); do
        "$BIN" umount "$TREE" >/dev/null 2>&1
        begun=${EPOCHREALTIME/./}
        "$BIN" mount "$TREE" >/dev/null 2>&1
        all+=($((${EPOCHREALTIME/./} - begun)))
    done
    awk -v us="$(median "${all[@]}")" 'BEGIN { printf "%.1f", us / 1000 }'
}
first_write() {
    local begun round all=()
    for ((round = 0; round < ROUNDS; round++)); do
        verb checkpoint >/dev/null
        begun=${EPOCHREALTIME/./}
        echo x >>"$TREE/d0/s$round/f$((round * 50))"
        all+=($((${EPOCHREALTIME/./} - begun)))
    done
    awk -v us="$(median "${all[@]}")" 'BEGIN { printf "%.2f", us / 1000 }'
}
memory() { awk '/^VmRSS/ { printf "%.0f", $2 / 1024 }' "/proc/$(verb status --json | grep -o '"pid":[0-9]*' | head -1 | cut -d: -f2)/status"; }
# What it may be: 64 MiB, and 200 bytes for each inode that the kernel knows.
bound() { verb stats --json | tr ',' '\n' | awk -F: '/"(past_)?inodes"/ { n += $2 } END { printf "%.0f", 64 + n * 200 / 1048576 }'; }
megabytes() { du -sk "$TREE/.ckptfs/$1" | awk '{ printf "%.1f", $1 / 1024 }'; }

# Waits until the index has been the same for a while.
settle() {
    local before=
    until [ "$before" = "$(megabytes index)" ]; do
        before=$(megabytes index)
        sleep 5
    done
}

# Prints the values of the rows, a line each.
look() {
    sleep 3
    local newest
    OLDEST=$(find "$TREE/.snapshots" -maxdepth 1 -name '[0-9]*' -printf '%f\n' | awk 'NR == 1 || $1 < least { least = $1 } END { print least }')
    mapfile -t newest < <("$BIN" -C "$TREE" log --json | grep -o '"id": *[0-9]*' | grep -o '[0-9]*' | sort -rnu | sed -n 1,2p)
    "$BIN" umount "$TREE" >/dev/null 2>&1
    megabytes index && echo
    megabytes journal && echo
    "$BIN" mount "$TREE" >/dev/null 2>&1
    mounted && echo
    memory && echo
    bound && echo
    took old_view && echo
    took verb diff "${newest[1]}" "${newest[0]}" && echo
    took verb log -n 20 && echo
    every_view
    memory && echo
    bound && echo
    took verb checkpoint && echo
    first_write && echo
}

ROWS=("index, MB" "journal, MB" "mount, ms" "memory after it, MiB" "what it may be, MiB" "\`ls -l\` of 50 names in the oldest view, ms" "\`diff\` of the newest two, ms" "a page of \`log\`, ms"
    "memory after a look at every view, MiB" "what it may be, MiB" "the process \`checkpoint\`, ms" "first write after it, ms")

for fs in ${FS:-xfs btrfs}; do
    STEPS=0
    TREE=$WORK/mnt/tree
    make_image "$fs"
    make_tree
    "$BIN" mount "$TREE" >/dev/null 2>&1
    while ((STEPS < 10)); do step; done
    mapfile -t few < <(look)
    while ((STEPS < COUNT)); do step; done
    mapfile -t many < <(look)
    begun=$SECONDS
    verb gc --keep-last 10 >/dev/null
    freed=$((SECONDS - begun))
    settle
    mapfile -t left < <(look)
    printf '\n%s: %s files, %s changes before each checkpoint; gc %s s\n\n| | 10 checkpoints | %s | ratio | 10 left |\n|---|---|---|---|---|\n' "$fs" "$FILES" "$CHANGES" "$freed" "$COUNT"
    for row in "${!ROWS[@]}"; do
        ratio=$(awk -v a="${few[row]}" -v b="${many[row]}" 'BEGIN { printf "%.2f", a ? b / a : 0 }')
        printf '| %s | %s | %s | %s | %s |\n' "${ROWS[row]}" "${few[row]}" "${many[row]}" "$ratio" "${left[row]}"
    done
    "$BIN" umount "$TREE" >/dev/null 2>&1
    umount "$WORK/mnt" || umount -l "$WORK/mnt"
    rm "$WORK/image"
done
