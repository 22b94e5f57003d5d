#!/usr/bin/env bash
# Type-checks the library for aarch64-apple-darwin. Nothing is linked or run: this is no substitute for a Mac.
#
# With rustup and its server at hand the target's standard library is fetched. Otherwise it is checked from source inside a
# Debian sid root (debootstrap, once, in target/macos-root), which has the compiler's sources as a package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TARGET=aarch64-apple-darwin
# macFUSE's library cannot be linked here, and blake3's assembly needs Apple's assembler.
CHECK=(cargo check --lib --target "$TARGET" --no-default-features --features "fuse,fuser/macos-no-mount,blake3/pure")

if command -v rustup >/dev/null && rustup target add "$TARGET"; then
    exec "${CHECK[@]}"
fi

echo "check-macos: no $TARGET library from rustup; using a Debian sid root (about two minutes, once)"
SUDO=()
if [ "$(id -u)" != 0 ]; then SUDO=(sudo); fi
ROOT=$PWD/target/macos-root
command -v debootstrap >/dev/null || "${SUDO[@]}" apt-get install -y debootstrap
if [ ! -e "$ROOT/.ready" ]; then
    "${SUDO[@]}" rm -rf --one-file-system "$ROOT"
    "${SUDO[@]}" debootstrap --variant=minbase --include=ca-certificates,rustc,cargo,rust-src,gcc,libc6-dev sid "$ROOT"
    "${SUDO[@]}" cp /etc/ssl/certs/ca-certificates.crt "$ROOT/etc/ssl/certs/ca-certificates.crt"
    "${SUDO[@]}" touch "$ROOT/.ready"
fi
"${SUDO[@]}" mkdir -p "$ROOT/work"
git ls-files -z | "${SUDO[@]}" rsync -a --from0 --files-from=- ./ "$ROOT/work/"
"${SUDO[@]}" chroot "$ROOT" env HOME=/root RUSTC_BOOTSTRAP=1 sh -c \
    'cd /work && exec "$@"' sh "${CHECK[@]}" -Zbuild-std=std,panic_abort
