//! `verify` without a mount: each kind of damage has its own finding; some are repaired, others are
//! left alone.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use super::story::{Story, index_of, kinds, objects};
use crate::common::command::check;
use crate::common::{Mount, MountOpts, OpenStore, Variant, for_each_variant};

for_each_variant! { xfs =>
    the_index_made_from_the_journal_equals_the_old_one_entry_by_entry,
    each_damage_has_its_kind_and_repairs_destroy_nothing,
    a_journal_that_lost_whole_frames_at_its_end_is_damaged,
}
for_each_variant! { reflink => what_was_found_to_be_changed_is_not_shown_any_more }

fn the_index_made_from_the_journal_equals_the_old_one_entry_by_entry(v: Variant) {
    let mut story = Story::tell(v, 6);
    fs::remove_dir(story.dir().join(".snapshots/3")).unwrap();
    story.mount().ok(&["restore", "2"]);
    story.checkpoint();
    let dir = story.rest();
    let old = index_of(&dir);
    assert!(old.len() > 100, "{} entries", old.len());
    fs::remove_dir_all(dir.join(".ckptfs/index")).unwrap();
    let (status, report) = check(&dir, &["verify"]);
    assert_eq!(
        (status, kinds(&report)),
        (4, vec!["index-missing".to_owned()])
    );
    let (status, report) = check(&dir, &["verify", "--repair"]);
    assert_eq!(
        (status, &report["repaired"]),
        (
            0,
            &serde_json::json!(["the index was made from the journal"])
        ),
        "{report}"
    );
    assert_eq!(index_of(&dir), old);
}

/// Returns the exit status of a check, the kinds of damage, and the report.
fn found(dir: &Path, arguments: &[&str]) -> (i32, Vec<String>, Value) {
    let (status, report) = check(dir, arguments);
    (status, kinds(&report), report)
}

fn each_damage_has_its_kind_and_repairs_destroy_nothing(v: Variant) {
    let mut story = Story::tell(v, 3);
    let dir = story.rest();
    let store = dir.join(".ckptfs");
    assert_eq!(found(&dir, &["verify", "--deep"]).0, 0);
    let files: Vec<_> = objects(&dir)
        .into_iter()
        .filter(|path| {
            fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() > 0)
        })
        .collect();
    let (short, gone) = (&files[0], &files[1]);

    damaged_objects(&dir, short, gone);

    // Garbage after the end of the journal.
    let segment = store.join("journal/00000001");
    let end = {
        let (store, _) = ckptfs_store::Store::open(fs::File::open(&dir).unwrap(), false).unwrap();
        store.journal.position().offset
    };
    fs::OpenOptions::new()
        .write(true)
        .open(&segment)
        .unwrap()
        .write_all_at(b"half a frame", u64::from(end))
        .unwrap();
    assert_eq!(found(&dir, &["verify"]).1, ["journal-torn"]);
    assert_eq!(found(&dir, &["verify", "--repair"]).0, 0);
    assert_eq!(found(&dir, &["verify", "--deep"]).0, 0);
    assert_eq!(
        fs::read(store.join(format!("journal/torn-00000001-{end}"))).unwrap(),
        b"half a frame"
    );

    // While mounted, the error names the command to use.
    story.mount().remount();
    let refused = story.mount().run(&["verify", "--repair"]);
    assert!(
        !refused.status.success()
            && String::from_utf8_lossy(&refused.stderr).contains("ckptfs verify"),
        "{refused:?}"
    );
}

/// Checks a truncated object, a missing one, an unreferenced one and a foreign file.
fn damaged_objects(dir: &Path, short: &Path, gone: &Path) {
    let store = dir.join(".ckptfs");
    let whole = fs::read(short).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(short)
        .unwrap()
        .set_len(whole.len() as u64 - 1)
        .unwrap();
    let away = dir.join("away");
    fs::rename(gone, &away).unwrap();
    let layer = short.parent().unwrap();
    fs::write(layer.join("123456789-0.c"), "unknown").unwrap();
    fs::write(layer.join("notes.txt"), "mine").unwrap();
    let (status, kinds, report) = found(dir, &["verify"]);
    assert_eq!(
        (status, kinds),
        (
            4,
            [
                "foreign-file",
                "object-missing",
                "object-size",
                "object-unneeded"
            ]
            .map(str::to_owned)
            .to_vec()
        ),
        "{report}"
    );
    repaired(dir, short);
    let aside: Vec<_> = fs::read_dir(store.join("aside"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .collect();
    assert_eq!(aside.len(), 2);
    assert!(
        aside
            .iter()
            .any(|entry| fs::read(entry.path()).unwrap() == whole[..whole.len() - 1]),
        "nothing is destroyed"
    );
    assert_eq!(
        fs::read_to_string(layer.join("notes.txt")).unwrap(),
        "mine",
        "foreign files are left alone"
    );
    fs::remove_file(layer.join("notes.txt")).unwrap();
    fs::rename(&away, gone).unwrap();
    fs::write(short, &whole).unwrap();
    assert_eq!(found(dir, &["verify"]).0, 0);
}

/// A repair handles two of the four findings; its dry run changes nothing.
fn repaired(dir: &Path, short: &Path) {
    let before = fs::metadata(short).unwrap().len();
    assert_eq!(
        found(dir, &["verify", "--repair", "--dry-run"]).2["repaired"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        fs::metadata(short).unwrap().len(),
        before,
        "a dry run does nothing"
    );
    let (status, _, report) = found(dir, &["verify", "--repair"]);
    assert_eq!(
        (status, report["repaired"].as_array().unwrap().len()),
        (4, 2),
        "lost content remains lost: {report}"
    );
}

/// Every remaining frame is intact and continues the chain; only the stored end position reveals
/// the loss.
///
/// Failed before: the store opened with a shorter history, whose views showed the present.
fn a_journal_that_lost_whole_frames_at_its_end_is_damaged(v: Variant) {
    let mut story = Story::tell(v, 3);
    let dir = story.rest();
    let (from, end) = {
        let (store, _) = ckptfs_store::Store::open(fs::File::open(&dir).unwrap(), false).unwrap();
        let frames: Vec<_> = store
            .journal
            .scan(store.journal.start(), None)
            .map(|entry| entry.unwrap().0)
            .collect();
        (
            frames[frames.len() - 2].offset,
            store.journal.position().offset,
        )
    };
    let journal = dir.join(".ckptfs/journal");
    let segment = fs::OpenOptions::new()
        .write(true)
        .open(journal.join("00000001"))
        .unwrap();
    segment
        .write_all_at(&vec![0; (end - from) as usize], u64::from(from))
        .unwrap();
    for entry in fs::read_dir(&journal).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("tail-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let (status, report) = check(&dir, &["verify"]);
    assert_eq!(
        (status, kinds(&report)),
        (4, vec!["journal-damaged".to_owned()]),
        "{report}"
    );
    let refused = Mount::try_start(&dir, &MountOpts::new(v.io));
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("journal"),
        "{refused:?}"
    );
}

fn what_was_found_to_be_changed_is_not_shown_any_more(v: Variant) {
    let rig = v.start();
    fs::write(rig.path().join("f"), "what it was").unwrap();
    fs::write(rig.path().join("g"), "another").unwrap();
    let id = rig.mount.checkpoint();
    fs::write(rig.path().join("f"), "what it is").unwrap();
    rig.mount.checkpoint();
    super::story::caught_up(&rig.mount);
    let (status, report) = check(rig.path(), &["verify", "--deep"]);
    assert_eq!(
        (status, &report["versions"], &report["unhashed"]),
        (0, &1.into(), &0.into()),
        "{report}"
    );
    // Damages the object behind the daemon's back.
    let objects = crate::common::command::sh(rig.path(), "cd .ckptfs/; find layers -name '*.c'");
    let store = OpenStore::of(rig.path());
    fs::OpenOptions::new()
        .write(true)
        .open(store.file(objects.trim()))
        .unwrap()
        .write_all_at(b"W", 0)
        .unwrap();
    let (status, report) = check(rig.path(), &["verify", "--deep"]);
    assert_eq!(
        (status, kinds(&report)),
        (4, vec!["object-changed".to_owned()])
    );
    let finding = &report["findings"][0];
    assert_eq!(
        (&finding["path"], &finding["checkpoints"]),
        (&"f".into(), &serde_json::json!([id]))
    );
    let read = fs::read(rig.view(id).join("f"));
    assert_eq!(
        read.expect_err("wrong bytes are not shown").raw_os_error(),
        Some(libc::EIO)
    );
    assert_eq!(
        fs::read_to_string(rig.view(id).join("g")).unwrap(),
        "another"
    );
    assert_eq!(
        fs::read_to_string(rig.path().join("f")).unwrap(),
        "what it is"
    );
}
