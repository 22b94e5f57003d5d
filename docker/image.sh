#!/bin/sh
# Builds the image.
#
#   image.sh BINARY [NAME]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
"$here/rootfs.sh" "$1" "$build/rootfs"
docker build -q -f "$here/Dockerfile" -t "${2:-ckptfs}" "$build"
