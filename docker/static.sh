#!/bin/sh
# Builds the release binary, with ckptfs-browse next to it, without libraries that they would need elsewhere, and prints where it is: with musl where rustup has that target, else with
# glibc's static libraries. It has remotes; FEATURES= leaves them out.
set -eu

cd "$(dirname "$0")/.."
machine=$(uname -m)
if rustup target list --installed 2>/dev/null | grep -qx "$machine-unknown-linux-musl"; then
    target=$machine-unknown-linux-musl
else
    target=$machine-unknown-linux-gnu
    export RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static"
fi
cargo build --release --locked -p ckptfs -p ckptfs-browse --features "${FEATURES-remote}" --target "$target" >&2
echo "${CARGO_TARGET_DIR:-target}/$target/release/ckptfs"
