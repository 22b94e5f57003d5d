#!/bin/sh
# Makes the managed plugin: `docker plugin create`, from local files.
#
#   plugin.sh BINARY [NAME]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cp "$here/plugin/config.json" "$build/config.json"
"$here/rootfs.sh" "$1" "$build/rootfs"
docker plugin create "${2:-ckptfs:local}" "$build"
