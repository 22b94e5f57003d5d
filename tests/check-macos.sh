#!/usr/bin/env bash
# Type-checks the whole crate for macOS on a Linux machine. Nothing is linked or run: it finds what does not compile there.
#
# A stable toolchain has no standard library for that target to download everywhere, and Debian sid packages the compiler
# together with the library's source, which cargo then checks too (-Zbuild-std). So it works in a small Debian root.
#
#   CKPTFS_MACOS_ROOT   where that root is kept between runs (default /var/tmp/ckptfs-macos, about 1.5 GB)
#   CKPTFS_MACOS_JOBS   compiler processes at once (default: all cores)
#
# Needs root and debootstrap; the first run downloads (2 minutes), the next ones only check.
set -euo pipefail

root=${CKPTFS_MACOS_ROOT:-/var/tmp/ckptfs-macos}
target=aarch64-apple-darwin
source_dir=$(cd "$(dirname "$0")/.." && pwd)

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

# macFUSE's library and a C compiler for the target are not here: without them fuser cannot mount and BLAKE3 uses no NEON.
if ! grep -q macos-no-mount "$work/Cargo.toml"; then
    cat >>"$work/Cargo.toml" <<'TOML'

[target.'cfg(target_os = "macos")'.dependencies]
fuser = { version = "=0.18.0", optional = true, features = ["macos-no-mount"] }
blake3 = { version = "1.8", features = ["pure"] }
TOML
fi

chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root TERM="${TERM:-dumb}" RUSTC_BOOTSTRAP=1 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt \
    sh -c "cd /work && cargo check ${CKPTFS_MACOS_JOBS:+-j $CKPTFS_MACOS_JOBS} -Zbuild-std=std,panic_abort --target $target --lib --bins"
echo "check-macos: ok"
