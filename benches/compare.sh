#!/usr/bin/env bash
# Compares the criterion benches (store, history) of this working tree with those of another revision:
#
#   compare.sh REV [TEXT]       TEXT: only benches whose name has it
#
# The programs of this working tree are built against both libraries, so that both measure the same; the revision is checked out under target/.
# Prints each bench with its time and the change against REV: the estimate and its confidence interval of 95%.
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
