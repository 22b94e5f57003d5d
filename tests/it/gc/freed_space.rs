//! `gc` reports only space that is free when it returns.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::common::space::{free, noise};
use crate::common::wait::{seen, wait_until};
use crate::common::{Variant, for_each_variant};

for_each_variant! { reflink => what_is_freed_is_free_or_is_said_to_be_open }

const BIG: usize = 160 << 20;

/// Returns the descriptors of a process that refer to versions; with `removed`, only to removed
/// ones.
fn open_versions(pid: u32, removed: bool) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
    let targets = entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    let targets = targets.map(|target| target.display().to_string());
    let is_one = |target: &String| {
        target.contains("/objects/") && (!removed || target.ends_with(" (deleted)"))
    };
    targets.filter(is_one).collect()
}

/// Failed before: `gc` reported "900 MiB freed" while `df` was unchanged, because the sealer was
/// hashing the version.
fn what_is_freed_is_free_or_is_said_to_be_open(v: Variant) {
    let rig = v.start();
    let big = rig.path().join("big");
    fs::write(&big, noise(BIG, 1)).expect("a file");
    rig.mount.checkpoint();
    fs::remove_file(&big).expect("the call succeeds");
    rig.mount.checkpoint();
    let before = free(rig.image.path());
    wait_until("the sealer reads the version", || {
        let open = open_versions(rig.mount.pid(), false);
        seen(!open.is_empty(), open)
    });
    let report = rig.mount.json(&["gc", "--keep-last", "1"]);
    assert!(
        report["freed_bytes"].as_u64() > Some(BIG as u64 / 2),
        "{report}"
    );
    let held = report["held_bytes"].as_u64().unwrap_or(0);
    if held == 0 {
        let came = free(rig.image.path()).saturating_sub(before);
        assert!(came > BIG as u64 / 2, "{came} bytes are free, {report}");
        assert_eq!(open_versions(rig.mount.pid(), true), Vec::<String>::new());
    }
    wait_until("no removed version is open", || {
        let open = open_versions(rig.mount.pid(), true);
        seen(open.is_empty(), open)
    });
    // A client that reads a version keeps it allocated, which the report mentions.
    fs::write(&big, noise(BIG / 8, 2)).expect("a file");
    let id = rig.mount.checkpoint();
    fs::remove_file(&big).expect("the call succeeds");
    rig.mount.checkpoint();
    let past = File::open(rig.view(id).join("big")).expect("a view");
    past.read_exact_at(&mut [0; 4096], 0).expect("read");
    let report = rig.mount.json(&["gc", "--keep-last", "1"]);
    let open = open_versions(rig.mount.pid(), true);
    let held = report["held_bytes"].as_u64().unwrap_or(0);
    assert_eq!(held > 0, !open.is_empty(), "{report}, {open:?}");
    println!("{v:?}: {held} bytes are open");
}
