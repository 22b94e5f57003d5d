//! A file that stays open for writing and is left alone: a checkpoint carries what the one before
//! captured of it. That capture stays whatever is freed in between, although no checkpoint may
//! read it for a while.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::command::sh;
use crate::common::mount::wait_until;
use crate::common::{Io, MountOpts, Rig, Variant, for_each_variant};

for_each_variant! { two =>
    the_newest_checkpoint_is_deleted,
    the_newest_checkpoint_is_deleted_and_the_file_can_be_mapped,
    a_deleted_checkpoint_is_freed_by_gc,
    a_guard_is_deleted,
    marks_are_taken_back,
}

const OLD: &[u8] = &[b'o'; 60_000];

/// A mount with a file that is held open.
struct Held {
    // Dropped first: an open file keeps the mount busy.
    file: File,
    rig: Rig,
}

impl Held {
    /// Checkpoint 1 is made, then the file is opened. `read`: it can be mapped, too.
    fn start(v: Variant, opts: MountOpts, read: bool) -> Held {
        let rig = v.start_with(opts, |dir| {
            fs::write(dir.join("held"), OLD).unwrap();
            fs::write(dir.join("other"), "x").unwrap();
            (0..4).for_each(|number| fs::write(dir.join(format!("old{number}")), "x").unwrap());
        });
        assert_eq!(rig.mount.checkpoint(), 1);
        let file = OpenOptions::new()
            .write(true)
            .read(read)
            .open(rig.path().join("held"))
            .unwrap();
        Held { file, rig }
    }

    fn ok(&self, arguments: &[&str]) -> String {
        self.rig.mount.ok(arguments)
    }

    /// The next checkpoint shows the file as it is, at once and after the next write. Returns its
    /// number.
    #[track_caller]
    fn is_kept(self) -> u64 {
        let now = fs::read(self.rig.path().join("held")).unwrap();
        let id = self.rig.mount.checkpoint();
        let view = self.rig.view(id).join("held");
        assert_eq!(fs::read(&view).expect("the view"), now);
        self.file.write_all_at(b"later", 0).unwrap();
        assert_eq!(fs::read(&view).expect("the view, later"), now);
        self.ok(&["verify"]);
        id
    }
}

fn the_newest_checkpoint_is_deleted(v: Variant) {
    let held = Held::start(v, MountOpts::new(v.io), false);
    held.ok(&["delete", "1", "-y", "--now"]);
    held.is_kept();
}

/// A file that may be mapped is carried only if its ctime was two seconds old when it was captured.
fn the_newest_checkpoint_is_deleted_and_the_file_can_be_mapped(v: Variant) {
    let held = Held::start(v, MountOpts::new(v.io), true);
    let changed = held.file.metadata().unwrap().ctime();
    let is_old = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.as_secs().cast_signed() > changed + 3
    };
    wait_until("the file's ctime is old", 60, is_old);
    held.rig.mount.checkpoint();
    held.ok(&["delete", "2", "-y", "--now"]);
    held.is_kept();
}

fn a_deleted_checkpoint_is_freed_by_gc(v: Variant) {
    let held = Held::start(v, MountOpts::new(v.io), false);
    held.ok(&["delete", "1"]);
    held.ok(&["gc", "-y"]);
    held.is_kept();
}

fn a_guard_is_deleted(v: Variant) {
    let held = Held::start(v, MountOpts::new(v.io), false);
    fs::write(held.rig.path().join("other"), "changed").unwrap();
    held.file.write_all_at(b"before", 0).unwrap();
    held.ok(&["restore", "1", "other"]);
    held.ok(&["delete", "2", "-y", "--now"]);
    held.is_kept();
}

/// Nothing is deleted by hand: a process removes one file, so that a mark is made and taken back.
/// What one mark leaves behind goes with the next.
fn marks_are_taken_back(v: Variant) {
    let opts = MountOpts::new(v.io).arg("--tripwire=25/100ms");
    let held = Held::start(v, opts, false);
    let clones = "find .ckptfs/layers -name '*.c' | wc -l";
    for number in 0..4 {
        held.file.write_all_at(&[b'0' + number], 7).unwrap();
        // In a process of its own: each is quiet before.
        sh(held.rig.path(), &format!("rm old{number}"));
        wait_until("the mark is taken back", 60, || {
            held.rig.mount.log_json().as_array().unwrap().len() == 1
        });
    }
    if v.io == Io::Passthrough {
        assert_eq!(
            sh(held.rig.path(), clones).trim(),
            "2",
            "captures of one file"
        );
    }
    assert!(held.is_kept() > 2, "no mark was made");
}
