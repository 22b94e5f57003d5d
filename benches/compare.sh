#!/usr/bin/env bash
# Compares the criterion benches (store, history), and the seeds' rows that run in one process (seeds --only jvs), of this working tree with those of
# another revision:
#
#   compare.sh REV [TEXT]       TEXT: only benches whose name has it; `seeds`: only the seeds' rows
#
# The programs of this working tree are built against both libraries, so that both measure the same; the revision is checked out under target/.
# Prints each bench with its time and the change against REV: the estimate and its confidence interval of 95%; and of the seeds' rows the median, with
# what was allocated, which does not drift. SEEDS_FS=xfs names their filesystem; mounting it needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C CARGO_TERM_COLOR=never

BENCHES=(store history)
HOME_DIR=$PWD/target/bench-compare
# One for both: what they depend on is built once.
TARGET=$PWD/target

base=${1:-}
filter=${2:-}
if [ -z "$base" ] || ! commit=$(git rev-parse --verify --quiet "$base^{commit}"); then
    echo "bench-compare: name a revision to compare with: make bench-compare BASE=main" >&2
    exit 2
fi

tree=$HOME_DIR/tree
remove_tree() { git worktree remove --force "$tree" 2>/dev/null || rm -rf "$tree"; }
trap remove_tree EXIT
mkdir -p "$HOME_DIR"
remove_tree
git worktree prune
git worktree add --quiet --detach "$tree" "$commit"

targets=()
for bench in "${BENCHES[@]}"; do
    cp "benches/$bench.rs" "$tree/benches/$bench.rs"
    grep -q "^name = \"$bench\"" "$tree/Cargo.toml" || printf '\n[[bench]]\nname = "%s"\nharness = false\n' "$bench" >>"$tree/Cargo.toml"
    targets+=(--bench "$bench")
done

# The seeds' rows are directories of programs, and share what the tests have; an older revision may not know what they call.
seeds() {
    local said which
    rm -rf "$tree/benches/seeds" "$tree/benches/shared" "$tree/tests/it/bounds" "$tree/tests/it/common"
    cp -R benches/seeds benches/shared "$tree/benches/"
    cp -R tests/it/bounds tests/it/common "$tree/tests/"
    grep -q '^name = "seeds"' "$tree/Cargo.toml" || printf '\n[[bench]]\nname = "seeds"\npath = "benches/seeds/main.rs"\nharness = false\n' >>"$tree/Cargo.toml"
    for which in base now; do
        if ! said=$(cd "$([ $which = base ] && echo "$tree" || echo .)" && CARGO_TARGET_DIR=$TARGET cargo bench --no-run --bench seeds 2>&1); then
            echo "bench-compare: the seeds' rows cannot be built for $which: $(grep -m 1 '^error' <<<"$said")" >&2
            return 0
        fi
        cp "$TARGET/$(sed -n 's|^ *Executable benches/seeds/main.rs (.*\(release/deps/[^)]*\))|\1|p' <<<"$said")" "$HOME_DIR/seeds-$which"
    done
    # In turn, for what else the machine does changes. A table that fails is missing in what is compared, and said so.
    local round base_runs=() now_runs=()
    for round in 1 2 3; do
        for which in base now; do
            "$HOME_DIR/seeds-$which" --only jvs --quick --fs "${SEEDS_FS:-xfs}" --json "$HOME_DIR/$which-$round.json" >/dev/null 2>"$HOME_DIR/$which.log" ||
                grep 'not measured' "$HOME_DIR/$which.log" >&2 || true
        done
        base_runs+=("$HOME_DIR/base-$round.json") now_runs+=("$HOME_DIR/now-$round.json")
    done
    echo
    "$HOME_DIR/seeds-now" --compare "$(IFS=,; echo "${base_runs[*]}")" "$(IFS=,; echo "${now_runs[*]}")"
}

if [ "$filter" = seeds ]; then
    seeds
    exit
fi

export CRITERION_HOME=$HOME_DIR/criterion
rm -rf "$CRITERION_HOME"

# Builds the benches of the tree in $1 and prints their programs, in the order of BENCHES.
programs() {
    local bench said
    said=$(cd "$1" && CARGO_TARGET_DIR=$TARGET cargo bench --no-run "${targets[@]}" 2>&1) || { echo "$said" >&2; return 1; }
    for bench in "${BENCHES[@]}"; do
        echo "$TARGET/$(sed -n "s|^ *Executable benches/$bench.rs (.*\(release/deps/[^)]*\))|\1|p" <<<"$said")"
    done
}

# Everything is built before anything is measured. Then each bench of REV runs just before the same of now: what else the machine does changes.
mapfile -t before < <(programs "$tree")
mapfile -t now < <(programs "$PWD")
[ "${#before[@]}" = "${#BENCHES[@]}" ] && [ "${#now[@]}" = "${#BENCHES[@]}" ] || exit 1

printf '%-52s %12s   %s\n' "bench" "now" "change against $(git rev-parse --short "$commit"): estimate [95% interval]"
for index in "${!BENCHES[@]}"; do
    while IFS= read -r name; do
        "${before[index]}" --bench --noplot --color never --exact "$name" --save-baseline base >"$HOME_DIR/base.log" 2>&1
        "${now[index]}" --bench --noplot --color never --exact "$name" --baseline base >"$HOME_DIR/now.log" 2>&1
        # `time: [low estimate high]`, the same in % after `change:`, a verdict.
        awk -v name="$name" '
            function values(text, v) { sub(/^[^[]*\[/, "", text); sub(/\].*/, "", text); return split(text, v, " ") }
            /time: +\[/ && !/%/ { values($0, t); now = t[3] " " t[4] }
            /(change|time): +\[.*%/ { values($0, c); change = c[2] " [" c[1] " " c[3] "]" }
            /(Performance has|No change in|Change within)/ { verdict = $0; gsub(/^ +|\.$/, "", verdict) }
            END { printf "%-52s %12s   %-34s %s\n", name, now, change, verdict }' "$HOME_DIR/now.log"
    done < <("${now[index]}" --bench --list 2>/dev/null | sed -n 's/: benchmark$//p' | grep -F -- "$filter")
done

if [ -z "$filter" ]; then seeds; fi
