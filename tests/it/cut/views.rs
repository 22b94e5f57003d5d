//! Views that are read while the live files are changed, renamed and removed.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::fs::Advice;

use crate::common::wait::wait_until;
use crate::common::{Rig, Variant, for_each_variant};
use crate::cut::map::SharedMapping;

/// Bytes of the file.
const LEN: usize = 1 << 20;
/// How many times the live file is overwritten under each checkpoint.
const ROUNDS: u64 = 12;

/// Returns content with one number everywhere.
fn filled(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(LEN / 8)
}

/// Reads a file of a view in several ways until `stop` is set, and asserts that it contains `value`
/// everywhere.
fn keep_reading(path: &Path, value: u64, stop: &AtomicBool, reads: &AtomicU64) {
    let file = File::open(path).unwrap();
    let map = SharedMapping::read_only(File::open(path).unwrap(), LEN);
    let mut buffer = vec![0; LEN];
    while !stop.load(Ordering::SeqCst) {
        file.read_exact_at(&mut buffer, 0).unwrap();
        assert!(buffer == filled(value), "the view of {value}, read");
        assert!(
            (0..LEN).step_by(512).all(|at| map.load(at) == value),
            "the view of {value}, mapped"
        );
        assert!(
            fs::read(path).unwrap() == filled(value),
            "the view of {value}, opened again"
        );
        // The next round reads the pages again.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        reads.fetch_add(1, Ordering::SeqCst);
    }
}

/// Overwrites the live file with `value`, in one of several ways.
fn overwrite(path: &Path, value: u64, way: u64) {
    let writable = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
    };
    match way % 5 {
        0 => writable().write_all_at(&filled(value), 0).unwrap(),
        1 => {
            let map = SharedMapping::new(writable(), LEN);
            (0..LEN).step_by(8).for_each(|at| map.store(at, value));
        }
        2 => fs::write(path, filled(value)).unwrap(),
        3 => {
            fs::write(path.with_extension("new"), filled(value)).unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        }
        _ => {
            fs::remove_file(path).unwrap();
            fs::write(path, filled(value)).unwrap();
        }
    }
}

fn no_byte_changes(v: Variant) {
    let rig = v.start();
    let path = rig.path().join("f");
    for first_way in 0..5 {
        fs::write(&path, filled(first_way)).unwrap();
        let id = rig.mount.checkpoint();
        let view = rig.view(id).join("f");
        let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let reader = scope.spawn(|| keep_reading(&view, first_way, &stop, &reads));
            for round in 0..ROUNDS {
                let seen = reads.load(Ordering::SeqCst);
                wait_until("the view is read", || {
                    reads.load(Ordering::SeqCst) > seen || reader.is_finished()
                });
                overwrite(&path, 1000 + round, first_way + round);
            }
            stop.store(true, Ordering::SeqCst);
        });
        assert!(fs::read(&path).unwrap() == filled(1000 + ROUNDS - 1));
        assert!(fs::read(&view).unwrap() == filled(first_way));
    }
}

/// The record that a version is in the layer precedes the move of the file. Failed before: a view
/// read in between returned EIO, as SQLite's journal, deleted at each commit, showed.
fn files_that_are_removed_while_their_view_is_read(v: Variant) {
    const FILES: usize = 400;
    let rig = v.start();
    let text = |number: usize| format!("this is file {number}");
    for number in 0..FILES {
        fs::write(rig.path().join(number.to_string()), text(number)).unwrap();
        fs::write(rig.path().join(format!("{number}.new")), "new").unwrap();
    }
    let id = rig.mount.checkpoint();
    let view = rig.view(id);
    let at = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| remove_each(&rig, FILES, &at));
        for number in 0..FILES {
            while at.load(Ordering::SeqCst) < number as u64 {
                std::hint::spin_loop();
            }
            let read = fs::read_to_string(view.join(number.to_string()));
            assert_eq!(read.unwrap_or_else(|error| error.to_string()), text(number));
        }
    });
    for number in 0..FILES {
        assert_eq!(
            fs::read_to_string(view.join(number.to_string())).unwrap(),
            text(number)
        );
    }
}

/// Removes or replaces one file after another; `at` is the next one.
fn remove_each(rig: &Rig, files: usize, at: &AtomicU64) {
    for number in 0..files {
        let path = rig.path().join(number.to_string());
        at.store(number as u64, Ordering::SeqCst);
        if number % 2 == 0 {
            fs::remove_file(path)
        } else {
            fs::rename(rig.path().join(format!("{number}.new")), path)
        }
        .unwrap();
    }
}

for_each_variant! { reflink => no_byte_changes, files_that_are_removed_while_their_view_is_read }
