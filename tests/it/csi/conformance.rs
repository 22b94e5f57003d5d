//! csi-sanity, the conformance suite of the specification's authors.

use std::fs;
use std::path::Path;

use crate::common::{run_limited, skip};
use crate::csi::support::{Rig, SECONDS, unavailable};

/// Minimum number of specs that ran. Fewer would mean that the suite skipped supported ones.
const RAN_MIN: usize = 68;

/// Specs that may be skipped, by the suite's message, and why the capability is not claimed.
const ALLOWED: [(&str, &str); 12] = [
    (
        "ControllerPublishVolume not supported",
        "a volume is local to its files: nothing is attached",
    ),
    (
        "ControllerUnpublishVolume not supported",
        "a volume is local to its files: nothing is attached",
    ),
    (
        "Controller Publish, UnpublishVolume not supported",
        "a volume is local to its files: nothing is attached",
    ),
    (
        "ControllerExpandVolume not supported",
        "the node expands it, because the controller of another node could not",
    ),
    (
        "GroupControllerService not supported",
        "a checkpoint covers one volume",
    ),
    (
        "ControllerModifyVolume not supported",
        "no parameter of a volume can be changed later",
    ),
    (
        "Modify volume not supported",
        "no parameter of a volume can be changed later",
    ),
    (
        "Modify Volume not supported",
        "no parameter of a volume can be changed later",
    ),
    (
        "VolumeHealth not supported",
        "alpha, and not yet used by Kubernetes",
    ),
    (
        "NodeGetStorageHealth not supported",
        "alpha, and not yet used by Kubernetes",
    ),
    (
        "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported",
        "alpha; a snapshot is on the node of its volume",
    ),
    ("pending", "disabled by the suite"),
];

/// A spec in the report.
struct Spec {
    name: String,
    status: String,
    message: String,
}

fn attribute(line: &str, name: &str) -> String {
    let start = format!(" {name}=\"");
    let value = line
        .split_once(&start)
        .and_then(|(_, rest)| rest.split_once('"'))
        .map_or("", |(value, _)| value);
    value
        .replace("&quot;", "\"")
        .replace("&#34;", "\"")
        .replace("&amp;", "&")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
}

/// Parses the specs in ginkgo's JUnit report: one `testcase` a line, with its result on the next.
fn specs(report: &str) -> Vec<Spec> {
    let mut found: Vec<Spec> = Vec::new();
    for line in report.lines().map(str::trim) {
        if line.starts_with("<testcase ") {
            found.push(Spec {
                name: attribute(line, "name"),
                status: attribute(line, "status"),
                message: String::new(),
            });
        } else if line.starts_with("<skipped") || line.starts_with("<failure") {
            found.last_mut().expect("it belongs to a spec").message = attribute(line, "message");
        }
    }
    found.retain(|spec| spec.name.starts_with("[It]"));
    found
}

#[test]
fn csi_sanity_passes_and_skips_nothing_that_is_claimed() {
    passes(Rig::start, None);
}

/// The suite with every snapshot sent to a remote.
#[cfg(feature = "remote")]
#[test]
#[ignore = "repositories are opened a hundred times: a minute"]
fn csi_sanity_passes_with_snapshots_that_are_sent() {
    let remotes = crate::common::remotes::Remotes::new();
    let file = remotes.file().display().to_string();
    let start = || Rig::start_as(crate::csi::support::NODE, &["--remotes", &file]);
    passes(start, Some("remote: home\n"));
    assert_eq!(remotes.log("home"), Vec::<serde_json::Value>::new());
}

/// Runs the suite. `parameters` are those of the snapshot class.
fn passes(start: impl FnOnce() -> Rig, parameters: Option<&str>) {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/csi-sanity");
    if !suite.is_file() {
        return skip("csi-sanity is not installed (tests/tools.sh says why)");
    }
    if unavailable() {
        return;
    }
    let rig = start();
    let (report, dir) = (rig.disk().join("junit.xml"), rig.disk().join("sanity"));
    fs::create_dir(&dir).unwrap();
    let mut command = std::process::Command::new(suite);
    command
        .arg(format!("--csi.endpoint=unix://{}", rig.socket.display()))
        .arg(format!("--csi.mountdir={}", dir.join("mount").display()));
    command
        .arg(format!(
            "--csi.stagingdir={}",
            dir.join("staging").display()
        ))
        .arg(format!("--ginkgo.junit-report={}", report.display()));
    if let Some(parameters) = parameters {
        let file = rig.disk().join("parameters.yaml");
        fs::write(&file, parameters).unwrap();
        command.arg(format!("--csi.testsnapshotparameters={}", file.display()));
    }
    let output = run_limited(command.arg("--ginkgo.no-color"), SECONDS * 4);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let specs = specs(
        &fs::read_to_string(&report).unwrap_or_else(|error| panic!("no report: {error}; {said}")),
    );
    let passed = specs.iter().filter(|spec| spec.status == "passed").count();
    let not_allowed = |spec: &&Spec| {
        let skipped = spec.status == "skipped" || spec.status == "pending";
        let known = skipped
            && ALLOWED
                .iter()
                .any(|(message, _)| spec.message.contains(message) || spec.status == *message);
        spec.status != "passed" && !known
    };
    let bad: Vec<String> = specs
        .iter()
        .filter(not_allowed)
        .map(|spec| format!("{} {}: {}", spec.status, spec.name, spec.message))
        .collect();
    assert!(
        bad.is_empty() && output.status.success(),
        "{bad:#?}\n{said}"
    );
    assert!(
        passed >= RAN_MIN,
        "only {passed} of {} specs have run: {said}",
        specs.len()
    );
    // The suite deleted everything that it created.
    let left = fs::read_dir(rig.root.join("meta"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    assert_eq!(
        left.filter(|name| name.ends_with(".json"))
            .collect::<Vec<String>>(),
        Vec::<String>::new()
    );
}

#[test]
fn a_report_is_read_as_ginkgo_writes_it() {
    let report = "<testsuites>\n<testcase name=\"[BeforeSuite]\" status=\"passed\" time=\"0\">\n<testcase name=\"[It] a &#34;b&#34;\" status=\"passed\" time=\"1\">\n\
                  </testcase>\n  <testcase name=\"[It] c\" status=\"skipped\" time=\"0\">\n      <skipped message=\"skipped - d\"></skipped>\n\
                  <testcase name=\"[It] e\" status=\"failed\">\n<failure message=\"f\" type=\"failed\">text</failure>";
    let found = specs(report);
    let seen: Vec<(&str, &str, &str)> = found
        .iter()
        .map(|spec| {
            (
                spec.name.as_str(),
                spec.status.as_str(),
                spec.message.as_str(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("[It] a \"b\"", "passed", ""),
            ("[It] c", "skipped", "skipped - d"),
            ("[It] e", "failed", "f")
        ]
    );
}
