//! docker/k8s: the files are YAML, and their names match each other and the driver.
//! `tests/it/cluster` proves that Kubernetes accepts them.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::command::try_run_limited;
use crate::common::{skip, tool};
use crate::csi::support::{Rig, SECONDS, class, unavailable, wanted};
use ckptfs_volumes::csi::proto::CreateVolumeRequest;
use ckptfs_volumes::csi::{NAME, TOPOLOGY_KEY};

/// Prints the documents of the files as one JSON array.
const TO_JSON: &str = "import json, sys, yaml\nprint(json.dumps([d for f in sys.argv[1:] for d in yaml.safe_load_all(open(f)) if d]))";
/// The kubelet's directory for the driver's socket.
const SOCKETS: &str = "/var/lib/kubelet/plugins/csi.ckptfs";

fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docker/k8s")
}

/// Returns the documents of some files. Without a YAML parser, reports the test as skipped and
/// returns `None`.
fn documents(files: &[&str]) -> Option<Vec<Value>> {
    let paths: Vec<String> = files
        .iter()
        .map(|file| directory().join(file).to_string_lossy().into_owned())
        .collect();
    // Debian's python has Debian's yaml; another one in PATH may not.
    let python = ["/usr/bin/python3", "python3"].into_iter().find(|python| {
        let tried = try_run_limited(&mut tool(python, &["-c", "import yaml"]), SECONDS);
        tried.is_ok_and(|output| output.status.success())
    });
    let Some(python) = python else {
        skip("python3 with yaml is not installed (make deps)");
        return None;
    };
    let output =
        try_run_limited(tool(python, &["-c", TO_JSON]).args(paths), SECONDS).expect("python runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

fn kind<'a>(all: &'a [Value], kind: &str) -> Vec<&'a Value> {
    all.iter().filter(|one| one["kind"] == kind).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn name(value: &Value) -> &str {
    value["metadata"]["name"].as_str().unwrap_or_default()
}

fn names_of(all: &[Value]) -> BTreeSet<&str> {
    all.iter().filter_map(|one| one["name"].as_str()).collect()
}

#[test]
fn the_manifests_fit_together() {
    let Some(all) = documents(&[
        "on-node/rbac.yaml",
        "on-node/driver.yaml",
        "on-node/classes.yaml",
    ]) else {
        return;
    };
    assert!(
        all.iter().all(|one| one["apiVersion"].is_string()
            && one["kind"].is_string()
            && !name(one).is_empty()),
        "{all:?}"
    );
    assert_eq!(
        kind(&all, "CSIDriver")
            .iter()
            .map(|one| name(one))
            .collect::<Vec<_>>(),
        [NAME]
    );
    assert!(kind(&all, "StorageClass").iter().all(
        |one| one["provisioner"] == NAME && one["volumeBindingMode"] == "WaitForFirstConsumer"
    ));
    assert!(
        kind(&all, "VolumeSnapshotClass")
            .iter()
            .all(|one| one["driver"] == NAME)
    );
    let set = kind(&all, "DaemonSet")[0];
    let pod = &set["spec"]["template"]["spec"];
    let namespace = name(kind(&all, "Namespace")[0]);
    let account = kind(&all, "ServiceAccount")[0];
    assert_eq!(
        (
            pod["serviceAccountName"].as_str(),
            account["metadata"]["namespace"].as_str()
        ),
        (Some(name(account)), Some(namespace))
    );
    assert_bound(&all, name(account), namespace);
    assert_eq!(set["metadata"]["namespace"], namespace);
    assert_eq!(
        set["spec"]["selector"]["matchLabels"],
        set["spec"]["template"]["metadata"]["labels"]
    );
    assert_sockets(pod);
    let usage = crate::common::run_limited(
        tool(env!("CARGO_BIN_EXE_ckptfs"), &["serve", "csi", "--help"]).env("NO_COLOR", "1"),
        SECONDS,
    );
    assert!(
        String::from_utf8_lossy(&usage.stdout).contains(&format!("unix://{SOCKETS}/csi.sock")),
        "the default of --endpoint"
    );
    let readme = std::fs::read_to_string(directory().join("README.md")).unwrap();
    assert!(readme.contains(TOPOLOGY_KEY));
}

/// Checks that every container finds the driver's default socket, and that every volume is mounted.
fn assert_sockets(pod: &Value) {
    let volumes = names_of(list(&pod["volumes"]));
    let socket = list(&pod["volumes"])
        .iter()
        .find(|one| one["name"] == "socket")
        .expect("a volume for the socket");
    assert_eq!(socket["hostPath"]["path"], SOCKETS);
    let mut mounted = BTreeSet::new();
    for container in list(&pod["containers"]) {
        let mounts = list(&container["volumeMounts"]);
        let own = names_of(mounts);
        assert!(own.is_subset(&volumes), "{container}");
        mounted.extend(own);
        let at = mounts
            .iter()
            .find(|one| one["name"] == "socket")
            .expect("it needs the socket")["mountPath"]
            .as_str()
            .unwrap();
        assert!(
            list(&container["args"])
                .iter()
                .any(|one| *one == format!("--csi-address={at}/csi.sock")),
            "{container}"
        );
    }
    assert_eq!(mounted, volumes);
    let registrar = &list(&pod["containers"])[0];
    assert!(
        list(&registrar["args"])
            .iter()
            .any(|one| *one == format!("--kubelet-registration-path={SOCKETS}/csi.sock"))
    );
}

/// Checks that every binding binds an existing role to the driver's account.
fn assert_bound(all: &[Value], account: &str, namespace: &str) {
    for binding in kind(all, "ClusterRoleBinding")
        .into_iter()
        .chain(kind(all, "RoleBinding"))
    {
        let role = &binding["roleRef"];
        assert!(
            kind(all, role["kind"].as_str().unwrap())
                .iter()
                .any(|one| role["name"] == name(one)),
            "{binding}"
        );
        assert!(
            list(&binding["subjects"])
                .iter()
                .all(|one| one["name"] == account && one["namespace"] == namespace),
            "{binding}"
        );
    }
}

/// A sidecar retries a forbidden call forever, and a pod that the namespace's security level
/// forbids is never created.
#[test]
fn the_sidecars_may_do_what_they_do() {
    let Some(all) = documents(&["on-node/rbac.yaml"]) else {
        return;
    };
    let level =
        &kind(&all, "Namespace")[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
    assert_eq!(level, "privileged", "directories of the host");
    let rules = list(&kind(&all, "ClusterRole")[0]["rules"]);
    for (group, resource, verbs) in [
        (
            "storage.k8s.io",
            "volumeattributesclasses",
            ["get", "list", "watch"].as_slice(),
        ),
        (
            "snapshot.storage.k8s.io",
            "volumesnapshots",
            &["get", "list", "watch", "update"],
        ),
    ] {
        let has = |rule: &Value, name: &str, wanted: &str| {
            list(&rule[name]).iter().any(|one| *one == wanted)
        };
        let may = |verb: &&&str| {
            rules.iter().any(|rule| {
                has(rule, "apiGroups", group)
                    && has(rule, "resources", resource)
                    && has(rule, "verbs", verb)
            })
        };
        assert_eq!(verbs.iter().filter(may).count(), verbs.len(), "{resource}");
    }
}

#[test]
fn the_driver_in_the_pod_fits_to_the_rest() {
    let Some(all) = documents(&["on-node/driver.yaml", "in-pod/driver.yaml"]) else {
        return;
    };
    let sets = kind(&all, "DaemonSet");
    let (base, patch) = (sets[0], sets[1]);
    assert_eq!(
        base["metadata"], patch["metadata"],
        "a patch applies to the object that it names"
    );
    let pod = |set: &'_ Value| set["spec"]["template"]["spec"].clone();
    let mut volumes: BTreeSet<String> = BTreeSet::new();
    for set in [base, patch] {
        volumes.extend(
            names_of(list(&pod(set)["volumes"]))
                .into_iter()
                .map(str::to_owned),
        );
    }
    let container = list(&pod(patch)["containers"])[0].clone();
    assert!(
        names_of(list(&container["volumeMounts"]))
            .iter()
            .all(|name| volumes.contains(*name))
    );
    assert!(pod(patch)["hostPID"].is_null());
    // Mounts there must be visible to the kubelet, at the same path.
    for directory in ["/var/lib/kubelet", "/var/lib/ckptfs/volumes"] {
        let mount = list(&container["volumeMounts"])
            .iter()
            .find(|one| one["mountPath"] == directory)
            .unwrap_or_else(|| panic!("{directory}"));
        assert_eq!(mount["mountPropagation"], "Bidirectional");
        let volume = pod(patch)["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["name"] == mount["name"])
            .cloned()
            .unwrap();
        assert_eq!(volume["hostPath"]["path"], directory);
    }
    let Some(files) = documents(&["on-node/kustomization.yaml", "in-pod/kustomization.yaml"])
    else {
        return;
    };
    for (file, dir) in files
        .iter()
        .zip(["on-node", "in-pod"].map(|name| directory().join(name)))
    {
        let patches = list(&file["patches"]).iter().map(|patch| &patch["path"]);
        for path in list(&file["resources"]).iter().chain(patches) {
            assert!(dir.join(path.as_str().unwrap()).exists(), "{path}");
        }
    }
}

#[test]
fn kubectl_puts_them_together() {
    for (name, containers) in [("on-node", 4), ("in-pod", 5)] {
        let Ok(output) = try_run_limited(
            tool("kubectl", &["kustomize"]).arg(directory().join(name)),
            SECONDS,
        ) else {
            return skip("kubectl is not installed");
        };
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(
            said.lines()
                .filter(|line| line
                    .trim_start()
                    .trim_start_matches("- ")
                    .starts_with("image: "))
                .count(),
            containers,
            "{said}"
        );
    }
}

#[test]
fn the_example_uses_what_there_is() {
    let Some(all) = documents(&["on-node/classes.yaml", "example.yaml"]) else {
        return;
    };
    let names = |wanted: &str| {
        kind(&all, wanted)
            .into_iter()
            .map(|one| name(one).to_owned())
            .collect::<BTreeSet<String>>()
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for claim in kind(&all, "PersistentVolumeClaim") {
        assert!(
            names("StorageClass").contains(&text(&claim["spec"]["storageClassName"])),
            "{claim}"
        );
        let source = &claim["spec"]["dataSource"];
        assert!(
            source.is_null() || names("VolumeSnapshot").contains(&text(&source["name"])),
            "{claim}"
        );
    }
    for snapshot in kind(&all, "VolumeSnapshot") {
        assert!(
            names("VolumeSnapshotClass")
                .contains(&text(&snapshot["spec"]["volumeSnapshotClassName"]))
        );
        assert!(names("PersistentVolumeClaim").contains(&text(
            &snapshot["spec"]["source"]["persistentVolumeClaimName"]
        )));
    }
    for pod in kind(&all, "Pod") {
        let claims = list(&pod["spec"]["volumes"])
            .iter()
            .map(|volume| text(&volume["persistentVolumeClaim"]["claimName"]));
        assert!(
            claims
                .collect::<BTreeSet<_>>()
                .is_subset(&names("PersistentVolumeClaim")),
            "{pod}"
        );
    }
}

/// A snapshot class refers to a remote by name, and the id of an existing snapshot contains that
/// name.
#[test]
fn snapshots_that_leave_fit_together() {
    let Some(all) = documents(&["remote.yaml"]) else {
        return;
    };
    let [class] = kind(&all, "VolumeSnapshotClass")[..] else {
        panic!("one class");
    };
    assert_eq!(
        (&class["driver"], name(class)),
        (&json!(NAME), "ckptfs-home")
    );
    assert_eq!(class["parameters"], json!({"remote": "home"}));
    let content = &kind(&all, "VolumeSnapshotContent")[0]["spec"];
    let snapshot = kind(&all, "VolumeSnapshot")[0];
    let claim = &kind(&all, "PersistentVolumeClaim")[0]["spec"];
    assert_eq!(content["driver"], NAME);
    let handle = content["source"]["snapshotHandle"].as_str().unwrap();
    assert!(handle.contains("@1@remote/home/"), "{handle}");
    assert_eq!(content["volumeSnapshotRef"]["name"], name(snapshot));
    assert_eq!(claim["dataSource"]["name"], name(snapshot));
    for one in [content, &snapshot["spec"]] {
        assert_eq!(one["volumeSnapshotClassName"], name(class));
    }
}

#[test]
fn a_driver_takes_the_parameters_of_the_classes() {
    let Some(all) = documents(&["on-node/classes.yaml"]) else {
        return;
    };
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    for one in kind(&all, "StorageClass") {
        let parameters: Vec<(&str, &str)> = one["parameters"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str().expect("a string")))
            .collect();
        let request = CreateVolumeRequest {
            parameters: class(&parameters),
            ..wanted(name(one), 300 << 20)
        };
        assert_eq!(rig.try_create(request).unwrap().capacity_bytes, 300 << 20);
    }
}
