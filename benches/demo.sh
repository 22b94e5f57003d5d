#!/usr/bin/env bash
# The main job of ckptfs on real input, with the time of each step.
#
#   demo.sh run [DIR]        without DIR: a tree made of the crates that cargo has fetched
#   demo.sh branches [DIR]   four branches of it, in which four edit at once; merged, one in conflict, undone
#   demo.sh clean            unmounts and removes what either left
#
# DIR is not touched: the demo works on a copy in DEMO_HOME (default /var/tmp/ckptfs-demo), which lies on a loop-mounted XFS
# image where that filesystem has no reflink. IN_PLACE=1 mounts DIR itself; its changes are then undone by the restore at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C

DEMO_HOME=${DEMO_HOME:-/var/tmp/ckptfs-demo}
DEMO_FILES=${DEMO_FILES:-12000}
CHANGED_FILES=60
SHOWN_LINES=10
IMAGE_SIZE=${IMAGE_SIZE:-20G}
CKPTFS=${CKPTFS:-$PWD/target/release/ckptfs}

SUDO=()
if [ "$(id -u)" != 0 ]; then SUDO=(sudo); fi

BOLD='' PLAIN=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then BOLD=$'\033[1m' PLAIN=$'\033[0m'; fi

say() { printf '\n%s%s%s\n' "$BOLD" "$*" "$PLAIN"; }

fail() {
    echo "demo: $*" >&2
    exit 1
}

now_us() { echo $(($(date +%s%N) / 1000)); }

# Runs a command, shows it as the user would type it, prints the beginning of what it said and how long the whole process
# took. All that it said is in the file OUT.
timed() {
    local started ended lines status=0
    printf '$ %s\n' "${*/#$CKPTFS/ckptfs}"
    started=$(now_us)
    "$@" >"$OUT" || status=$?
    ended=$(now_us)
    lines=$(wc -l <"$OUT")
    sed -n "1,${SHOWN_LINES}p" "$OUT"
    if [ "$lines" -gt "$SHOWN_LINES" ]; then echo "... ($lines lines)"; fi
    printf '  -> %d.%03d ms\n' $(((ended - started) / 1000)) $(((ended - started) % 1000))
    return $status
}

mounted() { grep -qF " $1 " /proc/self/mountinfo; }

has_reflink() {
    local probe result=1
    probe=$(mktemp "$1/.ckptfs-demo-XXXXXX") || return 1
    echo probe >"$probe"
    if cp --reflink=always "$probe" "$probe.clone" 2>/dev/null; then result=0; fi
    rm -f "$probe" "$probe.clone"
    return $result
}

clean() {
    local project
    for project in "$DEMO_HOME"/disk/project@* "$DEMO_HOME"/project@* "$DEMO_HOME/disk/project" "$DEMO_HOME/project"; do
        if mounted "$project"; then
            "$CKPTFS" umount "$project" || "${SUDO[@]}" umount -l "$project"
        fi
    done
    if mounted "$DEMO_HOME/disk"; then "${SUDO[@]}" umount "$DEMO_HOME/disk" || "${SUDO[@]}" umount -l "$DEMO_HOME/disk"; fi
    if grep -qF " $DEMO_HOME/" /proc/self/mountinfo; then fail "something is still mounted below $DEMO_HOME"; fi
    "${SUDO[@]}" rm -rf --one-file-system "$DEMO_HOME"
}

# Sets PROJECT to the directory to mount, filled.
prepare() {
    local source=${1:-} base=$DEMO_HOME
    if [ -n "$source" ]; then
        [ -d "$source" ] || fail "$source is not a directory"
        source=$(cd "$source" && pwd)
        if [ "${IN_PLACE:-}" = 1 ]; then
            PROJECT=$source
            return
        fi
    fi
    clean
    mkdir -p "$DEMO_HOME"
    if ! has_reflink "$DEMO_HOME"; then
        echo "No reflink in $DEMO_HOME: making an XFS image of $IMAGE_SIZE (sparse) there."
        base=$DEMO_HOME/disk
        truncate -s "$IMAGE_SIZE" "$DEMO_HOME/disk.img"
        mkfs.xfs -q -m reflink=1 -K "$DEMO_HOME/disk.img"
        mkdir "$base"
        "${SUDO[@]}" mount -o loop "$DEMO_HOME/disk.img" "$base"
        "${SUDO[@]}" chown "$(id -u):$(id -g)" "$base"
    fi
    PROJECT=$base/project
    if [ -n "$source" ]; then
        echo "Copying $source (it stays as it is)."
        mkdir "$PROJECT"
        (cd "$source" && tar --one-file-system --exclude=./.ckptfs -cf - .) | tar -C "$PROJECT" -xpf -
    else
        echo "Making a tree of $DEMO_FILES real files (the crates that cargo fetched)."
        benches/tree.sh "$PROJECT" "$DEMO_FILES"
    fi
}

# Lists regular files of the project, without the history.
some_files() { find "$PROJECT" -path "$PROJECT/.ckptfs" -prune -o -type f -print 2>/dev/null; }

# What an agent or a careless person does: appends to files, deletes a directory, leaves new ones.
make_changes() {
    local file victim
    # Not `head`: it would end `find` by SIGPIPE.
    some_files | sed -n "1,${CHANGED_FILES}p" >"$LIST"
    while IFS= read -r file; do
        echo "// changed by the demo" >>"$file"
    done <"$LIST"
    victim=$(find "$PROJECT" -mindepth 1 -maxdepth 3 -type d ! -name '.*' ! -path "$PROJECT/.*" -print 2>/dev/null | tail -n 1)
    if [ -n "$victim" ]; then rm -rf "$victim"; fi
    echo oops >"$PROJECT/README.md"
    mkdir -p "$PROJECT/new-by-the-demo"
    echo new >"$PROJECT/new-by-the-demo/file"
    echo "appended to $(wc -l <"$LIST") files, removed ${victim:-nothing}, wrote README.md, made new-by-the-demo/"
}

compare_with_first() {
    local difference=0
    diff -r --no-dereference --exclude=.ckptfs --exclude=.snapshots "$PROJECT/.snapshots/$FIRST" "$PROJECT" || difference=$?
    [ "$difference" = 0 ] || fail "the restored tree differs from checkpoint $FIRST"
    echo "  no difference"
}

what_next() {
    cat <<EOF

It is still mounted. Things to try:
  cd $PROJECT
  ls .snapshots/                              the past, as directories
  $CKPTFS checkpoint -m "mine" --tag mine
  $CKPTFS status
  $CKPTFS diff $FIRST latest
  mkdir .snapshots/from-any-program           a checkpoint without our command
  $CKPTFS restore latest --dry-run
  $CKPTFS doctor
To end it:
  $CKPTFS umount $PROJECT
EOF
    if [ "${IN_PLACE:-}" = 1 ]; then
        echo "The directory is an ordinary one again then, with its history beside it in .ckptfs/"
    else
        echo "  make demo-clean                             removes all of $DEMO_HOME"
    fi
}

run() {
    [ -x "$CKPTFS" ] || fail "$CKPTFS is not built. Hint: make build"
    prepare "${1:-}"
    OUT=$(mktemp) LIST=$(mktemp)
    trap 'rm -f "$OUT" "$LIST"' EXIT
    if mounted "$PROJECT"; then fail "$PROJECT is mounted already. Hint: ckptfs umount $PROJECT"; fi
    say "Mount $(some_files | wc -l) files ($(du -sh --exclude=.ckptfs "$PROJECT" | cut -f1)) on $(findmnt -n -o FSTYPE --target "$PROJECT"), in place"
    timed "$CKPTFS" mount "$PROJECT"
    cd "$PROJECT"
    say "Checkpoint the tree as it came"
    timed "$CKPTFS" checkpoint -m "before the changes"
    FIRST=$(cat "$OUT")
    say "Change it"
    timed make_changes
    say "What has changed, without a scan"
    timed "$CKPTFS" status
    say "Checkpoint that too: the time the daemon took is duration_us"
    timed "$CKPTFS" checkpoint -m "after the changes" --json
    say "The past is there to be read"
    timed ls .snapshots/
    say "What changed since checkpoint $FIRST"
    timed "$CKPTFS" diff "$FIRST"
    say "Bring it back; what is there now becomes a checkpoint first"
    timed "$CKPTFS" restore "$FIRST"
    say "Compare the whole tree with the view of checkpoint $FIRST"
    timed compare_with_first
    say "The history"
    timed "$CKPTFS" log
    what_next
}

# Runs in a branch, at the project's own path, what somebody would do who works there: $1 is the branch, $2 a script.
work_in() { "$CKPTFS" branch run "$1" -- sh -euc "$2" >"$WORK/$1" 2>&1 || fail "$1: $(cat "$WORK/$1")"; }

# Four of them, all at once. `first` and `second` change other parts of the same file; `third` renames what `fourth` edits; and
# `first` and `fourth` write the same line.
edit_at_once() {
    local one=$1 other=$2 line=$3 jobs=() job
    export ONE=$one OTHER=$other LINE=$line
    work_in first 'sed -i "1s|^|// first was here\n|" "$ONE"; sed -i "1s|.*|// by first|" "$LINE"; mkdir -p made; echo 1 >made/by-first' &
    jobs+=($!)
    work_in second 'echo "// second was here" >>"$ONE"; echo 2 >by-second' &
    jobs+=($!)
    work_in third 'mv "$OTHER" "$OTHER.renamed"' &
    jobs+=($!)
    work_in fourth 'echo "// fourth was here" >>"$OTHER"; sed -i "1s|.*|// by fourth|" "$LINE"' &
    jobs+=($!)
    for job in "${jobs[@]}"; do wait "$job"; done
    echo "edited in four branches at once: $one, $other, $line"
}

# A merge that is in conflict: it says so, and ends with status 1.
in_conflict() {
    local status=0
    "$CKPTFS" merge "$@" || status=$?
    [ "$status" = 1 ] || fail "merge ended with status $status, and 1 was expected"
}

branches() {
    local name texts
    [ -x "$CKPTFS" ] || fail "$CKPTFS is not built. Hint: make build"
    prepare "${1:-}"
    OUT=$(mktemp) WORK=$(mktemp -d) FIRST=1
    trap 'rm -rf "$OUT" "$WORK"' EXIT
    if mounted "$PROJECT"; then fail "$PROJECT is mounted already. Hint: ckptfs umount $PROJECT"; fi
    cd "$PROJECT"
    if [ ! -e .git ]; then
        git init -q -b main && git add -A && git -c user.name=demo -c user.email=demo@localhost commit -q -m "as it came"
    fi
    cd "$OLDPWD"
    say "Mount $(some_files | wc -l) files on $(findmnt -n -o FSTYPE --target "$PROJECT"), in place"
    timed "$CKPTFS" mount "$PROJECT"
    cd "$PROJECT"
    some_files | grep -v '/\.git/' | head -n 400 >"$WORK/files" || true
    while IFS= read -r name; do
        if [ "$(wc -l <"$name")" -gt 40 ] && grep -Iq . "$name"; then printf '%s\n' "${name#"$PROJECT/"}"; fi
    done <"$WORK/files" >"$WORK/texts"
    mapfile -t texts < <(head -n 3 "$WORK/texts")
    [ "${#texts[@]}" = 3 ] || fail "there are no three texts of more than 40 lines in $PROJECT"
    say "Four branches: whole trees, ignored files and all, beside the project"
    for name in first second third fourth; do timed "$CKPTFS" branch create "$name"; done
    timed git worktree list
    say "Four work at the same time, each at $PROJECT as it sees it"
    timed edit_at_once "${texts[@]}"
    timed git status --short
    say "Who has done what, and what two have touched: known while they work"
    timed "$CKPTFS" branch list
    timed "$CKPTFS" branch conflicts
    timed "$CKPTFS" branch diff fourth
    say "Merge them: other parts of a text, and a new name here with an edit there, come together"
    for name in first second third; do timed "$CKPTFS" merge "$name"; done
    say "The fourth wrote a line that the first wrote: nothing is changed"
    timed in_conflict fourth --dry-run
    timed in_conflict fourth
    say "Both into the text, to be looked at; and taken back, as one operation"
    timed "$CKPTFS" merge fourth --markers
    timed head -n 6 "${texts[2]}"
    timed "$CKPTFS" undo
    say "Theirs where they disagree"
    timed "$CKPTFS" merge fourth --theirs
    timed head -n 1 "${texts[2]}"
    timed tail -n 1 "${texts[1]}.renamed"
    grep -q "^// fourth was here" "${texts[1]}.renamed" || fail "what the fourth wrote into ${texts[1]} is lost"
    grep -q "^// second was here" "${texts[0]}" || fail "what the second wrote into ${texts[0]} is lost"
    say "Drop them; git has forgotten them, and what they committed stays"
    for name in first second third fourth; do timed "$CKPTFS" branch drop "$name"; done
    timed git worktree list
    timed "$CKPTFS" ops
    what_next
}

case ${1:-} in
    run) run "${2:-}" ;;
    branches) branches "${2:-}" ;;
    clean) clean ;;
    *) fail "usage: demo.sh run [DIR] | demo.sh branches [DIR] | demo.sh clean" ;;
esac
