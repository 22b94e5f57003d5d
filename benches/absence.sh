#!/usr/bin/env bash
# What it costs to write the tree down at an unmount, and to compare it at the next mount.
#
#   absence.sh [FILES]            36000; FS="xfs btrfs ext4", BIN=target/release/ckptfs, CKPTFS_BENCH_DIR=/var/tmp
#   absence.sh --idle [FILES]     1000000: what is done ahead in idle time, and what is left to an unmount with 1,000 changes then
#
# Prints a table in Markdown: milliseconds of whole commands, once each; bytes of the baseline for each file; clones that are kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. benches/lib.sh absence

IDLE=
if [ "${1:-}" = --idle ]; then
    IDLE=yes
    shift
fi
FILES=${1:-${IDLE:+1000000}}
FILES=${FILES:-36000}
TREE=$WORK/mnt/tree

fill() {
    python3 - "$TREE" "$FILES" <<'PYTHON'
import os, sys
root, files = sys.argv[1], int(sys.argv[2])
for number in range(files):
    at = f"{root}/a{number // 10000}/b{number // 100 % 100}"
    if number % 100 == 0:
        os.makedirs(at)
    with open(f"{at}/source_file_{number % 100}.rs", "w") as out:
        out.write(f"content {number}\n" * (1 if files > 100000 else 20))
PYTHON
    sync -f "$WORK/mnt"
}

# Milliseconds of a command.
ms() {
    local began
    began=$(date +%s%N)
    "$@" >/dev/null 2>&1
    echo $((($(date +%s%N) - began) / 1000000))
}

edit() {
    local dir
    for dir in 0 1 2 3 4 5 6 7 8 9; do sed -i s/content/CONTENT/ "$TREE/a0/b$dir"/source_file_1*.rs; done
}

cold() {
    sync
    echo 3 >/proc/sys/vm/drop_caches
}

make_fs() {
    truncate -s 24G "$WORK/image"
    "mkfs.$1" -q "$WORK/image" 2>/dev/null
    mkdir -p "$WORK/mnt"
    mount -o loop "$WORK/image" "$WORK/mnt"
    mkdir "$TREE"
    fill
}

# Changes 1,000 files, 10 in each of 100 directories.
change() {
    python3 - "$TREE" "$FILES" "$1" <<'PYTHON'
import os, sys
root, files, word = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for number in range(0, files, max(1, files // 1000)):
    at = f"{root}/a{number // 10000}/b{number // 100 % 100}"
    with open(f"{at}/source_file_{number % 100}.rs", "a") as out:
        out.write(word)
PYTHON
}

# Milliseconds until a file is there.
until_there() {
    local began
    began=$(date +%s%N)
    until [ -e "$1" ]; do sleep 0.1; done
    echo $((($(date +%s%N) - began) / 1000000))
}

store_bytes() { stat -c %s "$TREE/.ckptfs/$1" 2>/dev/null || echo 0; }

if [ -n "$IDLE" ]; then
    echo "| filesystem, files | first mount | first baseline, from the checkpoint on | umount, keeping nothing | bytes/file | bytes of changes | mount | umount, keeping for 2 s | mount | all kept ahead, from the mount on | umount, all kept | not kept |"
    echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for fs in ${FS:-xfs btrfs}; do
        make_fs "$fs"
        row=("$fs, $FILES" "$(ms "$BIN" mount "$TREE")")
        "$BIN" -C "$TREE" checkpoint >/dev/null
        row+=("$(until_there "$TREE/.ckptfs/baseline")")
        change one
        row+=("$(ms "$BIN" umount --keep none "$TREE")" "$(($(store_bytes baseline) / FILES))" "$(store_bytes baseline.changes)" "$(ms "$BIN" mount "$TREE")")
        "$BIN" -C "$TREE" checkpoint >/dev/null
        change two
        row+=("$(ms "$BIN" umount "$TREE")" "$(ms "$BIN" mount "$TREE")")
        "$BIN" -C "$TREE" checkpoint >/dev/null
        row+=("$(until_there "$TREE/.ckptfs/kept/whole")")
        change three
        began=$(date +%s%N)
        not_kept=$("$BIN" umount --json "$TREE" | sed -n 's/.*"not_kept": *\([0-9]*\).*/\1/p')
        row+=("$((($(date +%s%N) - began) / 1000000))" "${not_kept:-0}")
        echo "| $(printf '%s | ' "${row[@]}")" | sed 's/ $//'
        umount "$WORK/mnt"
        rm "$WORK/image"
    done
    exit
fi

echo "| filesystem | first umount | kept | bytes/file | mount | umount | mount after 110 edits | mount without a baseline | umount, cold | mount, cold |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
for fs in ${FS:-xfs btrfs ext4}; do
    make_fs "$fs"
    "$BIN" mount "$TREE" >/dev/null 2>&1
    "$BIN" -C "$TREE" checkpoint >/dev/null
    row=("$fs" "$(ms "$BIN" umount "$TREE")")
    row+=("$(find "$TREE/.ckptfs/kept" -type f 2>/dev/null | wc -l)" "$(($(stat -c %s "$TREE/.ckptfs/baseline") / FILES))")
    row+=("$(ms "$BIN" mount "$TREE")" "$(ms "$BIN" umount "$TREE")")
    edit
    row+=("$(ms "$BIN" mount "$TREE")")
    "$BIN" umount "$TREE" >/dev/null 2>&1
    mv "$TREE/.ckptfs/baseline" "$WORK/baseline"
    row+=("$(ms "$BIN" mount "$TREE")")
    cold
    row+=("$(ms "$BIN" umount "$TREE")")
    cold
    row+=("$(ms "$BIN" mount "$TREE")")
    "$BIN" umount "$TREE" >/dev/null 2>&1
    echo "| $(printf '%s | ' "${row[@]}")" | sed 's/ $//'
    umount "$WORK/mnt"
    rm "$WORK/image"
done
