//! The order of writes to disk, one case for each rule. Each case also runs with the rule disabled
//! (`CKPTFS_UNSAFE_FOR_TESTS`, a hidden variable of debug builds) and must then show a wrong view
//! after the same power cut.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::disk::{ImageDisk, ImageHost};
use crate::common::command::sh;
use crate::common::tree::{Tree, TreeOpts, compare, tree};
use crate::common::{Fs, Mount, MountOpts, Variant, for_each_variant, skip};

/// Attempts to observe that sled's flush does not reach the disk.
const FLUSHES_MAX: usize = 10;
/// Attempts to observe the failure once the rule is disabled.
const TRIES_MAX: usize = 5;
const FILES: usize = 6;

/// Makes a synced checkpoint, applies `change` to the tree, cuts the power, and returns the
/// differences between the view and the expected tree.
fn differences_after(v: Variant, left_out: &str, change: impl Fn(&Path)) -> Vec<String> {
    differences_served(v, left_out, change, |_| String::new(), |_| String::new())
}

/// As [`differences_after`]. `found` runs on the backing directory after the cut, before it is
/// mounted; `served` runs on the mounted tree.
fn differences_served(
    v: Variant,
    left_out: &str,
    change: impl Fn(&Path),
    found: impl Fn(&Path) -> String,
    served: impl Fn(&Path) -> String,
) -> Vec<String> {
    differences_mounted(v, left_out, 1, |mount| change(mount.path()), found, served)
}

/// As [`differences_served`]. `change` may also end the daemon, remount, or make more checkpoints
/// of the same tree. The view of checkpoint `id` is compared.
fn differences_mounted(
    v: Variant,
    left_out: &str,
    id: u64,
    change: impl Fn(&mut Mount),
    found: impl Fn(&Path) -> String,
    served: impl Fn(&Path) -> String,
) -> Vec<String> {
    let host = ImageHost::new();
    let image = host.format(v.fs, "disk.img");
    let cut = host.file("cut.img");
    let expected: Tree = {
        let disk = host.mount(v.fs, &image);
        let dir = disk.path().join("project");
        fs::create_dir_all(dir.join("d")).unwrap();
        fs::create_dir(dir.join("other")).unwrap();
        (0..FILES).for_each(|number| {
            fs::write(dir.join(format!("d/f{number}")), vec![b'o'; 65_536]).unwrap()
        });
        fs::write(dir.join("other/synced"), "").unwrap();
        let mut opts = MountOpts::new(v.io);
        opts.env
            .push(("CKPTFS_UNSAFE_FOR_TESTS".into(), left_out.into()));
        let mut mount = Mount::start(&dir, &opts);
        mount.ok(&["checkpoint", "--sync"]);
        let expected = tree(mount.path());
        change(&mut mount);
        disk.freeze(&cut);
        expected
    };
    let disk = host.mount(v.fs, &cut);
    found(&disk.path().join("project"));
    let mount = Mount::start(&disk.path().join("project"), &MountOpts::new(v.io));
    served(mount.path());
    // A view that cannot be read breaks the promise but is not silently wrong: the error is
    // reported as a difference.
    let found = crate::common::tree::try_tree_without(&mount.view(id), &[]);
    found.map_or_else(
        |problem| vec![problem],
        |found| compare(&found, &expected, &TreeOpts::default()),
    )
}

#[track_caller]
fn holds_and_fails_without(v: Variant, left_out: &str, change: impl Fn(&Path)) {
    holds_and_fails_mounted(v, left_out, 1, |mount| change(mount.path()));
}

/// As [`holds_and_fails_without`], with `id` and `change` as in [`differences_mounted`].
#[track_caller]
fn holds_and_fails_mounted(v: Variant, left_out: &str, id: u64, change: impl Fn(&mut Mount)) {
    let nothing = |_: &Path| String::new();
    let differences_after =
        |v, left_out, change| differences_mounted(v, left_out, id, change, nothing, nothing);
    assert_eq!(
        differences_after(v, "", &change),
        Vec::<String>::new(),
        "{v:?}"
    );
    if !cfg!(debug_assertions) {
        return skip("only a debug build can leave a step out");
    }
    // The journal is synced once a second in any case, which may hide the failure: hence several
    // attempts.
    let wrong = (0..TRIES_MAX)
        .map(|_| differences_after(v, left_out, &change))
        .find(|wrong| !wrong.is_empty())
        .unwrap_or_default();
    assert!(
        !wrong.is_empty(),
        "{v:?}: without {left_out} the checkpoints are still correct: this test shows nothing"
    );
    println!("{v:?} without {left_out}: {wrong:?}");
}

/// An fsync forces the XFS log, with all earlier changes of names and attributes. Their records are
/// on disk with them.
fn no_change_is_on_disk_without_its_record(v: Variant) {
    holds_and_fails_without(v, "tail", |root| {
        sh(
            root,
            "chmod 600 d/f0; mv d/f1 d/g1; rm d/f2; mv d/f3 d/f4; setfattr -n user.x -v y d/f5; mkdir d/new",
        );
        let file = OpenOptions::new()
            .write(true)
            .open(root.join("other/synced"))
            .unwrap();
        file.write_all_at(b"synced", 0).unwrap();
        file.sync_all().unwrap();
    });
}

/// An fsync on btrfs writes one file through the tree log. Its captures and the record of its name
/// are on disk before.
fn no_synced_file_is_on_disk_without_its_past(v: Variant) {
    holds_and_fails_without(v, "overtaken", |root| {
        let open = |name: &str| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(root.join("d").join(name))
                .unwrap()
        };
        let in_place = open("f0");
        in_place.write_all_at(&[b'n'; 65_536], 0).unwrap();
        in_place.sync_all().unwrap();
        fs::write(root.join("d/f1.new"), "replaced").unwrap();
        File::open(root.join("d/f1.new"))
            .unwrap()
            .sync_all()
            .unwrap();
        fs::rename(root.join("d/f1.new"), root.join("d/f1")).unwrap();
        File::open(root.join("d")).unwrap().sync_all().unwrap();
        fs::remove_file(root.join("d/f2")).unwrap();
        File::open(root.join("d")).unwrap().sync_all().unwrap();
        let mut at_once = OpenOptions::new()
            .append(true)
            .custom_flags(libc::O_DSYNC)
            .open(root.join("d/f3"))
            .unwrap();
        at_once.write_all(b"more").unwrap();
        super::ops::CrashOp::Store {
            path: "d/f4".into(),
            fill: b'm',
        }
        .carry_out(root)
        .unwrap();
        // Last: any operation after it would sync the journal.
        let mut new = OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_SYNC)
            .open(root.join("d/new"))
            .unwrap();
        new.write_all(b"new").unwrap();
    });
}

/// Once a file is in the btrfs tree log, changes of its names are logged at once, and the next
/// fsync by any process, even outside the mount, writes them to disk. The record is on disk before.
fn no_synced_file_is_renamed_on_disk_without_its_record(v: Variant) {
    holds_and_fails_without(v, "logged", |root| {
        for number in 0..4 {
            let file = OpenOptions::new()
                .write(true)
                .open(root.join(format!("d/f{number}")))
                .unwrap();
            file.write_all_at(b"new", 0).unwrap();
            file.sync_all().unwrap();
        }
        change_names_and_sync_another(root);
    });
}

/// Changes the names of files, then syncs a file outside the mount.
fn change_names_and_sync_another(root: &Path) {
    fs::rename(root.join("d/f0"), root.join("d/g0")).unwrap();
    fs::hard_link(root.join("d/f1"), root.join("d/g1")).unwrap();
    fs::rename(root.join("d/f2"), root.join("d/f5")).unwrap();
    fs::remove_file(root.join("d/f3")).unwrap();
    let mut another = File::create(root.parent().unwrap().join("not-ours")).unwrap();
    another.write_all(b"synced").unwrap();
    another.sync_all().unwrap();
}

/// A process syncs through a mapping or O_SYNC without a request to the daemon, also after the
/// daemon has committed the filesystem. The record of a later name change is on disk first.
fn no_file_synced_unseen_is_renamed_on_disk_without_its_record(v: Variant) {
    holds_and_fails_mounted(v, "logged", 2, |mount| {
        let root = mount.path();
        let open = |number, flags| open_to_map(root, number, flags);
        let mapped = [open(0, 0), open(1, 0), open(2, 0)];
        let at_once = open(3, libc::O_SYNC);
        mount.ok(&["checkpoint", "--sync"]);
        mapped
            .iter()
            .for_each(|file| super::ops::store(file, b'm').unwrap());
        at_once.write_all_at(b"new", 0).unwrap();
        drop((mapped, at_once));
        change_names_and_sync_another(root);
    });
}

/// The same for extended attributes of such a file.
fn no_file_synced_unseen_has_attributes_on_disk_without_their_record(v: Variant) {
    holds_and_fails_mounted(v, "logged", 2, |mount| {
        let root = mount.path();
        let mapped = open_to_map(root, 0, 0);
        mount.ok(&["checkpoint", "--sync"]);
        sh(root, "setfattr -n user.k -v new d/f0");
        super::ops::store(&mapped, b'm').unwrap();
    });
}

fn open_to_map(root: &Path, number: usize, flags: i32) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(root.join(format!("d/f{number}")))
        .unwrap()
}

/// An fsync of a btrfs directory logs the removal of a name, but not the inode's new name
/// elsewhere: without the rule a file that was linked and then unlinked is lost.
fn no_linked_file_is_lost_with_its_first_name(v: Variant) {
    holds_and_fails_without(v, "links", |root| {
        fs::hard_link(root.join("d/f0"), root.join("other/g0")).unwrap();
        fs::remove_file(root.join("d/f0")).unwrap();
        fs::hard_link(root.join("d/f1"), root.join("other/g1")).unwrap();
        fs::rename(root.join("d/f2"), root.join("d/f1")).unwrap();
        fs::remove_file(root.join("other/g1")).unwrap();
        File::open(root.join("d")).unwrap().sync_all().unwrap();
    });
}

/// Changes files in several ways after the synced checkpoint, without a sync.
fn change_in_several_ways(root: &Path) {
    let open = |name: &str| {
        OpenOptions::new()
            .write(true)
            .open(root.join(name))
            .unwrap()
    };
    open("d/f0").write_all_at(b"new", 0).unwrap();
    open("d/f1").set_len(7).unwrap();
    fs::remove_file(root.join("d/f2")).unwrap();
    fs::rename(root.join("d/f3"), root.join("d/f4")).unwrap();
    fs::write(root.join("d/new"), "new").unwrap();
    fs::rename(root.join("d/new"), root.join("d/f5")).unwrap();
}

/// A successor has no list of the captures that are not yet on disk: all of them are written before
/// the first fsync of a file.
fn a_takeover_forgets_no_capture(v: Variant) {
    holds_and_fails_mounted(v, "predecessor", 1, |mount| {
        change_in_several_ways(mount.path());
        mount.replace_worker();
        File::open(mount.path().join("d/f0"))
            .unwrap()
            .sync_all()
            .unwrap();
    });
}

/// Longer than the interval of the journal's syncer (1 s), which runs ahead of the tree.
const JOURNAL_SYNCED: Duration = Duration::from_millis(2500);

/// Operations that are in the journal but not on disk are undone: an inode that was linked, renamed
/// through the link and renamed again is found at its old place.
fn renames_that_did_not_reach_the_disk_are_taken_back(v: Variant) {
    let wrong = differences_after(v, "", |root| {
        fs::rename(root.join("d/f0"), root.join("d/g0")).unwrap();
        sh(root.parent().unwrap(), "sync -f .");
        fs::hard_link(root.join("d/g0"), root.join("d/link")).unwrap();
        fs::create_dir(root.join("d/new")).unwrap();
        fs::rename(root.join("d/f1"), root.join("d/new/f1")).unwrap();
        ckptfs(root, "checkpoint");
        fs::rename(root.join("d/link"), root.join("other/link")).unwrap();
        // The record contains the directory's current attributes, which are newer than any on disk.
        fs::rename(root.join("d/f2"), root.join("d/g2")).unwrap();
        fs::rename(root.join("d/new"), root.join("other/new")).unwrap();
        fs::rename(root.join("other/new/f1"), root.join("d/f1")).unwrap();
        thread::sleep(JOURNAL_SYNCED);
    });
    assert_eq!(wrong, Vec::<String>::new());
}

fn ckptfs(root: &Path, verb: &str) {
    crate::common::succeeds(
        crate::common::tool(env!("CARGO_BIN_EXE_ckptfs"), &[verb]).current_dir(root),
        60,
    );
}

/// The record of a move is on disk, the move is not, and the next checkpoint is in the journal, or
/// in journal and index. The file is found at its old place.
#[cfg(debug_assertions)]
fn a_move_that_did_not_reach_the_disk_is_taken_back(v: Variant) {
    move_is_taken_back(v, 1, |_| String::new());
    // A rebuilt index contains the whole journal.
    for nth in [1, 2] {
        move_is_taken_back(v, nth, |root| sh(root, "rm -r .ckptfs/index"));
    }
}

/// `nth` selects the rename(2) to delay, of those for a rename over a file: the exchange, or the
/// move into the layer.
#[cfg(debug_assertions)]
fn move_is_taken_back(v: Variant, nth: u64, found: impl Fn(&Path) -> String) {
    use ckptfs_api::Client;
    use ckptfs_api::Fault;
    use ckptfs_sys::{Errno, fault};
    let change = |root: &Path| {
        let client = || Client::connect(File::open(root.join(".ckptfs")).unwrap()).unwrap();
        let pause = fault::FaultPlan {
            errno: 0,
            pause_ms: 1000,
            ..fault::FaultPlan::nth(nth, Errno::EIO).only(fault::CallKind::Rename)
        };
        fs::rename(root.join("d/f0"), root.join("d/g0")).unwrap();
        sh(root.parent().unwrap(), "sync -f .");
        client().ask(Fault { plan: Some(pause) }).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| fs::rename(root.join("d/g0"), root.join("d/f1")).unwrap());
            thread::sleep(Duration::from_millis(500));
            sh(root.parent().unwrap(), "sync -f .");
        });
        assert_eq!(
            client().ask(Fault { plan: None }).unwrap().1,
            1,
            "no call was delayed"
        );
        ckptfs(root, "checkpoint");
        thread::sleep(JOURNAL_SYNCED);
    };
    let wrong = differences_served(v, "", change, found, |_| String::new());
    assert_eq!(wrong, Vec::<String>::new());
}

/// The btrfs tree log was observed to write changes to disk that the tree does not have: clones as
/// empty files, and a moved inode without the changes made before the move. Live files and views
/// are right nevertheless.
fn what_the_log_brings_of_layers_is_not_believed(v: Variant) {
    let change = |root: &Path| {
        let append = |name: &str| {
            OpenOptions::new()
                .append(true)
                .open(root.join(name))
                .and_then(|mut file| file.write_all(b"more"))
        };
        ["d/f0", "d/f1", "d/f2"]
            .iter()
            .for_each(|name| append(name).unwrap());
        ckptfs(root, "checkpoint");
        fs::remove_file(root.join("d/f0")).unwrap();
        ["d/f2", "d/f3"]
            .iter()
            .for_each(|name| append(name).unwrap());
        // Reaches the disk, together with the layers.
        fs::write(root.join("other/new"), "").unwrap();
        File::open(root.join("other/new"))
            .unwrap()
            .sync_all()
            .unwrap();
        File::open(root.join("other")).unwrap().sync_all().unwrap();
    };
    let brings = "cd .ckptfs/layers; truncate -s 0 */objects/*.c; rm 2/objects/$(stat -c %i ../../d/f0)-*.c; mv ../../d/f0 3/objects/$(stat -c %i ../../d/f0)-0.m";
    let wrong = differences_served(v, "", change, |root| sh(root, brings), |_| String::new());
    assert_eq!(wrong, Vec::<String>::new());
}

/// The btrfs tree log can restore an old name of an inode that also has a name in a layer. A write
/// through that name does not change the past.
fn a_name_that_came_back_does_not_share_its_inode_with_the_past(v: Variant) {
    let came_back = |change: &str, comes_back: &str| {
        let change = |root: &Path| {
            sh(root.parent().unwrap(), "sync -f .");
            sh(root, change);
            thread::sleep(JOURNAL_SYNCED);
            sh(root.parent().unwrap(), "sync -f .");
            fs::rename(root.join("other/synced"), root.join("other/renamed")).unwrap();
            thread::sleep(JOURNAL_SYNCED);
        };
        let comes_back = format!(
            "f=$(echo .ckptfs/layers/*/objects/*.m); {comes_back}; test $(stat -c %h $f) = 2"
        );
        let found = |root: &Path| sh(root, &comes_back);
        let served = |root: &Path| sh(root, "echo other > d/f0; chmod 600 d/f0");
        differences_served(v, "", change, found, served)
    };
    let cases = [
        // Unlinked.
        ("rm d/f0", "ln $f d/f0"),
        // Replaced by a rename: the old name returns at the target or at the source.
        ("mv d/f1 d/f0", "mv d/f0 d/f1; ln $f d/f0"),
        ("mv d/f1 d/f0", "ln $f d/f1"),
    ];
    thread::scope(|scope| {
        let running = cases.map(|(change, name)| scope.spawn(move || came_back(change, name)));
        for case in running {
            assert_eq!(case.join().unwrap(), Vec::<String>::new());
        }
    });
}

for_each_variant! { xfs => no_change_is_on_disk_without_its_record }

mod btrfs {
    super::for_each_variant! { @test no_synced_file_is_on_disk_without_its_past passthrough Btrfs Passthrough }
    super::for_each_variant! { @test no_synced_file_is_on_disk_without_its_past daemon Btrfs Daemon }
    super::for_each_variant! { @test no_synced_file_is_renamed_on_disk_without_its_record renamed_passthrough Btrfs Passthrough }
    super::for_each_variant! { @test no_synced_file_is_renamed_on_disk_without_its_record renamed_daemon Btrfs Daemon }
    super::for_each_variant! { @test no_file_synced_unseen_is_renamed_on_disk_without_its_record unseen Btrfs Passthrough }
    super::for_each_variant! { @test no_file_synced_unseen_has_attributes_on_disk_without_their_record unseen_attributes Btrfs Passthrough }
    super::for_each_variant! { @test no_linked_file_is_lost_with_its_first_name linked_passthrough Btrfs Passthrough }
    super::for_each_variant! { @test no_linked_file_is_lost_with_its_first_name linked_daemon Btrfs Daemon }
    super::for_each_variant! { @test a_takeover_forgets_no_capture takeover_passthrough Btrfs Passthrough }
    super::for_each_variant! { @test a_takeover_forgets_no_capture takeover_daemon Btrfs Daemon }
    super::for_each_variant! { @test renames_that_did_not_reach_the_disk_are_taken_back taken_back Btrfs Passthrough }
    super::for_each_variant! { @test what_the_log_brings_of_layers_is_not_believed brought Btrfs Daemon }
    super::for_each_variant! { @test a_name_that_came_back_does_not_share_its_inode_with_the_past came_back Btrfs Passthrough }
    #[cfg(debug_assertions)]
    super::for_each_variant! { @test a_move_that_did_not_reach_the_disk_is_taken_back half_done Btrfs Passthrough }
    super::for_each_variant! { @test what_the_filesystem_alone_loses plain Btrfs Daemon }
}

/// Reasons for the design, shown on btrfs without ckptfs: link and unlink in place of a rename lose
/// both names, and sled's flush does not reach the disk.
fn what_the_filesystem_alone_loses(v: Variant) {
    let host = ImageHost::new();
    let image = host.format(v.fs, "disk.img");
    let cuts = ["linked.img", "moved.img"].map(|name| host.file(name));
    {
        let disk = host.mount(Fs::Btrfs, &image);
        let root = disk.path();
        sh(
            root,
            "mkdir live kept; for f in linked moved; do echo old > live/$f; done; sync -f .",
        );
        sh(root, "ln live/linked kept/linked; rm live/linked");
        File::open(root.join("live")).unwrap().sync_all().unwrap();
        disk.freeze(&cuts[0]);
        sh(root, "sync -f .; mv live/moved kept/moved");
        File::open(root.join("live")).unwrap().sync_all().unwrap();
        disk.freeze(&cuts[1]);
    }
    let there = |disk: &ImageDisk, name: &str| {
        ["live", "kept"]
            .iter()
            .any(|dir| disk.path().join(dir).join(name).exists())
    };
    let disk = host.mount(Fs::Btrfs, &cuts[1]);
    assert!(there(&disk, "moved"), "a rename keeps the file");
    drop(disk);
    let disk = host.mount(Fs::Btrfs, &cuts[0]);
    assert!(
        !there(&disk, "linked"),
        "btrfs now preserves both: link and unlink would suffice"
    );
    drop(disk);
    assert!(
        (0..FLUSHES_MAX).any(|number| loses_a_flush(&host, number)),
        "the flush of sled reaches the disk: the index could be trusted after a power cut"
    );
}

/// Reports whether data that sled flushed is lost in a power cut. Sometimes the kernel has written
/// it back already.
fn loses_a_flush(host: &ImageHost, number: usize) -> bool {
    let (image, cut) = (
        host.format(Fs::Btrfs, &format!("sled-{number}.img")),
        host.file(&format!("sled-cut-{number}.img")),
    );
    {
        let disk = host.mount(Fs::Btrfs, &image);
        let index = sled::open(disk.path().join("index")).unwrap();
        index.insert("key", "value").unwrap();
        index.flush().unwrap();
        disk.freeze(&cut);
    }
    let disk = host.mount(Fs::Btrfs, &cut);
    let found = std::panic::catch_unwind(|| {
        sled::open(disk.path().join("index")).and_then(|index| index.get("key"))
    });
    !matches!(found, Ok(Ok(Some(value))) if value == "value")
}
