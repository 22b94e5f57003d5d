#!/usr/bin/env bash
# The main job of ckptfs on real input, with the time of each step.
#
#   demo.sh run [DIR]        without DIR: a tree made of the crates that cargo has fetched
#   demo.sh branches [DIR]   four branches of it, in which four edit at once; merged, one in conflict, undone
#   demo.sh remote [DIR]     its checkpoints in a bucket and in a registry, both on the loopback, and read back by others' programs
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
    for project in "$DEMO_HOME"/disk/elsewhere* "$DEMO_HOME"/elsewhere* "$DEMO_HOME"/disk/project@* "$DEMO_HOME"/project@* "$DEMO_HOME/disk/project" "$DEMO_HOME/project"; do
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

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Waits until somebody listens on a port of the loopback.
answers() {
    local try
    for try in $(seq 200); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return; fi
        sleep 0.1
    done
    fail "nobody answers on port $1"
}

# Starts a server that speaks S3 and a registry, and sets BUCKET and REGISTRY to where they are; without the one a directory is the
# repository, and without the other there is no image.
servers() {
    local moto=$PWD/target/tools/python/bin/moto_server port
    BUCKET=$WORK/repository REGISTRY='' SERVERS=()
    if [ -x "$moto" ]; then
        port=$(free_port)
        "$moto" -H 127.0.0.1 -p "$port" >"$WORK/moto.log" 2>&1 &
        SERVERS+=($!)
        answers "$port"
        curl -sS --noproxy '*' -X PUT "http://127.0.0.1:$port/bucket" >/dev/null
        BUCKET=s3:http://127.0.0.1:$port/bucket/project
        export AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo AWS_REGION=us-east-1
    else
        echo "No S3 server (tests/tools.sh installs moto): the repository is a directory."
    fi
    if command -v docker-registry >/dev/null && command -v skopeo >/dev/null; then
        port=$(free_port)
        mkdir -p "$WORK/blobs"
        printf "version: 0.1\nlog: {level: warn}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: '127.0.0.1:%s'}\n" "$WORK/blobs" "$port" >"$WORK/registry.yml"
        docker-registry serve "$WORK/registry.yml" >"$WORK/registry.log" 2>&1 &
        SERVERS+=($!)
        answers "$port"
        REGISTRY=127.0.0.1:$port
    else
        echo "No registry (make deps installs docker-registry and skopeo): no image is made."
    fi
}

# $1 is checkpoint $2, name by name and byte by byte.
compare_with() {
    diff -r --no-dereference --exclude=.ckptfs --exclude=.snapshots "$PROJECT/.snapshots/$2" "$1" || fail "$1 is not checkpoint $2"
    echo "  no difference"
}

remote() {
    local elsewhere
    [ -x "$CKPTFS" ] || fail "$CKPTFS is not built. Hint: make build"
    "$CKPTFS" push --help >/dev/null 2>&1 || fail "this build has no remotes. Hint: make build"
    prepare "${1:-}"
    elsewhere=$(dirname "$PROJECT")/elsewhere FIRST=1
    OUT=$(mktemp) LIST=$(mktemp) WORK=$(mktemp -d -p "$DEMO_HOME") SERVERS=()
    # The user's own remotes and caches are not touched.
    export XDG_CONFIG_HOME=$WORK/config XDG_CACHE_HOME=$WORK/cache CKPTFS_REMOTE_PASSWORD=demo RESTIC_PASSWORD=demo NO_PROXY=127.0.0.1
    trap 'kill "${SERVERS[@]}" 2>/dev/null || true; rm -rf "$OUT" "$LIST" "$WORK"' EXIT
    if mounted "$PROJECT"; then fail "$PROJECT is mounted already. Hint: ckptfs umount $PROJECT"; fi
    servers
    say "Mount $(some_files | wc -l) files on $(findmnt -n -o FSTYPE --target "$PROJECT"), in place, and checkpoint them"
    timed "$CKPTFS" mount "$PROJECT"
    cd "$PROJECT"
    timed "$CKPTFS" checkpoint -m "as it came" --tag base
    say "Name a place, and send everything there: encrypted, each content once"
    timed "$CKPTFS" remote add home "$BUCKET"
    timed "$CKPTFS" push home
    say "Change it, and send what has changed: nothing else is opened"
    timed make_changes
    timed "$CKPTFS" checkpoint -m "after the changes"
    # The tripwire may have made one before it.
    LAST=$(cat "$OUT")
    timed "$CKPTFS" push home
    timed "$CKPTFS" remote log home
    if command -v restic >/dev/null; then
        say "Others' programs read it"
        timed restic -q -r "$BUCKET" snapshots --compact
        timed restic -q -r "$BUCKET" restore latest --target "$WORK/restored"
        timed compare_with "$WORK/restored/$(basename "$PROJECT")" "$LAST"
    fi
    say "On another machine: fetched, compared with its hashes, mounted"
    timed "$CKPTFS" pull home base --into "$elsewhere" --mount
    timed compare_with "$elsewhere" 1
    say "Or usable at once: what is in a file comes when it is opened"
    timed "$CKPTFS" mount --from home:latest "$elsewhere-at-once"
    timed compare_with "$elsewhere-at-once" "$LAST"
    say "Or beside one's own work: a branch"
    timed "$CKPTFS" pull home base --branch as-it-came
    if [ -n "$REGISTRY" ]; then
        say "As an image: one layer, and one more of what has changed"
        timed "$CKPTFS" push "oci://$REGISTRY/project:v1" 1
        timed "$CKPTFS" push "oci://$REGISTRY/project:v2" "$LAST"
        timed skopeo inspect --tls-verify=false --format '{{len .Layers}} layers, {{.Digest}}' "docker://$REGISTRY/project:v2"
    fi
    what_next
    echo "The servers of this demo have ended; what was fetched is in $elsewhere."
}

case ${1:-} in
    run) run "${2:-}" ;;
    remote) remote "${2:-}" ;;
    branches) branches "${2:-}" ;;
    clean) clean ;;
    *) fail "usage: demo.sh run [DIR] | demo.sh branches [DIR] | demo.sh remote [DIR] | demo.sh clean" ;;
esac
