# shellcheck shell=bash
# Sourced by the benchmarks that are scripts: a place to work in, images, times, and cells of tables.
#
#   . benches/lib.sh NAME         BIN=target/release/ckptfs, CKPTFS_BENCH_DIR=/var/tmp
export LC_ALL=C
BIN=$(realpath "${BIN:-target/release/ckptfs}")
WORK=$(mktemp -d "${CKPTFS_BENCH_DIR:-/var/tmp}/ckptfs-$1-XXXXXX")
LOOPS=()

# Ends the mounts of ckptfs at DIR/tree and the filesystems at DIR, for all DIR in $WORK, and removes everything.
clean() {
    local dir loop
    set +e
    cd /
    for dir in "$WORK"/*/; do
        "$BIN" umount "${dir}tree" >/dev/null 2>&1
        umount "$dir" 2>/dev/null
    done
    for loop in "${LOOPS[@]}"; do losetup -d "$loop"; done
    rm -rf "$WORK"
}
trap clean EXIT

# Mounts a new filesystem $1 of size $2 on $WORK/$1, and sets `dir` to that and `times` to where its times go.
make_image() {
    local image=$WORK/$1.img loop
    dir=$WORK/$1 times=$WORK/times-$1
    mkdir -p "$dir" "$times"
    truncate -s "$2" "$image"
    case $1 in xfs) mkfs.xfs -q -m reflink=1 "$image" ;; *) mkfs.btrfs -q "$image" ;; esac
    loop=$(losetup -f --show --direct-io=on "$image")
    LOOPS+=("$loop")
    mount "$loop" "$dir"
}

# Runs a command and adds the milliseconds that it took to the file of its name. What it says goes to the file $SAID, where that is set.
timed() {
    local name=$1 from to
    shift
    from=$(date +%s%N)
    if [ -n "${SAID:-}" ]; then "$@" >"$SAID" 2>&1 </dev/null; else "$@" >/dev/null </dev/null; fi
    to=$(date +%s%N)
    echo $(((to - from) / 1000)) | awk '{ printf "%.1f\n", $1 / 1000 }' >>"$times/$name"
}

median() { sort -n "$times/$1" | awk '{ all[NR] = $1 } END { print (NR % 2) ? all[(NR + 1) / 2] : (all[NR / 2] + all[NR / 2 + 1]) / 2 }'; }
cell() { echo "$(median "$1") ($(sort -n "$times/$1" | head -1), $(sort -n "$times/$1" | tail -1))"; }
ratio() { awk -v a="$(median "$1")" -v b="$(median "$2")" 'BEGIN { printf "%.2f", a / b }'; }

# Measures on each filesystem, and says when, where and with what load.
measure_all() {
    local fs load
    load=$(cut -d' ' -f1-3 /proc/loadavg)
    for fs in ${FS:-xfs btrfs}; do measure "$fs"; done
    echo "Measured $(date -u '+%Y-%m-%d %H:%M UTC') at commit $(git rev-parse --short=10 HEAD), $ROUNDS rounds, $FILES files, $(nproc) cores, Linux $(uname -r); load average $load before and $(cut -d' ' -f1-3 /proc/loadavg) after."
    echo
}
