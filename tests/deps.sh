#!/usr/bin/env bash
# Installs what the tests and the demo need and makes FUSE ready. Does nothing where all of it is there already.
#
#   deps.sh [demo|bench]     demo: only the packages without which nothing works; bench: also the programs that the benchmarks
#                            compare with and run
#
# Fails only when a thing without which nothing can be tested is missing afterwards.
set -euo pipefail

SUDO=()
if [ "$(id -u)" != 0 ]; then SUDO=(sudo); fi

# command:package; the first list is needed, the second makes more tests possible.
NEEDED=(python3:python3 cc:gcc git:git fusermount3:fuse3 mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs mkfs.ext4:e2fsprogs losetup:util-linux
    setfacl:acl setfattr:attr rsync:rsync)
USEFUL=(sqlite3:sqlite3 inotifywait:inotify-tools strace:strace fio:fio stress-ng:stress-ng modprobe:kmod man:man-db groff:groff-base zsh:zsh fish:fish tmux:tmux)
# Container engines and what is run in them; installed, never started.
USEFUL+=(dockerd:docker.io podman:podman tini:tini busybox:busybox-static curl:curl docker-compose:docker-compose pg_createcluster:postgresql)
# A node of Kubernetes, whose own programs tests/tools.sh builds.
USEFUL+=(etcd:etcd-server containerd:containerd runc:runc openssl:openssl)
# A registry that images are pushed to, and what reads them beside the engines.
USEFUL+=(docker-registry:docker-registry skopeo:skopeo umoci:umoci)
# Samba is asked for previous versions; the modules are a package of their own.
USEFUL+=(smbd:samba smbclient:smbclient "/usr/lib/$(uname -m)-linux-gnu/samba/vfs/shadow_copy2.so:samba-vfs-modules")
# Repositories are judged by the program whose format they have.
USEFUL+=(restic:restic)
# Go makes csi-sanity (tests/tools.sh), unless another one is there; the manifests for Kubernetes are YAML.
[ -x /usr/local/go/bin/go ] || USEFUL+=(go:golang-go)
USEFUL+=(/usr/lib/python3/dist-packages/yaml/__init__.py:python3-yaml)

# tests/tools.sh makes an environment with it.
USEFUL+=("$(python3 -c 'import ensurepip; print(ensurepip.__file__)' 2>/dev/null || echo /usr/lib/python3/ensurepip):python3-venv")

# A library has no command: its header tells.
LIBFUSE=/usr/include/fuse3/fuse.h
if [ "${1:-}" = demo ]; then USEFUL=(); fi
if [ "${1:-}" = bench ]; then USEFUL+=(pkg-config:pkg-config rg:ripgrep npm:npm "$LIBFUSE:libfuse3-dev"); fi

# Prints the packages of the pairs whose command is not there.
missing() {
    local pair
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null || [[ $pair == /* && -f ${pair%%:*} ]] || echo "${pair##*:}"
    done
}

install_packages() {
    local -a packages
    mapfile -t packages < <(missing "${NEEDED[@]}" "${USEFUL[@]}" | sort -u)
    [ "${#packages[@]}" -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "deps: no apt-get here; install by hand: ${packages[*]}" >&2
        return 0
    fi
    echo "deps: installing ${packages[*]}"
    local -a apt=("${SUDO[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3)
    start_no_services
    "${apt[@]}" update -q || echo "deps: apt-get update failed; trying with the lists there are" >&2
    "${apt[@]}" install -q -y --no-install-recommends "${packages[@]}" && return 0
    # One package that cannot be had must not keep the others away.
    local package
    for package in "${packages[@]}"; do
        "${apt[@]}" install -q -y --no-install-recommends "$package" || echo "deps: could not install $package" >&2
    done
}

# Packages of daemons start them when they are installed, unless this file says no.
start_no_services() {
    local policy=/usr/sbin/policy-rc.d
    [ ! -e $policy ] || return 0
    printf '#!/bin/sh\nexit 101\n' | "${SUDO[@]}" tee $policy >/dev/null
    "${SUDO[@]}" chmod 755 $policy
    # shellcheck disable=SC2064
    trap "${SUDO[*]} rm -f $policy" EXIT
}

ready_fuse() {
    [ -e /dev/fuse ] || "${SUDO[@]}" modprobe fuse || "${SUDO[@]}" mknod -m 666 /dev/fuse c 10 229 || true
    local control=/sys/fs/fuse/connections
    if [ -d "$control" ] && ! grep -q " $control fusectl " /proc/mounts; then
        "${SUDO[@]}" mount -t fusectl fusectl "$control" || echo "deps: cannot mount $control; a hung mount cannot be aborted" >&2
    fi
}

ready_rust() {
    if ! command -v cargo >/dev/null; then
        echo "deps: no cargo. Hint: install Rust 1.91 or later from https://rustup.rs" >&2
        return 1
    fi
    if command -v rustup >/dev/null; then
        cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt || true
        cargo clippy --version >/dev/null 2>&1 || rustup component add clippy || true
    fi
}

main() {
    install_packages
    ready_fuse
    local -a still
    mapfile -t still < <(missing "${USEFUL[@]}")
    [ "${#still[@]}" = 0 ] || echo "deps: without ${still[*]} some tests are skipped" >&2
    mapfile -t still < <(missing "${NEEDED[@]}")
    if [ "${#still[@]}" -gt 0 ]; then
        echo "deps: still missing: ${still[*]}" >&2
        return 1
    fi
    ready_rust
}

main
