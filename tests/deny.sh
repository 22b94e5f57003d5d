#!/usr/bin/env bash
# Checks the dependencies against deny.toml: licences, bans, sources, and known vulnerabilities where their database can be reached.
# cargo-deny is installed into target/tools, in exactly this version, unless there is one already; that takes minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VERSION=0.19.0
ROOT=target/tools
export PATH="$PWD/$ROOT/bin:$PATH"

if ! cargo deny --version >/dev/null 2>&1; then
    echo "deny: installing cargo-deny $VERSION"
    CARGO_NET_RETRY=5 CARGO_INCREMENTAL=0 cargo install --locked --root "$ROOT" --target-dir "$ROOT/build" "cargo-deny@=$VERSION"
    rm -rf "$ROOT/build"
fi
cargo deny --all-features check licenses bans sources
# The database of RustSec is a repository at GitHub: where that cannot be reached, this is said and is no failure.
if ! timeout 120 cargo deny fetch db >/dev/null 2>&1; then
    echo "deny: NOT CHECKED: known vulnerabilities (the database of RustSec cannot be reached from here)"
    exit 0
fi
cargo deny --all-features check advisories
