#!/usr/bin/env bash
# Type-checks the whole crate for macOS on a Linux machine. Nothing is linked or run: it finds what does not compile there.
#
# With rustup the target's standard library is downloaded. A machine without rustup, or without its server, gets a small Debian
# root: sid packages the compiler together with the library's source, which cargo then checks too (-Zbuild-std).
#
#   CKPTFS_MACOS_ROOT   where that root is kept between runs (default /var/tmp/ckptfs-macos, about 1.5 GB)
#   CKPTFS_MACOS_JOBS   compiler processes at once (default: all cores)
#
# The Debian root needs root and debootstrap; its first run downloads (2 minutes), the next ones only check.
set -euo pipefail

root=${CKPTFS_MACOS_ROOT:-/var/tmp/ckptfs-macos}
target=aarch64-apple-darwin
source_dir=$(cd "$(dirname "$0")/.." && pwd)

# Stands in for the C compiler and the archiver of the target, for crates with C in them: what it makes is empty, and nothing links it.
no_compiler() {
    mkdir -p "$1"
    printf '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" != -o ] || : >"$2"; shift; done\n' >"$1/cc"
    printf '#!/bin/sh\n[ $# -lt 2 ] || : >"$2"\n' >"$1/ar"
    chmod 755 "$1/cc" "$1/ar"
}

# macFUSE's library and a C compiler for the target are not here: without them fuser cannot mount and BLAKE3 uses no NEON.
if command -v rustup >/dev/null && rustup target add "$target"; then
    no_compiler "$source_dir/target/no-compiler"
    (cd "$source_dir" && CC_aarch64_apple_darwin=$PWD/target/no-compiler/cc AR_aarch64_apple_darwin=$PWD/target/no-compiler/ar cargo check ${CKPTFS_MACOS_JOBS:+-j "$CKPTFS_MACOS_JOBS"} --target "$target" --workspace --lib --bins \
        --features remote,fuser/macos-no-mount,blake3/pure)
    echo "check-macos: ok"
    exit
fi

if [ ! -e "$root/.complete" ]; then
    command -v debootstrap >/dev/null || { echo "check-macos: debootstrap is not installed" >&2; exit 2; }
    rm -rf --one-file-system "$root"
    debootstrap --variant=minbase --include=ca-certificates,rustc,cargo,rust-src,gcc,libc6-dev,pkg-config sid "$root"
    touch "$root/.complete"
fi

# What cargo needs of this machine: its certificates (there may be a proxy with its own) and its name servers.
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"

work=$root/work
mkdir -p "$work"
rm -rf "${work:?}/src" "${work:?}/benches" "${work:?}/tests" "${work:?}/examples"
for part in src benches tests examples Cargo.toml Cargo.lock build.rs README.md; do
    if [ -e "$source_dir/$part" ]; then cp -r "$source_dir/$part" "$work/"; fi
done

if ! grep -q macos-no-mount "$work/Cargo.toml"; then
    cat >>"$work/Cargo.toml" <<'TOML'

[target.'cfg(target_os = "macos")'.dependencies]
fuser = { version = "=0.18.0", features = ["macos-no-mount"] }
blake3 = { version = "1.8", features = ["pure"] }
TOML
fi

no_compiler "$work/no-compiler"
chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root TERM="${TERM:-dumb}" RUSTC_BOOTSTRAP=1 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt \
    CC_aarch64_apple_darwin=/work/no-compiler/cc AR_aarch64_apple_darwin=/work/no-compiler/ar \
    sh -c "cd /work && cargo check ${CKPTFS_MACOS_JOBS:+-j $CKPTFS_MACOS_JOBS} -Zbuild-std=std,panic_abort --target $target --workspace --lib --bins --features remote"
echo "check-macos: ok"
