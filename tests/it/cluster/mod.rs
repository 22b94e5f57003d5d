//! A real Kubernetes node with our driver (`node.sh`, in the namespaces of the engines' rig):
//! claims, snapshots, clones, a drain, and deletions in several orders, while the processes that
//! serve volumes are killed.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::{has, skip};
use crate::engine::rig::{self, Rig};

/// Seconds for operations that take a few seconds on an idle machine.
const LIMIT: u64 = 120;
/// Sources the shell functions of the node.
const NODE_SH: &str = ". \"$PROJECT/tests/it/cluster/node.sh\"\n";

/// Returns why no cluster can run here.
fn unavailable() -> Option<String> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/kubernetes/version");
    if !built.is_file() {
        return Some(
            "Kubernetes is not built (make test-all builds it; tests/tools.sh says why not)".into(),
        );
    }
    let programs = [
        ("etcd", "etcd-server"),
        ("containerd", "containerd"),
        ("runc", "runc"),
        ("openssl", "openssl"),
    ];
    let missing = programs.iter().find(|(program, _)| !has(program));
    let missing = missing.map(|(program, package)| {
        format!("{program} is not installed (make deps; apt: {package})")
    });
    missing.or_else(rig::unavailable)
}

/// A claim for a volume that is empty or created from a snapshot or claim.
fn claim(name: &str, source: Option<(&str, &str)>) -> Value {
    let source = source.map(|(kind, name)| match kind {
        "VolumeSnapshot" => {
            json!({"apiGroup": "snapshot.storage.k8s.io", "kind": kind, "name": name})
        }
        _ => json!({"kind": kind, "name": name}),
    });
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {
            "storageClassName": "ckptfs", "accessModes": ["ReadWriteOnce"], "dataSource": source,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// The spec of a pod that appends increasing numbers, one a line, to a file named after the claim,
/// and exits on a write error. It continues from the numbers in the file.
fn counting(claim: &str) -> Value {
    let script = "trap exit TERM; touch /data/$FILE; i=$(wc -l </data/$FILE); while :; do i=$((i + 1)); echo $i >>/data/$FILE || exit 9; sleep 0.05; done";
    json!({
        "hostNetwork": true, "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "counter", "image": "busybox", "imagePullPolicy": "Never", "command": ["sh", "-c", script],
            "env": [{"name": "FILE", "value": claim}], "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    })
}

/// A pod that counts in a claim of the same name.
fn pod(claim: &str) -> Value {
    let mut spec = counting(claim);
    spec["restartPolicy"] = "Never".into();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": claim}, "spec": spec})
}

/// The same pod under a controller, which schedules it again after a drain.
fn kept_pod(claim: &str) -> Value {
    let labels = json!({"app": claim});
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": claim},
        "spec": {
            "replicas": 1, "serviceName": claim, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": counting(claim)},
        },
    })
}

fn snapshot(name: &str, of: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": name},
        "spec": {"volumeSnapshotClassName": "ckptfs", "source": {"persistentVolumeClaimName": of}},
    })
}

/// The cluster. It ends with the rig.
struct Cluster(Rig);

impl Cluster {
    fn start() -> Cluster {
        let cluster = Cluster(Rig::new());
        cluster.sh("node_start");
        cluster
    }

    #[track_caller]
    fn sh(&self, script: &str) -> String {
        self.0.sh(&format!("{NODE_SH}{script}"))
    }

    #[track_caller]
    fn json(&self, script: &str) -> Value {
        serde_json::from_str(&self.sh(script)).expect("JSON")
    }

    /// Applies the objects in a new namespace.
    #[track_caller]
    fn apply(&self, namespace: &str, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.sh(&format!(
            "kubectl create namespace {namespace} --dry-run=client -o json | kubectl apply -f -\nuntil_true {LIMIT} kubectl -n {namespace} get serviceaccount default\nkubectl -n {namespace} apply -f - <<'END'\n{list}\nEND"
        ));
    }

    /// Waits until the pods are ready.
    #[track_caller]
    fn run(&self, namespace: &str, pods: &[&str]) {
        let pods: String = pods.iter().map(|pod| format!(" pod/{pod}")).collect();
        self.sh(&format!(
            "for pod in{pods}; do until_true {LIMIT} kubectl -n {namespace} get $pod; done\nkubectl -n {namespace} wait --for=condition=Ready --timeout={LIMIT}s{pods}"
        ));
    }

    #[track_caller]
    fn is_ready(&self, namespace: &str, snapshot: &str) {
        self.sh(&format!(
            "kubectl -n {namespace} wait --for=jsonpath='{{.status.readyToUse}}'=true --timeout={LIMIT}s volumesnapshot/{snapshot}"
        ));
    }

    /// Waits until a pod has written more, and checks that the file has no gap.
    #[track_caller]
    fn counts_on(&self, namespace: &str, pod: &str, file: &str) {
        self.sh(&format!("counts_on {namespace} {pod} {file}"));
    }

    /// Returns the volume of a claim.
    #[track_caller]
    fn volume(&self, namespace: &str, claim: &str) -> String {
        self.sh(&format!(
            "kubectl -n {namespace} get pvc {claim} -o 'jsonpath={{.spec.volumeName}}'"
        ))
    }

    /// Applies a claim, a snapshot of it, a claim from the snapshot, and a clone of the first
    /// claim. Each claim has a pod that counts.
    #[track_caller]
    fn family(&self, namespace: &str) {
        self.apply(
            namespace,
            &[
                claim("one", None),
                pod("one"),
                snapshot("then", "one"),
                claim("back", Some(("VolumeSnapshot", "then"))),
                pod("back"),
                claim("copy", Some(("PersistentVolumeClaim", "one"))),
                pod("copy"),
            ],
        );
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = self.0.output(&format!("{NODE_SH}node_report"));
            eprintln!("{}", String::from_utf8_lossy(&said.stdout));
        }
    }
}

/// The cluster accepts the manifests of docker/k8s and their example.
fn the_manifests_are_taken(cluster: &Cluster) {
    cluster.sh("manifests_are_taken");
    cluster.sh("example | kubectl apply -f -");
    cluster.run("default", &["writer", "reader"]);
    cluster.is_ready("default", "data-before");
    cluster.sh("example | kubectl delete --wait=false --grace-period=1 -f -");
}

/// A pod writes on after SIGKILL of the driver during requests, of the process that serves a
/// volume, and of both.
fn a_pod_writes_on_whatever_is_killed(cluster: &Cluster) {
    let counts_on = |pod| cluster.counts_on("kills", pod, pod);
    cluster.apply("kills", &[claim("one", None), pod("one")]);
    cluster.run("kills", &["one"]);
    counts_on("one");
    cluster.sh("kill_now driver");
    counts_on("one");
    cluster.apply("kills", &[snapshot("then", "one")]);
    cluster.sh("kill_now driver");
    cluster.is_ready("kills", "then");
    let volume = cluster.volume("kills", "one");
    cluster.sh(&format!("kill_daemon {volume}"));
    counts_on("one");
    cluster.family("kills");
    cluster.sh(&format!("kill_now driver; kill_daemon {volume}"));
    cluster.run("kills", &["back", "copy"]);
    for claim in ["copy", "back", "one"] {
        let volume = cluster.volume("kills", claim);
        cluster.sh(&format!("kill_daemon {volume}; kill_now driver"));
    }
    for pod in ["one", "back", "copy"] {
        counts_on(pod);
    }
    // They began with the data of `one`.
    for pod in ["back", "copy"] {
        cluster.sh(&format!("counted_without_a_gap kills {pod} one"));
    }
}

/// Verbs on the node work while a pod writes.
fn a_file_goes_back_under_a_pod(cluster: &Cluster) {
    let volume = cluster.volume("kills", "one");
    let said = cluster.sh(&format!(
        "in_pod() {{ kubectl -n kills exec one -- sh -c \"$1\"; }}
in_pod 'echo before >/data/file'
ckptfs --volume {volume} checkpoint -t good
in_pod 'echo after >/data/file'
ckptfs --volume {volume} restore good file >&2
in_pod 'cat /data/file'"
    ));
    assert!(said.ends_with("before\n"), "{said}");
    cluster.counts_on("kills", "one", "one");
}

/// A drain evicts every pod and unmounts its volumes. A pod with a controller is restarted and
/// counts on.
fn a_drain_unmounts_all(cluster: &Cluster) {
    cluster.apply("kept", &[claim("kept", None), kept_pod("kept")]);
    cluster.run("kept", &["kept-0"]);
    cluster.counts_on("kept", "kept-0", "kept");
    cluster.sh(&format!(
        "nothing_is_mounted && exit 1\nkubectl drain node1 --force --grace-period=1 --timeout={LIMIT}s\nuntil_true {LIMIT} nothing_is_mounted"
    ));
    let volumes = cluster.json("ckptfs volumes ls --json");
    assert!(
        volumes.as_array().is_some_and(|all| all.len() >= 4),
        "{volumes}"
    );
    cluster.sh("kubectl uncordon node1");
    cluster.run("kept", &["kept-0"]);
    cluster.counts_on("kept", "kept-0", "kept");
    let pods = cluster.json("kubectl get pods -A -o json");
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1), "{pods}");
}

/// Families of volumes are deleted concurrently, each in a different order.
fn volumes_are_deleted_in_any_order(cluster: &Cluster) {
    let orders: [(&str, &[&str]); 4] = [
        (
            "source-first",
            &[
                "pods",
                "pvc/one",
                "volumesnapshot/then",
                "pvc/back",
                "pvc/copy",
            ],
        ),
        (
            "claims-before-pods",
            &[
                "pvc/one",
                "pvc/copy",
                "pvc/back",
                "volumesnapshot/then",
                "pod/back",
                "pod/copy",
                "pod/one",
            ],
        ),
        (
            "source-last",
            &[
                "volumesnapshot/then",
                "pod/copy",
                "pvc/copy",
                "pod/back",
                "pvc/back",
                "pod/one",
                "pvc/one",
            ],
        ),
        ("at-once", &["namespace"]),
    ];
    for (namespace, _) in orders {
        cluster.family(namespace);
    }
    for (namespace, _) in orders {
        cluster.run(namespace, &["one", "back", "copy"]);
        cluster.is_ready(namespace, "then");
    }
    for (namespace, order) in orders {
        let steps: String = order.iter().map(|step| format!(" {step}")).collect();
        cluster.sh(&format!(
            "delete_in_order {namespace}{steps}\nkill_now driver"
        ));
    }
    cluster.sh("kubectl delete --wait=false namespace kills kept");
}

fn nothing_is_left(cluster: &Cluster) {
    cluster.sh(&format!("until_true {LIMIT} nothing_is_asked_for"));
    cluster.sh(&format!("until_true {LIMIT} nothing_is_mounted"));
    assert_eq!(cluster.json("ckptfs volumes ls --json"), json!([]));
    cluster.sh(&format!(
        "driver_end\nuntil_true {LIMIT} nothing_of_ours_runs"
    ));
}

#[test]
fn a_node_uses_volumes_and_deletes_them() {
    if let Some(reason) = unavailable() {
        return skip(&reason);
    }
    let cluster = Cluster::start();
    the_manifests_are_taken(&cluster);
    a_pod_writes_on_whatever_is_killed(&cluster);
    a_file_goes_back_under_a_pod(&cluster);
    a_drain_unmounts_all(&cluster);
    volumes_are_deleted_in_any_order(&cluster);
    nothing_is_left(&cluster);
    let dir = cluster.0.dir().to_owned();
    drop(cluster);
    assert!(
        !dir.exists(),
        "the namespaces and all their processes have ended"
    );
}
