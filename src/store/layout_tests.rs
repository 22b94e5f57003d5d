//! Creating and opening a store, and rejecting anything else.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::*;

fn open(dir: &Path, create: bool) -> StoreResult<Layout> {
    Layout::open(File::open(dir).unwrap(), create)
}

fn look(dir: &Path) -> StoreResult<Layout> {
    Layout::open_existing_readonly(File::open(dir).unwrap())
}

fn made() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path(), true).unwrap();
    dir
}

#[test]
fn a_store_is_made_once_and_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(open(dir.path(), false), Err(StoreError::NoStore)));
    assert!(matches!(look(dir.path()), Err(StoreError::NoStore)));
    assert!(
        fs::read_dir(dir.path()).unwrap().next().is_none(),
        "looking makes nothing"
    );
    let first = open(dir.path(), true).unwrap();
    assert!(first.created());
    let id = first.id();
    drop(first);
    let store = dir.path().join(".ckptfs");
    assert_eq!(
        fs::metadata(&store).unwrap().permissions().mode() & 0o7777,
        0o700
    );
    assert_eq!(
        fs::read_to_string(store.join("format")).unwrap(),
        format!("ckptfs store\nversion 1\nfeatures -\nid {id}\n")
    );
    for create in [false, true] {
        let again = open(dir.path(), create).unwrap();
        assert!(!again.created() && again.id() == id);
    }
    assert_ne!(open(made().path(), false).unwrap().id(), id);
}

#[test]
fn one_process_writes_and_others_may_look() {
    let dir = made();
    let held = open(dir.path(), false).unwrap();
    let error = open(dir.path(), false).unwrap_err();
    assert!(matches!(error, StoreError::Locked));
    assert_eq!(error.errno(), ckptfs_sys::Errno::EBUSY);
    let view = look(dir.path()).unwrap();
    assert!(view.read_only() && view.tmp_dir().is_err() && view.id() == held.id());
    drop(held);
    open(dir.path(), false).unwrap();
}

#[test]
fn what_is_not_a_store_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join(".ckptfs");
    fs::create_dir(&store).unwrap();
    fs::write(store.join("mine"), "precious").unwrap();
    assert!(matches!(open(dir.path(), true), Err(StoreError::NotAStore)));
    assert_eq!(
        fs::read_dir(&store).unwrap().count(),
        1,
        "not so much as a lock file"
    );
    fs::remove_file(store.join("mine")).unwrap();
    for text in [
        "",
        "ckptfs store",
        "something else\nversion 1\n",
        "ckptfs store\nversion 0\nfeatures -\nid 0\n",
        "\u{fffd}",
    ] {
        fs::write(store.join("format"), text).unwrap();
        assert!(
            matches!(open(dir.path(), true), Err(StoreError::NotAStore)),
            "{text:?}"
        );
    }
    fs::write(store.join("format"), vec![b'a'; 5000]).unwrap();
    assert!(matches!(open(dir.path(), true), Err(StoreError::NotAStore)));
}

#[test]
fn a_newer_format_is_named_and_an_unknown_feature_too() {
    let dir = made();
    let format = dir.path().join(".ckptfs/format");
    let text = fs::read_to_string(&format).unwrap();
    fs::write(&format, "ckptfs store\nversion 2\nwhatever comes then\n").unwrap();
    assert!(matches!(
        open(dir.path(), false),
        Err(StoreError::NewerFormat {
            found: 2,
            supported: 1
        })
    ));
    fs::write(&format, text.replace("features -", "features tea coffee")).unwrap();
    assert!(
        matches!(open(dir.path(), false), Err(StoreError::UnknownFeature { feature }) if feature == "tea")
    );
    fs::write(&format, text.replace("id ", "id +")).unwrap();
    assert!(matches!(
        open(dir.path(), false),
        Err(StoreError::NotAStore)
    ));
}

/// A store that needs the feature `tree` and lacks it. Returns the file `format` without it and
/// with it.
fn without_a_feature(dir: &tempfile::TempDir) -> (String, String) {
    fs::create_dir(dir.path().join(".ckptfs").join(TREE_NAME)).unwrap();
    let without = fs::read_to_string(dir.path().join(".ckptfs/format")).unwrap();
    let with = without.replace("\nfeatures -\n", "\nfeatures tree\n");
    assert_ne!(without, with);
    (without, with)
}

#[test]
fn a_store_gets_the_features_that_it_needs_once_it_is_written_to() {
    let dir = made();
    let format = dir.path().join(".ckptfs/format");
    let (without, with) = without_a_feature(&dir);
    look(dir.path()).unwrap();
    drop(Layout::open_to_check(File::open(dir.path()).unwrap()).unwrap());
    assert_eq!(fs::read_to_string(&format).unwrap(), without);
    open(dir.path(), false).unwrap();
    assert_eq!(fs::read_to_string(&format).unwrap(), with);
    fs::write(&format, with.replace("features tree", "features tea")).unwrap();
    assert!(
        matches!(open(dir.path(), false), Err(StoreError::UnknownFeature { feature }) if feature == "tea")
    );
}

/// An interruption after any call leaves the file without the feature or with it.
#[test]
#[cfg(debug_assertions)]
fn adding_features_that_is_cut_short_goes_on() {
    use ckptfs_sys::fault::{FaultPlan, arm_thread, disarm_thread};
    let dir = made();
    let format = dir.path().join(".ckptfs/format");
    let (old, text) = without_a_feature(&dir);
    let mut seen = [0, 0];
    for nth in 1.. {
        fs::write(&format, &old).unwrap();
        arm_thread(FaultPlan::nth(nth, ckptfs_sys::Errno::EIO).lasting().half());
        let opened = open(dir.path(), false).map(drop);
        let failed = disarm_thread().failed;
        let left = fs::read_to_string(&format).unwrap();
        assert!(left == old || left == text, "{left}");
        seen[usize::from(left == text)] += 1;
        open(dir.path(), false).unwrap();
        assert_eq!(fs::read_to_string(&format).unwrap(), text);
        if failed == 0 {
            opened.unwrap();
            break;
        }
    }
    assert!(seen[0] > 2 && seen[1] > 1, "{seen:?}");
}

#[test]
fn who_checks_a_store_holds_its_lock_and_writes_nothing() {
    let dir = made();
    let held = Layout::open_to_check(File::open(dir.path()).unwrap()).unwrap();
    assert!(held.read_only() && held.tmp_dir().is_err());
    assert!(matches!(open(dir.path(), false), Err(StoreError::Locked)));
    drop(held);
    open(dir.path(), false).unwrap();
}

#[test]
fn a_making_that_was_cut_short_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join(".ckptfs");
    for names in [&[][..], &["journal"], &["journal", "layers", "tmp"]] {
        fs::create_dir(&store).unwrap();
        names
            .iter()
            .for_each(|name| fs::create_dir(store.join(name)).unwrap());
        fs::write(store.join("lock"), "1\n").unwrap();
        fs::write(store.join("format.new"), "ckptfs st").unwrap();
        assert!(matches!(open(dir.path(), false), Err(StoreError::NoStore)));
        assert!(open(dir.path(), true).unwrap().created());
        fs::remove_dir_all(&store).unwrap();
    }
    fs::create_dir_all(store.join("journal")).unwrap();
    fs::write(store.join("journal/00000001"), "history").unwrap();
    assert!(
        matches!(open(dir.path(), true), Err(StoreError::NotAStore)),
        "a store that lost its format is not begun anew over its history"
    );
}

#[test]
fn links_and_files_in_the_place_of_directories_are_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), made());
    symlink(other.path().join(".ckptfs"), dir.path().join(".ckptfs")).unwrap();
    let refused = |result: StoreResult<Layout>| {
        matches!(
            result,
            Err(StoreError::Untrusted {
                why: UntrustedReason::NotADirectory,
                ..
            })
        )
    };
    assert!(refused(open(dir.path(), true)));
    assert!(refused(look(dir.path())));
    fs::remove_file(dir.path().join(".ckptfs")).unwrap();
    fs::write(dir.path().join(".ckptfs"), "").unwrap();
    assert!(refused(open(dir.path(), true)));

    let layers = other.path().join(".ckptfs/layers");
    fs::remove_dir(&layers).unwrap();
    symlink(dir.path(), &layers).unwrap();
    assert!(refused(open(other.path(), false)));
}

#[test]
fn another_owner_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = made();
    std::os::unix::fs::chown(dir.path().join(".ckptfs"), Some(12_345), None).unwrap();
    assert!(matches!(
        open(dir.path(), true),
        Err(StoreError::Untrusted {
            why: UntrustedReason::OtherOwner,
            ..
        })
    ));
}

#[test]
fn tmp_is_emptied_and_the_mode_is_mended() {
    let dir = made();
    let store = dir.path().join(".ckptfs");
    fs::create_dir_all(store.join("tmp/a/b")).unwrap();
    fs::write(store.join("tmp/a/b/c"), "").unwrap();
    symlink(dir.path(), store.join("tmp/out")).unwrap();
    fs::create_dir_all(store.join("tmp/restore/17")).unwrap();
    fs::set_permissions(&store, fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_dir(store.join("journal")).unwrap();
    open(dir.path(), false).unwrap();
    assert_eq!(fs::read_dir(store.join("tmp")).unwrap().count(), 1);
    assert!(
        store.join("tmp/restore/17").exists(),
        "what a killed restore holds is part of the live tree"
    );
    assert_eq!(
        fs::metadata(&store).unwrap().permissions().mode() & 0o7777,
        0o700
    );
    assert!(store.join("journal").is_dir());
    assert!(dir.path().exists(), "a link was removed and not followed");
}

/// The syncer and `checkpoint --sync` run concurrently, and the first to begin may end last. Its
/// note replaced the later one, and after a power cut a synced checkpoint was reported as
/// incomplete.
#[test]
fn a_sync_that_ends_late_takes_no_later_note_back() {
    let dir = made();
    let layout = open(dir.path(), false).unwrap();
    layout.note_synced(20).unwrap();
    layout.note_synced(10).unwrap();
    drop(layout);
    assert_eq!(open(dir.path(), false).unwrap().synced_ns(), Some(20));
}
