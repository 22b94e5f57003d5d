//! This build opens a store of each released version, as docs/format.md promises: it migrates an
//! older one, shows every checkpoint unchanged, and continues. `fixtures/make.sh` made the stores
//! with the program of that version.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::command::{check, sh};
use crate::common::{Fs, Io, Mount, MountOpts, run_limited, scratch, skip, succeeds, tool};

/// Size of one write; chunks of zeros become holes.
const CHUNK: usize = 64 << 10;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/integrity/fixtures")
}

/// The mounted filesystem image of a released version.
struct Released {
    version: u32,
    dir: PathBuf,
    point: PathBuf,
}

impl Released {
    fn open(version: u32, scratch: &Path) -> Released {
        let dir = fixtures().join(format!("v{version}"));
        let (image, point) = (
            scratch.join(format!("v{version}.img")),
            scratch.join(format!("v{version}")),
        );
        let (packed, file) = (
            File::open(dir.join("disk.img.zst")).unwrap(),
            File::create_new(&image).unwrap(),
        );
        let mut unpacked = zstd::Decoder::new(packed).unwrap();
        unpacked.window_log_max(27).unwrap();
        let (mut at, mut chunk) = (0, Vec::new());
        while (&mut unpacked)
            .take(CHUNK as u64)
            .read_to_end(&mut chunk)
            .unwrap()
            > 0
        {
            if chunk.iter().any(|byte| *byte != 0) {
                file.write_all_at(&chunk, at).unwrap();
            }
            at += chunk.len() as u64;
            chunk.clear();
        }
        file.set_len(at).unwrap();
        fs::create_dir(&point).unwrap();
        succeeds(
            tool("mount", &["-o", "loop,nouuid"])
                .arg(&image)
                .arg(&point),
            60,
        );
        Released {
            version,
            dir,
            point,
        }
    }

    fn root(&self, store: &str) -> PathBuf {
        self.point.join(store)
    }

    fn text(&self, store: &str, what: &str) -> String {
        fs::read_to_string(self.dir.join(store).join(what)).unwrap()
    }

    fn log(&self, store: &str) -> Value {
        serde_json::from_str(&self.text(store, "log")).unwrap()
    }

    fn format(&self, store: &str) -> String {
        fs::read_to_string(self.root(store).join(".ckptfs/format")).unwrap()
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        let _ = run_limited(
            &mut tool("umount", &["-l".as_ref(), self.point.as_os_str()]),
            60,
        );
    }
}

/// Describes a directory in the format of the fixtures.
fn describe(dir: &Path) -> String {
    sh(dir, &format!("bash {}/describe.sh .", fixtures().display()))
}

/// Returns the fields of a checkpoint that must not change; counters may become more exact.
fn told(entry: &Value) -> Value {
    const KEPT: [&str; 9] = [
        "id", "tags", "note", "created", "atomic", "reason", "parent", "pinned", "by",
    ];
    KEPT.iter()
        .map(|key| ((*key).to_owned(), entry[*key].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn assert_tells(log: &Value, then: &Value) {
    let now = log.as_array().unwrap();
    for entry in then.as_array().unwrap() {
        assert!(
            now.iter().any(|now| told(now) == told(entry)),
            "{entry:#} in {now:#?}"
        );
    }
}

fn assert_views(mount: &Mount, released: &Released, store: &str) {
    for entry in released.log(store).as_array().unwrap() {
        let id = entry["id"].as_u64().unwrap();
        assert_eq!(
            describe(&mount.view(id)),
            released.text(store, &id.to_string()),
            "checkpoint {id} of {store}"
        );
    }
}

fn opts() -> MountOpts {
    let mut opts = MountOpts::new(Io::Daemon);
    opts.env.push(("CKPTFS_AUTO_ABSENCE".into(), "on".into()));
    opts
}

fn offline(root: &Path, arguments: &[&str]) -> String {
    let output = run_limited(
        std::process::Command::new(env!("CARGO_BIN_EXE_ckptfs"))
            .arg("-C")
            .arg(root)
            .args(arguments),
        60,
    );
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Read-only commands do not migrate the store.
fn look_without_writing(released: &Released, store: &str) {
    let root = released.root(store);
    let format = released.format(store);
    assert!(
        format.contains(&format!("\nversion {}\n", released.version)),
        "{format}"
    );
    let log: Value = serde_json::from_str(&offline(&root, &["log", "--json"])).unwrap();
    let ids = |log: &Value| {
        log.as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["id"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&log), ids(&released.log(store)));
    offline(&root, &["ops", "--all"]);
    let (status, report) = check(&root, &["verify", "--deep"]);
    assert_eq!(status, 0, "{report}");
    let (status, report) = check(&root, &["verify"]);
    assert_eq!(status, 0, "{report}");
    assert_eq!(
        released.format(store),
        format,
        "a read-only verb changes nothing"
    );
}

fn goes_on(mount: &mut Mount, released: &Released, store: &str) {
    let root = released.root(store);
    let before = describe(&root);
    let first = released.log(store).as_array().unwrap().last().unwrap()["id"]
        .as_u64()
        .unwrap();
    let made = mount.checkpoint();
    assert_eq!(describe(&mount.view(made)), before);
    sh(&root, "echo later > src/later; rm -rf src/deep src/other");
    mount.restore(first);
    // The mtimes of directories are those of the restore.
    let without_dirs = |text: &str| {
        text.lines()
            .filter(|line| line.split(' ').nth(1) != Some("d"))
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        without_dirs(&describe(&root)),
        without_dirs(&released.text(store, &first.to_string()))
    );
    mount.restore(made);
    assert_views(mount, released, store);
    mount.umount();
    fs::remove_dir_all(root.join(".ckptfs/index")).unwrap();
    mount.remount();
    assert_views(mount, released, store);
    let (status, report) = check(&root, &["verify", "--deep"]);
    assert_eq!(status, 0, "{report}");
}

fn newest(mount: &Mount) -> Vec<(u64, String)> {
    let reason = |entry: &Value| {
        entry["reason"]["trigger"]
            .as_str()
            .unwrap_or("none")
            .to_owned()
    };
    mount
        .log_json()
        .as_array()
        .unwrap()
        .iter()
        .take(2)
        .map(|entry| (entry["id"].as_u64().unwrap(), reason(entry)))
        .collect()
}

/// Opens a store, after mounts that were killed at their first, second, third ... system call.
fn opens(released: &Released, store: &str, kills: u64) -> Mount {
    let root = released.root(store);
    let mut migrated_at = None;
    for nth in (1..=kills).filter(|_| cfg!(debug_assertions)) {
        let mut killed = opts().arg("--no-holder");
        let plan = format!(
            r#"{{"nth":{nth},"errno":5,"only":null,"lasting":false,"half":true,"pause_ms":0,"kill":true}}"#
        );
        killed.env.push(("CKPTFS_FAULT_FOR_TESTS".into(), plan));
        assert!(!Mount::try_start(&root, &killed).status.success());
        if migrated_at.is_none()
            && !released
                .format(store)
                .contains(&format!("version {}\n", released.version))
        {
            migrated_at = Some(nth);
        }
    }
    println!("{store}: migrated by a mount that was killed at call {migrated_at:?} of {kills}");
    Mount::start(&root, &opts())
}

fn every_store_of(version: u32, kills: u64) {
    if let Some(reason) = Fs::Xfs.unavailable() {
        return skip(&reason);
    }
    let scratch = scratch();
    let released = Released::open(version, scratch.path());
    for store in ["ended", "killed"] {
        look_without_writing(&released, store);
        let root = released.root(store);
        assert_eq!(describe(&root), released.text(store, "live"));
        let mut mount = opens(&released, store, kills);
        assert!(
            released.format(store).contains("\nversion 2\nfeatures -\n"),
            "{}",
            released.format(store)
        );
        assert_eq!(describe(&root), released.text(store, "live"));
        assert_views(&mount, &released, store);
        assert_tells(&mount.log_json(), &released.log(store));
        if store == "ended" {
            // The tree has changed since, while it was not mounted.
            let newest = newest(&mount);
            let [(after, absence), (before, unmount)] = newest.as_slice() else {
                panic!("{newest:?}")
            };
            assert_eq!((absence.as_str(), unmount.as_str()), ("absence", "unmount"));
            assert_eq!(describe(&mount.view(*before)), released.text(store, "left"));
            assert_eq!(describe(&mount.view(*after)), released.text(store, "live"));
            assert!(mount.ok(&["ops"]).lines().count() > 5);
            assert_eq!(
                mount.json(&["log", "--deleted"]).as_array().unwrap().len(),
                1,
                "one can be restored"
            );
            let absences = mount
                .log_json()
                .as_array()
                .unwrap()
                .iter()
                .filter(|entry| entry["reason"]["trigger"] == "absence")
                .count();
            assert_eq!(
                absences,
                if version == 1 { 1 } else { 2 },
                "since version 2, one is already recorded"
            );
        }
        let (status, report) = check(&root, &["verify", "--deep"]);
        assert_eq!(status, 0, "{report}");
        goes_on(&mut mount, &released, store);
        mount.umount();
    }
}

#[test]
fn version_1_is_migrated_and_goes_on() {
    every_store_of(1, 0);
}

/// Kills a mount at each of the first calls, among which the migration is.
#[test]
fn version_1_is_migrated_by_mounts_that_are_killed() {
    every_store_of(1, 40);
}

/// The store is as the first program of version 2 left it: nothing is migrated, and every later
/// build reads it.
#[test]
fn version_2_is_opened_and_goes_on() {
    every_store_of(2, 0);
}
