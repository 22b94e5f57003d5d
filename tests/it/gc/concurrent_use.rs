//! `gc` while the tree is in use and views of freed checkpoints are open.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::story::{ids, rounds};
use crate::common::space::noise;
use crate::common::tree::{Tree, assert_tree_is};
use crate::common::wait::{seen, wait_until};
use crate::common::{Rig, TreeOpts, Variant, for_each_variant, tree_of};

for_each_variant! { reflink => a_run_while_the_tree_is_in_use }

const UNIT: usize = 64 << 10;

fn a_run_while_the_tree_is_in_use(v: Variant) {
    let rig = v.start();
    rounds(&rig.mount, 20, UNIT);
    let root = rig.path();
    let kept: BTreeMap<u64, Tree> = (18..=20).map(|id| (id, tree_of(&rig.view(id)))).collect();
    let expected = fs::read(rig.view(4).join("part")).unwrap();
    let mut past = File::open(rig.view(4).join("part")).unwrap();
    let dir = File::open(rig.view(4).join("dir3")).unwrap();
    let (stop, longest_us, writes) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let write = || {
        let mut round = 0;
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            fs::write(root.join("whole"), noise(4096, round)).unwrap();
            let _ = fs::remove_file(root.join(format!("new{}", round % 20)));
            longest_us.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
            writes.fetch_add(1, Ordering::Relaxed);
            round += 1;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(write);
        scope.spawn(|| read_views(&rig, &stop));
        let _stop = Stop(&stop);
        wait_until("twenty changes are made", || {
            let made = writes.load(Ordering::Relaxed);
            seen(made >= 20, made)
        });
        let report = rig.mount.json(&["gc", "--keep-last", "3"]);
        assert_eq!(report["gone"].as_array().unwrap().len(), 17, "{report}");
    });
    println!(
        "{v:?}: the longest of {} changes took {} us",
        writes.load(Ordering::Relaxed),
        longest_us.load(Ordering::Relaxed)
    );
    assert_eq!(ids(&rig.mount), [18, 19, 20]);
    for id in [18, 19, 20] {
        assert_tree_is(&rig.view(id), &kept[&id], &TreeOpts::default());
    }
    // An open file shows its old content or fails; the rest is gone.
    let mut bytes = Vec::new();
    match past.read_to_end(&mut bytes) {
        Ok(_) => assert!(
            bytes == expected,
            "an open file of a removed view shows other bytes"
        ),
        Err(error) => assert_eq!(
            error.raw_os_error(),
            Some(rustix::io::Errno::STALE.raw_os_error()),
            "{error}"
        ),
    }
    assert!(!rig.view(4).exists());
    let gone = rustix::fs::statat(&dir, "small", rustix::fs::AtFlags::empty())
        .expect_err("its checkpoint is gone");
    assert!(
        [rustix::io::Errno::STALE, rustix::io::Errno::NOENT].contains(&gone),
        "{gone}"
    );
}

/// Reads of a view being deleted return the original content or fail because it is gone.
fn read_views(rig: &Rig, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for id in 1..=20 {
            match fs::read(rig.view(id).join("whole")) {
                Ok(bytes) => assert!(
                    bytes == noise(UNIT, id - 1),
                    "checkpoint {id} shows other bytes"
                ),
                Err(error) => {
                    let told = [libc_enoent(), rustix::io::Errno::STALE.raw_os_error()]
                        .contains(&error.raw_os_error().unwrap_or(0));
                    assert!(told, "checkpoint {id}: {error}");
                }
            }
        }
    }
}

fn libc_enoent() -> i32 {
    rustix::io::Errno::NOENT.raw_os_error()
}

/// Stops the other threads even when this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
