#!/usr/bin/env bash
# Compares the criterion benches (store, history) of this working tree with those of another revision:
#
#   compare.sh REV [FILTER]
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
measured=(--noplot --color never)
if [ -n "$filter" ]; then measured+=("$filter"); fi

# Both are built first: a build beside a measurement would disturb it.
(cd "$tree" && CARGO_TARGET_DIR=$TARGET cargo bench --no-run "${targets[@]}")
cargo bench --no-run "${targets[@]}"
echo "measuring $(git log -1 --format='%h %s' "$commit")" >&2
(cd "$tree" && CARGO_TARGET_DIR=$TARGET cargo bench "${targets[@]}" -- --save-baseline base "${measured[@]}") >"$HOME_DIR/base.log"
echo "measuring the working tree" >&2
cargo bench "${targets[@]}" -- --baseline base "${measured[@]}" >"$HOME_DIR/now.log"

# criterion's lines: `NAME  time: [low estimate high]` (the name on a line before if it is long), `change: [low estimate high] (p = ...)`, a verdict.
awk -v rev="$(git rev-parse --short "$commit")" '
    function value(text) { sub(/^[^[]*\[/, "", text); sub(/\].*/, "", text); return text }
    BEGIN { printf "%-52s %12s   %s\n", "bench", "now", "change against " rev ": estimate [95% interval]" }
    /time: +\[/ {
        if ($1 != "time:") { name = $0; sub(/ +time: .*/, "", name) }
        split(value($0), t, " "); now = t[3] " " t[4]; thrpt = 0
    }
    /thrpt: +\[/ { thrpt = 1 }
    /^ *change:/ { inside = 1 }
    inside && /\[.*%.*\]/ && !/thrpt/ { split(value($0), c, " "); change = c[2] " [" c[1] " " c[3] "]"; inside = 0 }
    /(Performance has|No change in|Change within)/ {
        verdict = $0; sub(/^ +/, "", verdict); sub(/\.$/, "", verdict)
        printf "%-52s %12s   %-34s %s\n", name, now, change, verdict
    }
    /^[^ ].*[^:]$/ && !/time:|Benchmarking|Found|Running|Warning/ { name = $0 }
' "$HOME_DIR/now.log"
