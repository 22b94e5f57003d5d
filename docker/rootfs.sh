#!/bin/sh
# Puts the program, the satellites next to it, and what they need to run into an empty directory, which is then all there is in an image or a plugin.
#
#   rootfs.sh BINARY DIR
#
# A static binary needs nothing; one that is linked with glibc takes its libraries along.
set -eu

binary=$1 root=$2
mkdir -p "$root/usr/bin" "$root/proc" "$root/sys" "$root/dev" "$root/run/docker/plugins" "$root/tmp" "$root/etc" "$root/var/lib/ckptfs/volumes" "$root/mnt/volumes"
chmod 1777 "$root/tmp"
# Line tables for backtraces are most of the file, and stay where it was built.
put() {
    strip --strip-debug -o "$2" "$1" 2>/dev/null || cp "$1" "$2"
}
put "$binary" "$root/usr/bin/ckptfs"
satellite=${binary%/*}/ckptfs-browse
[ ! -f "$satellite" ] || put "$satellite" "$root/usr/bin/ckptfs-browse"
echo 'root:x:0:0::/:/usr/bin/ckptfs' >"$root/etc/passwd"
# /etc/mtab is asked by libraries for what is mounted.
ln -sf /proc/self/mounts "$root/etc/mtab"

# Whose word a server of a remote is taken on: those whom this machine believes.
authorities=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
if [ -r "$authorities" ]; then
    mkdir -p "$root/etc/ssl/certs"
    cp -L "$authorities" "$root/etc/ssl/certs/ca-certificates.crt"
fi

# `ldd` fails on a static binary, which is the better one.
{ ldd "$binary" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root${library%/*}"
    cp -L "$library" "$root$library"
done
