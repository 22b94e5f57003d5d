//! Verbs while workers die: an answered checkpoint persists, and read-only verbs always get an
//! answer.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::command::{sh, try_run_limited};
use crate::common::mount::VERB_SECONDS;
use crate::common::random::is_long;
use crate::common::wait::wait_until;
use crate::common::{Mount, Rig, Variant, for_each_variant};

for_each_variant! { reflink => verbs_and_workers_that_die }

fn kills() -> u32 {
    if is_long() { 20 } else { 3 }
}

/// Returns the output of a verb, or `None` if its worker died before it answered.
fn command(mount: &Mount, arguments: &[&str]) -> Option<String> {
    let output =
        try_run_limited(&mut mount.command(arguments), VERB_SECONDS).expect("no verb hangs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() || said.contains("ended before it answered"),
        "{arguments:?}: {said}"
    );
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Makes checkpoints of a counter file and restores a watched directory, without pauses. Both may
/// fail when the worker dies.
fn verbs_and_workers_that_die(v: Variant) {
    let mut rig = v.start();
    let root = rig.path().to_owned();
    fs::create_dir_all(root.join("back/sub")).unwrap();
    for number in 0..40 {
        fs::write(root.join(format!("back/sub/f{number}")), number.to_string()).unwrap();
    }
    let base = rig.mount.checkpoint();
    let watcher = rustix::fs::inotify::init(
        rustix::fs::inotify::CreateFlags::CLOEXEC | rustix::fs::inotify::CreateFlags::NONBLOCK,
    )
    .unwrap();
    for watched in [root.join("back"), root.join("back/sub")] {
        rustix::fs::inotify::add_watch(
            &watcher,
            &watched,
            rustix::fs::inotify::WatchFlags::ALL_EVENTS,
        )
        .unwrap();
    }
    let (stop, stored) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut acknowledged: BTreeMap<u64, u64> = BTreeMap::new();
    thread::scope(|scope| {
        let mapped = scope.spawn(|| store_all_the_time(&root, &stop, &stored));
        // Drop also ends the thread if the test fails; the scope joins it.
        let _ended = StopThreadOnDrop(&stop);
        for kill in 0..kills() {
            let worker = rig.mount.pid();
            let delay = Duration::from_millis(300 + u64::from(kill) * 37 % 200);
            let killer = scope.spawn(move || {
                thread::sleep(delay);
                crate::common::process::kill(worker);
            });
            let mut count = u64::from(kill) * 1000;
            while !killer.is_finished() {
                count += 1;
                fs::write(root.join("count"), count.to_string()).unwrap();
                if let Some(id) = command(&rig.mount, &["checkpoint"]) {
                    acknowledged.insert(id.parse().expect("a number"), count);
                }
                fs::write(root.join("back/sub/f1"), "changed").unwrap();
                fs::remove_file(root.join("back/sub/f2")).unwrap();
                fs::write(root.join("back/new"), "new").unwrap();
                let restored =
                    command(&rig.mount, &["restore", &base.to_string(), "back"]).is_some();
                let f2 = || fs::read_to_string(root.join("back/sub/f2"));
                if restored {
                    assert_eq!(f2().expect("the removed file is back"), "2");
                    continue;
                }
                finish_by_hand(&root);
                wait_until("the removed file is back", || {
                    f2().is_ok_and(|text| text == "2")
                });
            }
            killer.join().unwrap();
            rig.mount.adopt();
            assert_ne!(rig.mount.pid(), worker);
        }
        stop.store(true, Ordering::Relaxed);
        mapped.join().expect("stores continue");
    });
    assert_kept(&rig, acknowledged);
}

/// Checks that all acknowledged checkpoints exist, and that the notifications of a restore left no
/// trace in the tree.
fn assert_kept(rig: &Rig, acknowledged: BTreeMap<u64, u64>) {
    let root = rig.path();
    assert_eq!(
        sh(&root.join("back"), "find . -type f | wc -l").trim(),
        "40"
    );
    let known = rig.mount.log_json().to_string();
    for (id, count) in acknowledged {
        assert!(
            known.contains(&format!("\"id\":{id},")),
            "checkpoint {id} was acknowledged"
        );
        assert_eq!(
            fs::read_to_string(rig.view(id).join("count")).unwrap(),
            count.to_string(),
            "checkpoint {id}"
        );
        assert_eq!(
            fs::read(rig.view(id).join("back/sub/f3")).unwrap(),
            b"3",
            "checkpoint {id}"
        );
    }
}

/// Restores the files by hand if the restore had not begun; an interrupted one is completed by the
/// next worker. Until then the kernel answers from its caches.
fn finish_by_hand(root: &Path) {
    match fs::remove_file(root.join("back/new")) {
        Ok(()) => fs::write(root.join("back/sub/f2"), "2").unwrap(),
        Err(gone) => assert_eq!(gone.kind(), std::io::ErrorKind::NotFound),
    }
}

/// Stops a thread when dropped.
struct StopThreadOnDrop<'a>(&'a AtomicBool);

impl Drop for StopThreadOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Dirties pages of a mapping: in a daemon mount a checkpoint waits for their write-back requests,
/// which the next worker must answer.
fn store_all_the_time(root: &Path, stop: &AtomicBool, stored: &AtomicU64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(root.join("mapped"))
        .unwrap();
    file.set_len(1 << 20).unwrap();
    let map = crate::takeover::map::SharedMapping::new(file, 1 << 20);
    while !stop.load(Ordering::Relaxed) {
        let round = stored.fetch_add(1, Ordering::Relaxed);
        map.store((round as usize * 4096) % (1 << 20), round);
        thread::sleep(Duration::from_micros(50));
    }
    let last = stored.load(Ordering::Relaxed) - 1;
    assert_eq!(map.load((last as usize * 4096) % (1 << 20)), last);
}
