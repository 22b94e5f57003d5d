#!/usr/bin/env bash
# Adds up the stages of a test run and prints the counts; fails if anything failed.
#
#   summary.sh DIR
#
# DIR holds `stages` (one name a line, in order), and for each stage NAME.log (its output) and NAME.status ("EXIT SECONDS WHY").
# A test stage counts as cargo's `test result:` lines say; any other stage is one test. A stage that ends badly without naming a
# failed test (it did not build, it hung) is one failure. A line `SKIPPED: reason` turns the test that printed it from passed into skipped.
# One that is left to the long form (`ignored`) counts as skipped, and its reason is shown as those are.
# Below a stage stand the tests of it that failed, each with its seed and the end of what it panicked with.
set -euo pipefail

DIR=$1
TESTS_MAX=20 LINES_MAX=8 WIDTH_MAX=400
passed=0 failed=0 skipped=0

# Prints "PASSED FAILED SKIPPED" of the stage with log $1 and exit status $2.
count_stage() {
    awk -v status="$2" '
        /^test result: / {
            results++
            for (i = 2; i <= NF; i++) {
                if ($i == "passed;") p += $(i - 1)
                if ($i == "failed;") f += $(i - 1)
                if ($i == "ignored;") s += $(i - 1)
            }
        }
        /^SKIPPED: / { skips++ }
        /^(test .* \.\.\. )?ok$/ { seen++ }
        END {
            # A stage that was stopped has no result line: what it said about each test counts.
            if (!results) p = seen
            if (skips > p) { skips = p }
            p -= skips
            s += skips
            if (status != 0 && f == 0) f = 1
            if (status == 0 && !results && !seen) p = 1
            print p + 0, f + 0, s + 0
        }' "$1"
}

# Prints the names of the tests that failed in log $1. Of each: the lines with its seed, and where and with what it panicked, without
# the backtrace; of a long message the end.
failed_tests() {
    awk -v tests="$TESTS_MAX" -v lines="$LINES_MAX" -v width="$WIDTH_MAX" '
        function show(text) { print "        " (length(text) > width ? substr(text, 1, width) "..." : text) }
        function tell(  i, from) {
            if (name == "") return
            if (++told > tests) return
            print "    FAILED " name
            from = said > lines ? said - lines + 1 : 1
            for (i = 1; i <= said; i++) {
                if (i >= from || line[i] ~ /CKPTFS_SEED|^thread .* panicked at /) show(line[i])
                else if (i == from - 1) show("...")
            }
            name = ""
        }
        /^---- .* stdout ----$/ { tell(); name = $2; said = 0; panics = 0; next }
        /^failures:$/ { tell() }
        name == "" || /^$/ { next }
        # Another thread of the test may have panicked before.
        /^thread .* panicked at / { panics = 1 }
        /^stack backtrace:$/ || /^note: (run with|Some details)/ { panics = 0 }
        panics || /CKPTFS_SEED/ { line[++said] = $0 }
        END { tell(); if (told > tests) print "    and " told - tests " more" }
    ' "$1"
}

while read -r stage; do
    read -r status seconds why <"$DIR/$stage.status" || true
    read -r p f s < <(count_stage "$DIR/$stage.log" "$status")
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-10s %4d passed %4d failed %4d skipped %5d s  %s\n' "$stage" "$p" "$f" "$s" "$seconds" "$why"
    if [ "$status" != 0 ]; then failed_tests "$DIR/$stage.log"; fi
done <"$DIR/stages"

sed -n 's/^SKIPPED: //p; s/^test .* \.\.\. ignored, //p' "$DIR"/*.log 2>/dev/null | sort | uniq -c | sed 's/^ *\([0-9]*\) /skipped \1x: /' || true
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
