#!/usr/bin/env bash
# Runs the stages of `make test`, each under a time limit, and ends with the line `N passed, N failed, N skipped`.
#
#   run.sh [STAGE...]     no name: all of them, in order
#
# A stage never stops the ones after it. Its output goes to target/test-logs/STAGE.log; the end of it is shown when it failed.
# Everything a test makes lies in one run directory, and what is left of it after a stage is removed (tests/cleanup.sh).
# CKPTFS_LONG=1 runs the ignored (long) tests too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022
export LC_ALL=C CARGO_TERM_COLOR=never RUST_BACKTRACE=1

# Limits in seconds, and threads, by stage. Each can be set from outside: BOUND_model=900.
# volumes has one thread: some of its tests copy the table of mounts into a namespace, and a volume of another test is then in use there for a moment.
: "${BOUND_TOTAL:=4500}"
: "${BOUND_deps:=600}" "${BOUND_tools:=900}" "${BOUND_fmt:=60}" "${BOUND_clippy:=900}" "${BOUND_doc:=600}" "${BOUND_core:=600}"
: "${BOUND_build:=1500}" "${BOUND_unit:=600}" "${BOUND_tidy:=120}" "${BOUND_harness:=180}" "${BOUND_mounted:=480}"
: "${BOUND_model:=420}" "${BOUND_cut:=420}" "${BOUND_apps:=600}" "${BOUND_cli:=240}" "${BOUND_posix:=1200}" "${BOUND_counts:=420}"
: "${BOUND_concurrent:=600}" "${BOUND_endurance:=1200}" "${BOUND_inotify:=600}" "${BOUND_faults:=900}" "${BOUND_crash:=600}"
: "${BOUND_takeover:=600}" "${BOUND_runs:=420}" "${BOUND_integrity:=600}" "${BOUND_hostile:=600}" "${BOUND_limits:=600}" "${BOUND_export:=600}" "${BOUND_engine:=900}" "${BOUND_dedup:=600}" "${BOUND_csi:=300}" "${BOUND_bounds:=420}" "${BOUND_mcp:=240}" "${BOUND_remote:=600}" "${BOUND_other:=420}" "${THREADS_crash:=2}"
: "${THREADS_remote:=4}" "${THREADS_integrity:=3}" "${THREADS_gc:=3}" "${THREADS_import:=3}" "${THREADS_branch:=3}" "${THREADS_branch_model:=3}" "${THREADS_merge:=3}"
: "${THREADS_mounted:=4}" "${THREADS_model:=2}" "${THREADS_cut:=1}" "${THREADS_apps:=2}" "${THREADS_cli:=3}" "${THREADS_runs:=3}" "${THREADS_dedup:=3}" "${THREADS_posix:=2}"
: "${THREADS_counts:=2}" "${THREADS_concurrent:=1}" "${THREADS_endurance:=2}" "${THREADS_inotify:=3}" "${THREADS_export:=3}" "${THREADS_engine:=3}" "${THREADS_csi:=3}" "${THREADS_volumes:=1}" "${THREADS_bounds:=1}" "${THREADS_faults:=3}" "${THREADS_other:=2}"

CHECKS=(deps tools fmt clippy doc core build unit tidy)
INTEGRATION=(harness mounted posix model cut crash takeover faults integrity hostile limits export engine csi mcp apps cli runs dedup counts bounds concurrent inotify endurance)
LOGS=target/test-logs
FAILED_TAIL_LINES=60

# The stages of a full run: the checks, the known integration tests that exist, then any other test target.
all_stages() {
    local name
    printf '%s\n' "${CHECKS[@]}"
    for name in "${INTEGRATION[@]}"; do
        if is_test "$name"; then echo "$name"; fi
    done
    for name in tests/it/*/mod.rs; do
        name=${name#tests/it/} name=${name%/mod.rs}
        case " common ${CHECKS[*]} ${INTEGRATION[*]} " in *" $name "*) ;; *) echo "$name" ;; esac
    done
}

is_test() { [ "$1" != common ] && [ -f "tests/it/$1/mod.rs" ]; }

# Prints the names of the tests of module $1.
tests_of() { cargo test -q "${FEATURES[@]}" --test it -- --list 2>/dev/null | sed -n "s/^\($1::.*\): test\$/\1/p"; }

# Prints the value of BOUND_$2 or THREADS_$2, or of ..._other.
setting() {
    local exact="$1_$2" other="$1_other"
    echo "${!exact:-${!other}}"
}

# What is tested is what is released.
FEATURES=(--features remote)

# Sets CMD to the command of stage $1; fails where there is no such stage.
stage_command() {
    case $1 in
        deps) CMD=(tests/deps.sh) ;;
        tools) CMD=(tests/tools.sh) ;;
        fmt) CMD=(cargo fmt --all --check) ;;
        clippy) CMD=(cargo clippy "${FEATURES[@]}" --all-targets -- -D warnings) ;;
        doc) CMD=(sh -c 'RUSTDOCFLAGS="-D warnings" cargo doc "$@" --no-deps --lib &&
            RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc "$@" --no-deps --lib --document-private-items' sh "${FEATURES[@]}") ;;
        core) CMD=(cargo check --lib --no-default-features) ;;
        build) CMD=(cargo test "${FEATURES[@]}" --no-run --lib --bins --tests) ;;
        unit) CMD=(sh -c 'cargo test "$@" --lib && cargo test "$@" --doc' sh "${FEATURES[@]}") ;;
        tidy) CMD=(cargo test "${FEATURES[@]}" --test tidy) ;;
        *)
            is_test "$1" || return 1
            CMD=(cargo test "${FEATURES[@]}" --test it)
            # An ordinary user builds, root runs: mounting an image needs it.
            if [ "$(id -u)" != 0 ]; then
                CMD=(cargo test "${FEATURES[@]}" --config "target.'cfg(unix)'.runner=['sudo','-E','timeout','-k','5','$(setting BOUND "$1")']" --test it)
            fi
            # By their whole names: a part of one may be a part of another module's too.
            local -a names
            mapfile -t names < <(tests_of "$1")
            # Without a name all would run, and with one that is none nothing would.
            if [ ${#names[@]} = 0 ]; then
                CMD=(sh -c 'cargo test --features remote --no-run --test it && echo "module $1 has no tests" && exit 1' sh "$1")
                return
            fi
            CMD+=(-- --exact "${names[@]}" "--test-threads=$(setting THREADS "$1")")
            if [ "${CKPTFS_LONG:-}" = 1 ]; then CMD+=(--include-ignored); fi
            ;;
    esac
}

# Why stage $1 cannot run here, or nothing: a toolchain without rustfmt or clippy is no failure of the code.
unavailable() {
    case $1 in
        fmt) cargo fmt --version >/dev/null 2>&1 || echo "no rustfmt in this toolchain" ;;
        clippy) cargo clippy --version >/dev/null 2>&1 || echo "no clippy in this toolchain" ;;
    esac
}

# Waits for job $1, at most $2 seconds beyond its own limit: a process stuck in a FUSE request ignores even SIGKILL until the
# connection is aborted. Returns its status, 124 if it had to be given up.
wait_bounded() {
    local job=$1 bound=$2 started=$SECONDS swept=0
    while kill -0 "$job" 2>/dev/null; do
        sleep 0.1
        if [ $((SECONDS - started)) -gt $((bound + 15)) ] && [ $swept = 0 ]; then
            swept=1
            tests/cleanup.sh "$RUN" >/dev/null 2>&1 || true
        fi
        if [ $((SECONDS - started)) -gt $((bound + 45)) ]; then return 124; fi
    done
    wait "$job"
}

fresh_run_dir() {
    RUN=$(mktemp -d "${CKPTFS_TEST_BASE:-/var/tmp}/ckptfs-run-XXXXXX")
    chmod 755 "$RUN"
    echo "$$ $(start_of $$)" >"$RUN/owner"
    export CKPTFS_TEST_DIR=$RUN
}

# Prints the start time of process $1 as the kernel counts it, which tells it from a later one with the same id.
start_of() { sed 's/.*) //' "/proc/$1/stat" | cut -d' ' -f20; }

run_stage() {
    local name=$1 bound status=0 why='' started=$SECONDS left=$((BOUND_TOTAL - SECONDS))
    local log=$LOGS/$name.log
    echo "$name" >>"$LOGS/stages"
    : >"$log"
    bound=$(setting BOUND "$name")
    if [ "$bound" -gt "$left" ]; then bound=$left; fi
    if ! stage_command "$name"; then
        status=1 why="there is no such stage or test"
    elif [ "$bound" -lt 5 ]; then
        status=1 why="not run: the time for the whole run ($BOUND_TOTAL s) is used up"
    else
        why=$(unavailable "$name")
        if [ -n "$why" ]; then
            printf 'SKIPPED: %s\ntest result: 1 passed;\n' "$why" >"$log"
        else
            echo "== $name: $(sed -E "s/ -- --exact .* --test-threads/ $name:: -- --test-threads/" <<<"${CMD[*]}")"
            fresh_run_dir
            timeout -k 10 "$bound" "${CMD[@]}" >"$log" 2>&1 </dev/null &
            JOB=$!
            wait_bounded "$JOB" "$bound" || status=$?
            JOB=
            tests/cleanup.sh "$RUN" || true
            case $status in 124 | 137) why="hung: stopped after $bound s" ;; esac
        fi
    fi
    echo "$status $((SECONDS - started)) $why" >"$LOGS/$name.status"
    [ "$status" = 0 ] || show_failure "$name" "$status" "$why"
}

show_failure() {
    echo "-- $1 FAILED (exit $2) ${3:-}; the end of $LOGS/$1.log:"
    tail -n "$FAILED_TAIL_LINES" "$LOGS/$1.log"
    echo "-- end of $1"
}

interrupted() {
    trap - INT TERM EXIT
    if [ -n "${JOB:-}" ]; then kill -TERM "$JOB" 2>/dev/null || true; fi
    if [ -n "${RUN:-}" ]; then tests/cleanup.sh "$RUN" || true; fi
    exit 130
}

main() {
    local -a stages=("$@")
    local stage
    if [ ${#stages[@]} = 0 ]; then mapfile -t stages < <(all_stages); fi
    rm -rf "$LOGS"
    mkdir -p "$LOGS"
    trap interrupted INT TERM
    tests/cleanup.sh --dead || true
    for stage in "${stages[@]}"; do
        run_stage "$stage"
    done
    tests/summary.sh "$LOGS"
}

main "$@"
