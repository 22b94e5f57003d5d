#!/usr/bin/env bash
# What it costs to write the tree down at an unmount, and to compare it at the next mount.
#
#   absence.sh [FILES]      36000; FS="xfs btrfs ext4", BIN=target/release/ckptfs, CKPTFS_BENCH_DIR=/var/tmp
#
# Prints a table in Markdown: milliseconds of whole commands, once each; bytes of the baseline for each file; clones that are kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C

FILES=${1:-36000}
BIN=$(realpath "${BIN:-target/release/ckptfs}")
WORK=$(mktemp -d "${CKPTFS_BENCH_DIR:-/var/tmp}/ckptfs-absence-XXXXXX")
TREE=$WORK/mnt/tree

clean() {
    set +e
    cd /
    "$BIN" umount "$TREE" >/dev/null 2>&1
    umount "$WORK/mnt" 2>/dev/null
    rm -rf "$WORK"
}
trap clean EXIT

fill() {
    python3 - "$TREE" "$FILES" <<'PYTHON'
import os, sys
root, files = sys.argv[1], int(sys.argv[2])
for number in range(files):
    at = f"{root}/a{number // 10000}/b{number // 100 % 100}"
    if number % 100 == 0:
        os.makedirs(at)
    with open(f"{at}/source_file_{number % 100}.rs", "w") as out:
        out.write(f"content {number}\n" * 20)
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

echo "| filesystem | first umount | kept | bytes/file | mount | umount | mount after 110 edits | mount without a baseline | umount, cold | mount, cold |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
for fs in ${FS:-xfs btrfs ext4}; do
    truncate -s 24G "$WORK/image"
    "mkfs.$fs" -q "$WORK/image" 2>/dev/null
    mkdir -p "$WORK/mnt"
    mount -o loop "$WORK/image" "$WORK/mnt"
    mkdir "$TREE"
    fill
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
