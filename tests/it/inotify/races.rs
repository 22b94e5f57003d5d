//! Announcements during concurrent changes of the same names, a kill of the daemon, an unmount, and
//! an excess of events.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use super::support::{Watcher, names, sh};
use crate::common::wait::{WAIT, seen, wait_until};
use crate::common::{TreeOpts, Variant, assert_same_tree, for_each_variant};

/// A seeded random number generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Names of one worker; a directory, or the content of a file.
type Model = BTreeMap<String, Option<String>>;

/// Applies an operation on a random name to the tree and to the model, and compares the results.
fn change(dir: &Path, worker: u64, model: &mut Model, random: &mut Random) {
    let name = format!("{worker}-{}", random.below(6));
    let path = dir.join(&name);
    let is = model.get(&name).cloned();
    let what = random.below(5);
    match (what, is) {
        (0, is) => {
            let made = fs::File::create_new(&path);
            assert_eq!(made.is_ok(), is.is_none(), "create {name}: {made:?}");
            model.entry(name).or_insert_with(|| Some(String::new()));
        }
        (1, is) => {
            let made = fs::create_dir(&path);
            assert_eq!(made.is_ok(), is.is_none(), "mkdir {name}: {made:?}");
            model.entry(name).or_insert(None);
        }
        (2, Some(None)) => {
            fs::remove_dir(&path).unwrap_or_else(|error| panic!("rmdir {name}: {error}"));
            model.remove(&name);
        }
        (2 | 3, Some(Some(_))) => {
            fs::remove_file(&path).unwrap_or_else(|error| panic!("unlink {name}: {error}"));
            model.remove(&name);
        }
        (2 | 3, None) => {
            let errors = [fs::remove_file(&path), fs::remove_dir(&path)]
                .map(|result| result.expect_err("it does not exist").kind());
            assert_eq!(errors, [ErrorKind::NotFound; 2], "{name}");
        }
        (_, Some(Some(_))) => {
            let content = format!("{}", random.below(1 << 40));
            fs::write(&path, &content).unwrap_or_else(|error| panic!("write {name}: {error}"));
            model.insert(name, Some(content));
        }
        (_, Some(None) | None) => check(dir, &name, model),
    }
}

fn check(dir: &Path, name: &str, model: &Model) {
    let path = dir.join(name);
    match model.get(name) {
        None => assert_eq!(
            fs::symlink_metadata(&path).expect_err("it is gone").kind(),
            ErrorKind::NotFound,
            "{name}"
        ),
        Some(None) => assert!(fs::symlink_metadata(&path).unwrap().is_dir(), "{name}"),
        Some(Some(content)) => assert_eq!(&fs::read_to_string(&path).unwrap(), content, "{name}"),
    }
}

fn nothing_is_lost_or_reverted_while_a_restore_is_announced(v: Variant) {
    const ROUNDS: u64 = 8;
    const WORKERS: u64 = 3;
    const OPERATIONS: u64 = 300;
    let rig = v.start();
    let dir = rig.path().join("d");
    fs::create_dir(&dir).unwrap();
    let mut models: Vec<Model> = (0..WORKERS).map(|_| Model::new()).collect();
    let mut random = Random(20_261_121);
    for round in 0..ROUNDS {
        for (worker, model) in (0..).zip(&mut models) {
            (0..40).for_each(|_| change(&dir, worker, model, &mut random));
        }
        let id = rig.mount.checkpoint();
        let then = models.clone();
        for (worker, model) in (0..).zip(&mut models) {
            (0..40).for_each(|_| change(&dir, worker, model, &mut random));
        }
        let mut watcher = Watcher::all_below(rig.path());
        rig.mount.restore(id);
        models = then;
        // The restored names are being announced, while three threads change them again.
        let seed = random.below(u64::MAX);
        std::thread::scope(|scope| {
            for (worker, model) in (0..).zip(&mut models) {
                let dir = &dir;
                scope.spawn(move || {
                    let mut random = Random(seed ^ worker);
                    (0..OPERATIONS).for_each(|_| change(dir, worker, model, &mut random));
                });
            }
        });
        watcher.take();
        let told = settled(&mut watcher, &dir);
        for (worker, model) in (0..).zip(&models) {
            (0..6).for_each(|name| check(&dir, &format!("{worker}-{name}"), model));
        }
        let mut expected: Vec<String> = models.iter().flat_map(Model::keys).cloned().collect();
        expected.sort();
        assert_eq!(names(&dir), expected, "round {round}");
        // The events alone yield the final state of each name.
        for (name, there) in told {
            assert_eq!(
                there,
                expected.contains(&name),
                "round {round}: {name}: the last event for a watcher; {:#?}",
                watcher.said
            );
        }
    }
    let id = rig.mount.checkpoint();
    assert_same_tree(&rig.view(id), rig.path(), &TreeOpts::default());
}

/// Returns whether each name exists according to its last event, once the announcement has ended,
/// which a final restore of one name signals.
fn settled(watcher: &mut Watcher, dir: &Path) -> BTreeMap<String, bool> {
    let mount = dir.parent().unwrap();
    // Announcements are made in sequence.
    let ckptfs = |arguments: &[&str]| {
        let output = crate::common::run_limited(
            std::process::Command::new(env!("CARGO_BIN_EXE_ckptfs"))
                .arg("-C")
                .arg(mount)
                .args(arguments),
            60,
        );
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    fs::write(dir.join("end"), "").unwrap();
    let id = ckptfs(&["checkpoint"]);
    fs::remove_file(dir.join("end")).unwrap();
    watcher.take();
    let heard = watcher.said.len();
    ckptfs(&["restore", &id, "d/end"]);
    wait_until("the last event is reported", || {
        watcher.take();
        let said = &watcher.said[heard..];
        seen(
            said.iter().any(|line| line == "CREATE d/end"),
            said.to_vec(),
        )
    });
    fs::remove_file(dir.join("end")).unwrap();
    let mut last = BTreeMap::new();
    for line in &watcher.said {
        let Some((what, path)) = line.split_once(' ') else {
            continue;
        };
        let Some(name) = path.strip_prefix("d/").filter(|name| *name != "end") else {
            continue;
        };
        match what.split(',').next() {
            Some("CREATE") => last.insert(name.to_owned(), true),
            Some("DELETE") => last.insert(name.to_owned(), false),
            _ => None,
        };
    }
    last
}

const MANY: &str = "mkdir a b; for i in $(seq 500); do echo $i > a/$i; echo $i > b/$i; done";
const MANY_CHANGED: &str = "for i in $(seq 350); do echo more >> a/$i; done; rm b/?; for i in $(seq 400); do echo > b/new$i; done; chmod 600 a/4??";

fn a_kill_while_announcing_leaves_what_was_restored(v: Variant) {
    let mut rig = v.start();
    let root = rig.path().to_owned();
    sh(&root, MANY);
    let id = rig.mount.checkpoint();
    let (mut cut, mut round) = (0, 0);
    // At least one kill must interrupt an announcement. On a busy machine a kill may be late.
    while round < 3 || (cut == 0 && round < 30) {
        sh(&root, MANY_CHANGED);
        let mut watcher = Watcher::all_below(&root);
        rig.mount.restore(id);
        // In the middle: not all events have arrived.
        let started = Instant::now();
        while watcher.said.len() < 5 + 100 * (round % 3) && started.elapsed() < WAIT {
            watcher.take();
            std::thread::sleep(Duration::from_micros(200));
        }
        rig.mount.kill();
        watcher.take();
        cut += u32::from((5..1_000).contains(&watcher.said.len()));
        rig.mount.remount();
        assert_same_tree(&rig.view(id), &root, &TreeOpts::default());
        round += 1;
    }
    assert!(cut > 0, "no kill interrupted an announcement");
}

fn an_unmount_does_not_wait_for_an_announcement(v: Variant) {
    let mut rig = v.start();
    let root = rig.path().to_owned();
    sh(&root, MANY);
    let id = rig.mount.checkpoint();
    for _ in 0..3 {
        sh(&root, MANY_CHANGED);
        let _watcher = Watcher::all_below(&root);
        rig.mount.restore(id);
        rig.mount.umount();
        assert_eq!(names(root.join("b")).len(), 500, "the plain directory");
        rig.mount.remount();
    }
}

/// More changes than a watcher's queue holds: the excess is reported as one change per directory,
/// without other effects.
fn too_many_changes_are_told_by_directory(v: Variant) {
    let rig = v.start();
    let root = rig.path();
    fs::create_dir(root.join("many")).unwrap();
    let path = |kind: &str, number: u32| root.join("many").join(format!("{kind}{number}"));
    (0..3_000).for_each(|number| drop(fs::File::create_new(path("n", number)).unwrap()));
    let id = rig.mount.checkpoint();
    (0..3_000).for_each(|number| fs::rename(path("n", number), path("m", number)).unwrap());
    let mut watcher = Watcher::all_below(root);
    rig.mount.restore(id);
    let count = |watcher: &Watcher| {
        watcher
            .said
            .iter()
            .filter(|line| line.starts_with("CREATE many/n") || line.starts_with("DELETE many/m"))
            .count()
    };
    wait_until("the rest is reported as one change", || {
        watcher.take();
        let told = watcher.said.iter().any(|line| line == "ATTRIB,ISDIR many");
        seen(told, count(&watcher))
    });
    watcher.take();
    assert_eq!(count(&watcher), 5_000);
    assert!(
        !watcher
            .said
            .iter()
            .any(|line| line.contains("QUEUE_OVERFLOW"))
    );
    assert_same_tree(&rig.view(id), root, &TreeOpts::default());
}

for_each_variant! { xfs => an_unmount_does_not_wait_for_an_announcement, too_many_changes_are_told_by_directory }
for_each_variant! { reflink => nothing_is_lost_or_reverted_while_a_restore_is_announced, a_kill_while_announcing_leaves_what_was_restored }
