//! The workload for crash tests. Checkpoints are made and freed, mostly the newest. The daemon is
//! killed and taken over. The tree is unmounted and mounted again, with a deletion in between.
//! Files stay open and are written rarely.
//!
//! Each step is picked at random from a list. An **orderly** step stops all other work: it syncs a
//! checkpoint, changes files in every way, triggers one event, and cuts the power some time later.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::load::{CrashLoad, WORKERS};
use super::recovery_checks::differences;
use crate::common::mount::VERB_SECONDS;
use crate::common::random::Random;
use crate::common::wait::{seen, wait_until};
use crate::common::{Mount, process, run_limited};

/// Minimum life of a daemon: the holder gives up after several short-lived ones.
const LIFE_MIN: Duration = Duration::from_millis(300);
/// Number of files that stay open.
const HELD: usize = 6;
/// Number of files changed in an orderly step.
const FILES: usize = 11;
/// Checkpoints above which gc runs.
const KEPT_MAX: usize = 12;
/// Upper bound of the application's pause after each sync: on btrfs an fsync of one file may write
/// others to disk.
const SYNC_PAUSE_MS: u64 = 3000;
/// Upper bound from the start of a step to a random cut.
const CUT_WITHIN_MS: u64 = 1000;
/// Delay between an orderly step and the cut: cumulative percentage, upper bound in milliseconds.
const WAITS_MS: [(u64, u64); 4] = [(60, 1), (85, 1000), (96, 5000), (100, 30_000)];

/// An event of an orderly step.
#[derive(Clone, Copy, Debug)]
enum StepEvent {
    Nothing,
    Kill,
    /// Kill the daemon and sync changed files through its successor.
    KillAndSync,
    Remount,
    /// Delete a checkpoint while nothing is mounted.
    DeleteOffline,
}

const EVENTS: [StepEvent; 5] = [
    StepEvent::KillAndSync,
    StepEvent::Remount,
    StepEvent::Kill,
    StepEvent::DeleteOffline,
    StepEvent::Nothing,
];

/// Creates the files that stay open and the directory of the orderly steps, before the tree is
/// mounted.
pub fn prepare(root: &Path) {
    CrashLoad::prepare(root, WORKERS);
    fs::create_dir(root.join("held")).unwrap();
    for index in 0..HELD {
        fs::write(held(root, index), [b'h'; 3000]).unwrap();
    }
    fs::create_dir(root.join("orderly")).unwrap();
}

type OpenFiles = Mutex<[Option<File>; HELD]>;

fn held(root: &Path, index: usize) -> PathBuf {
    root.join(format!("held/h{index}"))
}

/// The state of the workload.
pub struct CrashWorkload<'a> {
    pub load: &'a CrashLoad,
    pub mount: &'a Mount,
    /// Cuts the power, given a description of the last step. Returns `false` after the last cut.
    pub freeze: &'a (dyn Fn(&str) -> bool + Sync),
    random: Random,
    open: Arc<OpenFiles>,
    serves_since: Instant,
    orderly: usize,
    steps: Vec<String>,
    /// Power cuts are made. Otherwise branches are created and merged, which a copied disk cannot
    /// contain because a branch is registered by its absolute path.
    pub cuts: bool,
}

impl<'a> CrashWorkload<'a> {
    pub fn new(
        load: &'a CrashLoad,
        mount: &'a Mount,
        freeze: &'a (dyn Fn(&str) -> bool + Sync),
        seed: u64,
    ) -> CrashWorkload<'a> {
        CrashWorkload {
            load,
            mount,
            freeze,
            random: Random::new(seed ^ 0x57),
            open: Arc::default(),
            serves_since: Instant::now(),
            orderly: seed as usize,
            steps: Vec::new(),
            cuts: true,
        }
    }

    /// Works until the last power cut.
    pub fn run(mut self) {
        let (load, root) = (self.load, self.mount.path());
        let (open, seed) = (Arc::clone(&self.open), self.random.next());
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                let dir = root.join(format!("w{worker}"));
                scope.spawn(move || load.work(&dir, Random::new(seed + worker)));
            }
            scope.spawn(|| load.application(&root.join("app"), SYNC_PAUSE_MS));
            scope.spawn(|| hold_files(load, &open, root, Random::new(seed + 50)));
            // Drop also stops the threads on a panic, which the scope joins.
            let _ends = StopLoadOnDrop(load);
            load.quiet_checkpoint(self.mount);
            self.orderly();
            while !load.stopped() {
                self.step_and_cut();
            }
        });
        self.look_at_all();
    }

    fn note(&mut self, step: String) {
        self.steps.push(step);
    }

    /// Performs a step, one in four with a power cut in it.
    fn step_and_cut(&mut self) {
        if !self.cuts || !self.random.once_in(4) {
            return self.step();
        }
        let (load, freeze) = (self.load, self.freeze);
        let delay = Duration::from_millis(self.random.below(CUT_WITHIN_MS));
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(delay);
                if !freeze("a random moment") {
                    load.stop();
                }
            });
            self.step();
        });
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..=1 => self.quiet_checkpoint(),
            2..=5 => {
                let sync = self.random.once_in(3);
                self.load.checkpoint(self.mount, sync);
            }
            6..=9 => self.free(true),
            10 => self.free(false),
            11 => self.free_old(),
            12 => self.free_guard(),
            13..=14 => self.killed_in(),
            15 => self.remount(None),
            16..=19 => self.orderly(),
            20 => drop(self.verb(&["gc", "--yes", "--dedup"], false)),
            21..=22 if !self.cuts => self.merge(),
            _ => thread::sleep(Duration::from_millis(self.random.below(300))),
        }
        if self.load.alive() > KEPT_MAX {
            self.free_old();
        }
    }

    /// Makes a checkpoint and compares its view at once.
    fn quiet_checkpoint(&mut self) {
        let load = self.load;
        let _closed = load.gate.write().unwrap();
        self.closed_checkpoint();
    }

    fn closed_checkpoint(&mut self) -> u64 {
        let id = self.load.closed_checkpoint(self.mount);
        self.compare(id);
        id
    }

    fn compare(&mut self, id: u64) {
        let known = self.load.known();
        let tree = known.iter().find(|known| known.id == id);
        let Some(tree) = tree.and_then(|known| known.tree.as_ref()) else {
            return;
        };
        let wrong = differences(&self.mount.view(id), tree);
        if !wrong.is_empty() {
            let last = self.steps.len().saturating_sub(6);
            self.load.note_wrong(format!(
                "the live view of {id}, after {:?}: {wrong:?}",
                &self.steps[last..]
            ));
        }
    }

    /// Compares the views of all remaining checkpoints.
    fn look_at_all(&mut self) {
        let alive: Vec<u64> = self
            .load
            .known()
            .iter()
            .filter(|known| !known.deleted)
            .map(|known| known.id)
            .collect();
        alive.into_iter().for_each(|id| self.compare(id));
    }

    /// Runs a verb and returns its output; `None` if it failed because the daemon was killed.
    fn verb(&mut self, arguments: &[&str], killed: bool) -> Option<String> {
        let output = self.mount.run(arguments);
        self.note(format!(
            "{arguments:?}{}",
            if killed { " killed" } else { "" }
        ));
        assert!(
            killed || output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(said)
    }

    fn free(&mut self, newest: bool) {
        if let Some(id) = self.load.doom(&mut self.random, newest) {
            self.free_this(id, false);
        }
    }

    fn free_this(&mut self, id: u64, killed: bool) {
        let id = id.to_string();
        if self.random.once_in(3) {
            self.verb(&["delete", "--yes", &id], killed);
            if !killed {
                self.verb(&["gc", "--yes"], false);
            }
        } else {
            self.verb(&["delete", "--yes", "--now", &id], killed);
        }
    }

    /// Frees the oldest checkpoints. Tripwire marks may count against `--keep-last`.
    fn free_old(&mut self) {
        let (keep, doomed) = (1 + self.random.below(6), self.load.doom_all());
        self.verb(&["gc", "--yes", "--keep-last", &keep.to_string()], false);
        let log = self.mount.log_json();
        let left: Vec<u64> = log
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|entry| entry["id"].as_u64())
            .collect();
        self.load
            .spare(doomed.iter().filter(|id| left.contains(id)));
    }

    fn free_guard(&mut self) {
        let last = self.load.last();
        self.load.restore_part(self.mount, &mut self.random);
        self.note("restore".into());
        if self.load.last() != last && self.random.once_in(2) {
            self.free(true);
        }
    }

    /// Kills the daemon during a verb.
    fn killed_in(&mut self) {
        let (pid, delay) = (self.daemon(), self.random.below(60));
        thread::sleep(LIFE_MIN.saturating_sub(self.serves_since.elapsed()));
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(delay));
                process::kill(pid);
            });
            match self.random.below(4) {
                0 => {
                    let made = self.verb(&["checkpoint", "--sync"], true);
                    if let Some(id) = made.and_then(|said| said.trim().parse().ok()) {
                        self.load.put(id, true);
                    }
                }
                1 | 2 => {
                    if let Some(id) = self.load.doom(&mut self.random, true) {
                        self.free_this(id, true);
                    }
                }
                _ => drop(self.verb(&["gc", "--yes"], true)),
            }
        });
        self.taken_over(pid);
    }

    /// Creates a branch, changes it, and merges it.
    fn merge(&mut self) {
        let (name, root) = (format!("b{}", self.steps.len()), self.mount.path());
        let branch = root.with_file_name(&name);
        let path = branch.to_str().expect("a plain path").to_owned();
        self.verb(
            &["branch", "create", &name, "--no-git", "--path", &path],
            false,
        );
        fs::create_dir_all(branch.join("merged")).unwrap();
        fs::write(branch.join("merged/f"), &name).unwrap();
        self.verb(&["merge", &name, "--drop"], false);
    }

    fn daemon(&self) -> u32 {
        self.mount.status_json()["daemon"]["pid"]
            .as_u64()
            .expect("a daemon") as u32
    }

    fn kill(&mut self) {
        thread::sleep(LIFE_MIN.saturating_sub(self.serves_since.elapsed()));
        let pid = self.daemon();
        process::kill(pid);
        self.taken_over(pid);
        self.note("kill".into());
    }

    fn taken_over(&mut self, before: u32) {
        wait_until("another daemon serves", || {
            let output = self.mount.run(&["status", "--json"]);
            let other = serde_json::from_slice::<Value>(&output.stdout)
                .is_ok_and(|status| status["daemon"]["pid"].as_u64() != Some(before.into()));
            seen(other, output)
        });
        self.serves_since = Instant::now();
    }

    /// Unmounts and mounts again, and deletes checkpoint `delete` in between.
    fn remount(&mut self, delete: Option<u64>) {
        let load = self.load;
        let _closed = load.gate.write().unwrap();
        self.closed_remount(delete);
    }

    fn closed_remount(&mut self, delete: Option<u64>) {
        let load = self.load;
        let _unserved = load.served.write().unwrap();
        *self.open.lock().unwrap() = Default::default();
        let path = self.mount.path().to_owned();
        wait_until("it is unmounted", || {
            let mut umount = self.mount.command(&["umount"]);
            run_limited(umount.arg(&path), VERB_SECONDS)
                .status
                .success()
        });
        self.note("umount".into());
        if let Some(id) = delete {
            self.verb(&["delete", "--yes", "--now", &id.to_string()], false);
        }
        let output = Mount::try_start(&path, &self.mount.opts);
        assert!(output.status.success(), "{output:?}");
        self.serves_since = Instant::now();
        self.note("mount".into());
    }

    fn orderly(&mut self) {
        let event = EVENTS[self.orderly % EVENTS.len()];
        self.orderly += 1;
        let load = self.load;
        let _closed = load.gate.write().unwrap();
        let dir = self.mount.path().join("orderly");
        make_files(&dir);
        let doomed = matches!(event, StepEvent::DeleteOffline)
            .then(|| load.doom(&mut self.random, true))
            .flatten();
        let id = self.closed_checkpoint();
        let open = change_files(&dir).expect("the large files can be listed");
        match event {
            StepEvent::Nothing => {}
            StepEvent::Kill => self.kill(),
            StepEvent::KillAndSync => {
                self.kill();
                sync_files(&dir, &mut self.random);
            }
            StepEvent::Remount => {
                drop(open);
                self.closed_remount(None)
            }
            StepEvent::DeleteOffline => {
                drop(open);
                self.closed_remount(doomed)
            }
        }
        if !self.cuts {
            return;
        }
        let dice = self.random.below(100);
        let wait_ms = WAITS_MS.iter().find(|(upto, _)| dice < *upto);
        let wait_ms = self.random.below(wait_ms.map_or(1, |(_, wait)| *wait));
        thread::sleep(Duration::from_millis(wait_ms));
        self.note(format!("{event:?} after {id}, {wait_ms} ms"));
        if !(self.freeze)(&format!("{event:?} after {id}, {wait_ms} ms")) {
            load.stop();
        }
    }
}

/// Stops all threads when dropped.
struct StopLoadOnDrop<'a>(&'a CrashLoad);

impl Drop for StopLoadOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Keeps files open for writing and writes to them rarely.
fn hold_files(load: &CrashLoad, open: &OpenFiles, root: &Path, mut random: Random) {
    while !load.stopped() {
        thread::sleep(Duration::from_millis(random.below(150)));
        let _working = load.gate.read().unwrap();
        let index = random.below(HELD as u64) as usize;
        let one = &mut open.lock().unwrap()[index];
        let done = match one {
            _ if random.once_in(20) => {
                *one = None;
                Ok(())
            }
            Some(file) if random.once_in(3) => {
                file.write_all_at(&[b'a' + random.below(26) as u8; 100], random.below(3000))
            }
            Some(_) => Ok(()),
            None => OpenOptions::new()
                .write(true)
                .read(random.once_in(2))
                .open(held(root, index))
                .map(|file| *one = Some(file)),
        };
        if let Err(error) = done {
            load.note_wrong(format!("a file that stays open: {error}"));
        }
    }
}

fn make_files(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            fs::remove_dir_all(entry.path()).unwrap();
        } else {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    for index in 0..FILES {
        let bytes = vec![b'A' + index as u8; if index % 2 == 1 { 3000 } else { 40_000 }];
        fs::write(dir.join(format!("f{index}")), bytes).unwrap();
    }
    fs::create_dir(dir.join("d")).unwrap();
}

/// Changes each file in a different way. Returns one that stays open.
fn change_files(dir: &Path) -> io::Result<File> {
    let path = |index: usize| dir.join(format!("f{index}"));
    let write = |index: usize| OpenOptions::new().write(true).open(path(index));
    write(0)?.write_all_at(b"new", 0)?;
    write(1)?.write_all_at(b"new", 0)?;
    fs::write(path(2), "new")?;
    write(3)?.set_len(7)?;
    fs::remove_file(path(4))?;
    fs::rename(path(5), path(6))?;
    fs::rename(path(7), dir.join("d/f7"))?;
    fs::write(dir.join("tmp"), "n")?;
    fs::rename(dir.join("tmp"), path(8))?;
    fs::set_permissions(path(9), fs::Permissions::from_mode(0o600))?;
    let file = write(10)?;
    file.write_all_at(b"new", 5)?;
    Ok(file)
}

/// Syncs some of the changed files, and perhaps their directory.
fn sync_files(dir: &Path, random: &mut Random) {
    for index in [0, 2, 3, 10] {
        if random.once_in(2) {
            File::open(dir.join(format!("f{index}")))
                .and_then(|file| file.sync_all())
                .unwrap();
        }
    }
    if random.once_in(2) {
        File::open(dir).and_then(|dir| dir.sync_all()).unwrap();
    }
}
