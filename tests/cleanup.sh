#!/usr/bin/env bash
# Removes what tests left behind. Touches only what lies below the run directories it is given.
#
#   cleanup.sh DIR...   everything below these run directories
#   cleanup.sh --dead   everything below the run directories whose owner, a test process, no longer lives
#
# A run directory holds `owner` ("PID STARTTIME") and `daemons` (one "PID STARTTIME" a line). Mounts and loop devices need
# no list: the kernel names those that lie below the directory. Nothing here opens a path inside a mount, which might hang.
set -uo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

SUDO=()
if [ "$(id -u)" != 0 ]; then SUDO=(sudo -n); fi

# Whether process $1 lives and started at tick $2 (a zombie does not live).
alive() {
    local line
    line=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    line=${line##*) }
    local -a field
    read -r -a field <<<"$line"
    [ "${field[0]}" != Z ] && { [ -z "${2:-}" ] || [ "${field[19]}" = "$2" ]; }
}

# Prints "MINOR TYPE MOUNTPOINT" of each mount at or below $1, the last mounted first.
mounts_below() {
    local dir=$1 dev point rest type
    while read -r _ _ dev _ point rest; do
        point=$(printf '%b' "$point")
        type=${rest#* - }
        case $point in "$dir" | "$dir"/*) printf '%s %s %s\n' "${dev#*:}" "${type%% *}" "$point" ;; esac
    done </proc/self/mountinfo | tac
}

# Frees every process that waits for a FUSE mount below $1.
abort_fuse() {
    local minor type point
    mounts_below "$1" | while read -r minor type point; do
        case $type in
            fuse*) "${SUDO[@]}" sh -c "echo 1 >/sys/fs/fuse/connections/$minor/abort" 2>/dev/null || true ;;
        esac
    done
}

# Ends the daemons that were recorded in $1 and those ckptfs processes whose command line names it.
end_daemons() {
    local dir=$1 pid start
    if [ -f "$dir/daemons" ]; then
        while read -r pid start; do
            if alive "$pid" "$start"; then "${SUDO[@]}" kill -KILL "$pid" 2>/dev/null; fi
        done <"$dir/daemons"
    fi
    local proc
    for proc in /proc/[0-9]*; do
        [ "$(cat "$proc/comm" 2>/dev/null)" = ckptfs ] || continue
        tr '\0' '\n' <"$proc/cmdline" 2>/dev/null | grep -qF "$dir/" || continue
        "${SUDO[@]}" kill -KILL "${proc#/proc/}" 2>/dev/null
    done
}

unmount_all() {
    local point
    mounts_below "$1" | while read -r _ _ point; do
        "${SUDO[@]}" timeout -k 2 10 umount "$point" 2>/dev/null || "${SUDO[@]}" timeout -k 2 10 umount -l "$point" 2>/dev/null || true
    done
}

detach_loops() {
    local loop backing
    "${SUDO[@]}" losetup --list --noheadings --output NAME,BACK-FILE 2>/dev/null | while read -r loop backing; do
        case $backing in "$1"/*) "${SUDO[@]}" losetup -d "$loop" 2>/dev/null || true ;; esac
    done
}

clean() {
    local dir
    dir=$(readlink -f "$1") || return 0
    case ${dir##*/} in
        ckptfs-test-* | ckptfs-run-*) ;;
        *) echo "cleanup: $dir is not a run directory of the tests" >&2 && return 1 ;;
    esac
    abort_fuse "$dir"
    end_daemons "$dir"
    unmount_all "$dir"
    detach_loops "$dir"
    if [ -n "$(mounts_below "$dir")" ]; then
        echo "cleanup: still mounted below $dir; left alone" >&2
        return 1
    fi
    "${SUDO[@]}" rm -rf --one-file-system "$dir"
}

# Cleans each run directory of the tests in $1 whose owner is dead.
clean_dead() {
    local owner pid start
    for owner in "$1"/ckptfs-test-*/owner "$1"/ckptfs-run-*/owner; do
        [ -f "$owner" ] || continue
        read -r pid start <"$owner" || continue
        alive "$pid" "$start" || clean "$(dirname "$owner")"
    done
}

if [ "${1:-}" = --dead ]; then
    clean_dead /var/tmp
    clean_dead /tmp
    if [ -n "${CKPTFS_TEST_DIR:-}" ]; then clean_dead "$CKPTFS_TEST_DIR"; fi
else
    result=0
    for dir in "$@"; do clean "$dir" || result=1; done
    exit $result
fi
