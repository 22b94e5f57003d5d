#!/usr/bin/env bash
# A Kubernetes node with our driver on it, for shells in the namespaces of tests/it/engine/rig.sh, which is read first.
# Its programs are in target/tools/kubernetes (tests/tools.sh). It has an address on a bridge that leads nowhere.

K=$DISK/kubernetes
TOOLS=$PROJECT/target/tools/kubernetes
ADDRESS=10.88.255.1
SOCKET=/var/lib/kubelet/plugins/csi.ckptfs/csi.sock
PATH=$TOOLS/bin:$PATH
export KUBECONFIG=$K/admin

# Starts a program in the background: its log is $W/NAME.log, its process is in $W/NAME.pid.
start() {
    local name=$1
    shift
    setsid "$@" >>"$W/$name.log" 2>&1 </dev/null &
    echo $! >"$W/$name.pid"
}

# The same, and starts it again whenever it ends, as the service manager and the kubelet do.
keep() {
    local name=$1
    shift
    # shellcheck disable=SC2016
    start "$name" bash -c 'while :; do "$@" & echo $! >"$0"; wait; sleep 0.1; done' "$W/$name.now" "$@"
}

# All of it, ready for a claim.
node_start() {
    control_start
    objects_apply
    start kubelet kubelet --kubeconfig="$KUBECONFIG" --config="$K/kubelet.yaml" --hostname-override=node1 --node-ip="$ADDRESS" --v=2
    driver_start
    until_true 120 node_is_ready
    until_true 60 driver_is_registered
}

control_start() {
    node_places
    node_network
    write_settings
    start etcd etcd --data-dir "$K/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380
    start apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=127.0.0.1 --advertise-address="$ADDRESS" --secure-port=6443 \
        --cert-dir="$K/certificates" --token-auth-file="$K/tokens" --authorization-mode=Node,RBAC --allow-privileged=true \
        --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$K/key" --service-account-signing-key-file="$K/key" \
        --service-cluster-ip-range=10.96.0.0/16 --kubelet-preferred-address-types=InternalIP
    start containerd containerd -c "$K/containerd.toml"
    until_true 60 ctr_ version
    image_archive | ctr_ -n k8s.io images import - >/dev/null
    until_true 120 kubectl get --raw /readyz
    start controller-manager kube-controller-manager --kubeconfig="$KUBECONFIG" --service-account-private-key-file="$K/key" --leader-elect=false \
        --authentication-skip-lookup=true
    start scheduler kube-scheduler --kubeconfig="$KUBECONFIG" --leader-elect=false --authentication-skip-lookup=true
}

node_is_ready() { [ "$(kubectl get node node1 -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]; }
ctr_() { ctr -a /run/containerd/containerd.sock "$@"; }

# What these programs write to the machine goes to the rig's disk, and what the kubelet would set in the kernel is set here for it alone to see.
node_places() {
    mkdir -p "$K"/{kubelet,containerd,cni} /var/lib/kubelet /run/containerd "$W/kernel"
    mount --bind "$K/kubelet" /var/lib/kubelet
    # After that: otherwise what is mounted in the one directory is in the other too.
    mount --make-rshared /
    mount -t tmpfs ckptfs-test /var/log
    local setting
    for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        echo "${setting#*=}" >"$W/kernel/setting"
        mv "$W/kernel/setting" "$W/kernel/$(basename "${setting%=*}")"
        mount --bind "$W/kernel/$(basename "${setting%=*}")" "/proc/sys/${setting%=*}"
    done
}

node_network() {
    busybox ip link set lo up
    busybox ip link add node0 type bridge
    busybox ip address add "$ADDRESS/24" dev node0
    busybox ip link set node0 up
    busybox ip route add default dev node0
}

write_settings() {
    openssl genrsa -out "$K/key" 2048 2>/dev/null
    echo "secret,admin,admin,system:masters" >"$K/tokens"
    write_access secret >"$KUBECONFIG"
    # Pods have the node's network: no plugin is ever called.
    echo '{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}]}' >"$K/cni/10.conflist"
    cat >"$K/containerd.toml" <<END
version = 2
root = "$K/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "docker.io/library/busybox:latest"
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "$K/cni"
END
    cat >"$K/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$RIG
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
protectKernelDefaults: true
oomScoreAdj: 0
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
volumePluginDir: /var/lib/kubelet/exec
resolvConf: ""
evictionHard: {memory.available: 10Mi, nodefs.available: 1%, imagefs.available: 1%}
END
}

# Prints what a program needs to talk to the cluster with a token.
write_access() {
    cat <<END
apiVersion: v1
kind: Config
clusters: [{name: it, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: me, user: {token: "$1"}}]
contexts: [{name: it, context: {cluster: it, user: me}}]
current-context: it
END
}

# Prints the archive of the one image: busybox, which sleeps where a pod does not say otherwise.
image_archive() {
    local dir=$W/archive digest
    mkdir -p "$dir"
    image_tar >"$dir/layer.tar"
    digest=$(sha256sum <"$dir/layer.tar")
    printf '{"architecture": "%s", "os": "linux", "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sleep", "1000000"]}, "rootfs": {"type": "layers", "diff_ids": ["sha256:%s"]}}' \
        "$(dpkg --print-architecture)" "${digest%% *}" >"$dir/config.json"
    echo '[{"Config": "config.json", "RepoTags": ["docker.io/library/busybox:latest"], "Layers": ["layer.tar"]}]' >"$dir/manifest.json"
    tar -C "$dir" -c manifest.json config.json layer.tar
}

# What docker/k8s has. The images of its sidecars are not here, so no node is either until their DaemonSet is gone again.
objects_apply() {
    kubectl apply -f "$TOOLS/crd" >/dev/null
    until_true 60 kubectl get volumesnapshotclasses
    kubectl apply -k "$PROJECT/docker/k8s/on-node"
    kubectl -n ckptfs delete daemonset ckptfs-csi
    until_true 60 kubectl -n ckptfs create token ckptfs-csi
    write_access "$(kubectl -n ckptfs create token ckptfs-csi)" >"$K/sidecar"
}

# The driver as mount/ckptfs-csi.service has it, and the sidecars with the rights that docker/k8s gives them.
driver_start() {
    mkdir -p "$(dirname "$SOCKET")" /var/lib/kubelet/plugins_registry
    keep driver ckptfs serve csi --node-id node1
    keep registrar node-sidecars register "$SOCKET" /var/lib/kubelet/plugins_registry/ckptfs.sock
    keep snapshot-controller snapshot-controller --kubeconfig="$KUBECONFIG" --enable-distributed-snapshotting=true
    KUBECONFIG=$K/sidecar keep provisioner node-sidecars provision "$SOCKET" ckptfs
    NODE_NAME=node1 NAMESPACE=ckptfs POD_NAME=sidecars keep snapshotter csi-snapshotter --csi-address="$SOCKET" --node-deployment=true \
        --extra-create-metadata=true --kubeconfig="$K/sidecar"
}

driver_is_registered() { [ "$(kubectl get csinode node1 -o 'jsonpath={.spec.drivers[*].name}')" = csi.ckptfs ]; }

# Kills what `keep` has started as $1; where it is just being started again, then after that.
kill_now() { until_true 60 kill_once "$1"; }
kill_once() { kill -KILL "$(cat "$W/$1.now")"; }

# Each manifest that is not applied above, as the server sees it.
manifests_are_taken() {
    kubectl apply --dry-run=server -k "$PROJECT/docker/k8s/in-pod"
    kubectl apply --dry-run=server -f "$PROJECT/docker/k8s/remote.yaml"
}

# The example of docker/k8s with the image that is here, and the node's network, for there is no other.
example() { sed -E 's/^( *)image: busybox$/&\n\1imagePullPolicy: Never/; s/^  containers:$/  hostNetwork: true\n&/' "$PROJECT/docker/k8s/example.yaml"; }

# How far the pod $2 in namespace $1 has counted in file $3.
counted() { kubectl -n "$1" exec "$2" -- sh -c "wc -l </data/$3"; }
counts_beyond() { [ "$(counted "$1" "$2" "$3")" -gt "$4" ]; }

# Fails unless each number is there.
counted_without_a_gap() {
    # shellcheck disable=SC2016
    kubectl -n "$1" exec "$2" -- awk '$1 != NR { print NR ": " $1; bad = 1 } END { exit bad }' "/data/$3"
}

# Waits until the pod has counted further, and fails unless each number is there and the container was never started again.
counts_on() {
    until_true 60 counted "$@"
    until_true 60 counts_beyond "$@" "$(counted "$@")"
    counted_without_a_gap "$@"
    [ "$(kubectl -n "$1" get pod "$2" -o 'jsonpath={.status.containerStatuses[0].restartCount}')" = 0 ]
}

# Kills the process that serves the volume $1, which is there again or still in a moment.
kill_daemon() {
    local pid
    until_true 60 daemon_of "$1"
    pid=$(daemon_of "$1")
    kill -KILL "$pid"
    until_true 60 is_served_by_another "$1" "$pid"
}

daemon_of() { ckptfs --volume "$1" status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["daemon"]["pid"])'; }
is_served_by_another() {
    local pid
    pid=$(daemon_of "$1") && [ "$pid" != "$2" ]
}

# delete_in_order NAMESPACE KIND/NAME...: asks for each deletion without a wait for the one before; `pods` are all of them, `namespace` is the whole.
delete_in_order() {
    local namespace=$1 what
    shift
    for what in "$@"; do
        case $what in
            namespace) kubectl delete --wait=false namespace "$namespace" ;;
            pods) kubectl -n "$namespace" delete --wait=false pods --all ;;
            *) kubectl -n "$namespace" delete --wait=false "$what" ;;
        esac
    done
}

ours_mounted() { awk '/ - fuse.ckptfs / { print $5 }' /proc/self/mountinfo; }
nothing_is_mounted() { [ -z "$(ours_mounted)" ]; }
nothing_is_asked_for() { [ -z "$(kubectl get pv,pvc,volumesnapshots,volumesnapshotcontents -A -o name)" ]; }

# Ends the driver for good.
driver_end() {
    kill -KILL "$(cat "$W/driver.pid")"
    kill -TERM "$(cat "$W/driver.now")"
}

nothing_of_ours_runs() { ! grep -qs ^ckptfs /proc/[0-9]*/comm; }

# What there is to see when a test has failed.
node_report() {
    set +e
    kubectl get pods,pvc,pv,volumesnapshots,volumesnapshotcontents -A
    kubectl get events -A --sort-by=.lastTimestamp | grep -v Normal | tail -n 20
    ours_mounted
    tail -n 12 "$W"/*.log
}
