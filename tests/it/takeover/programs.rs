//! Programs run while the worker is killed repeatedly: none sees an error, and no operation is lost
//! or done twice.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::command::sh;
use crate::common::random::is_long;
use crate::common::wait::{WAIT, seen, wait_until};
use crate::common::{Rig, Variant, for_each_variant, sample};

for_each_variant! { reflink => programs_go_on_while_workers_die }
for_each_variant! { xfs => programs_go_on_in_a_branch }

/// Kills per run, short and long form. In a branch the comparison takes longer.
const KILLS: (u32, u32) = (2, 20);
const KILLS_IN_BRANCH: (u32, u32) = (1, 5);

fn of_run((short, long): (u32, u32)) -> u32 {
    if is_long() { long } else { short }
}

/// Time from a completed takeover to the next kill.
const PAUSE: Duration = Duration::from_millis(350);

/// A program works below a directory until stopped, counts its rounds, and checks the result at the
/// end.
type Program = fn(&Path, &AtomicBool, &AtomicU64);

const PROGRAMS: [(&str, Program); 9] = [
    ("dirs", make_and_remove_dirs),
    ("renames", rename_around),
    ("files", write_and_read_files),
    ("links", link_and_unlink),
    ("exchange", exchange),
    ("attributes", attributes),
    ("log", append_to_a_log),
    ("mapped", store_through_a_mapping),
    ("lists", list_while_it_changes),
];

/// Each system call behaves as in a private directory: `mkdir` of a unique name never returns
/// EEXIST.
fn make_and_remove_dirs(dir: &Path, stop: &AtomicBool, rounds: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed);
        let at = dir.join(format!("d{round}"));
        fs::create_dir(&at).expect("mkdir");
        fs::create_dir(at.join("in")).expect("mkdir below");
        std::os::unix::fs::symlink("target", at.join("link")).expect("symlink");
        assert_eq!(
            fs::read_link(at.join("link")).expect("readlink"),
            Path::new("target")
        );
        fs::remove_file(at.join("link")).expect("unlink");
        fs::remove_dir(at.join("in")).expect("rmdir below");
        fs::remove_dir(&at).expect("rmdir");
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(
        fs::read_dir(dir).expect("readdir").count(),
        0,
        "no entry is left"
    );
}

fn rename_around(dir: &Path, stop: &AtomicBool, rounds: &AtomicU64) {
    fs::write(dir.join("a"), "moved").expect("write");
    fs::create_dir(dir.join("sub")).expect("mkdir");
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed);
        fs::rename(dir.join("a"), dir.join("sub/b")).expect("rename into a directory");
        fs::write(dir.join("c"), round.to_string()).expect("write");
        fs::write(dir.join("sub/d"), "replaced").expect("write");
        fs::rename(dir.join("c"), dir.join("sub/d")).expect("rename over a file");
        assert_eq!(
            fs::read_to_string(dir.join("sub/d")).expect("read"),
            round.to_string()
        );
        fs::rename(dir.join("sub/b"), dir.join("a")).expect("rename back");
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(fs::read_to_string(dir.join("a")).expect("read"), "moved");
}

fn write_and_read_files(dir: &Path, stop: &AtomicBool, rounds: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed);
        let path = dir.join(format!("f{}", round % 50));
        let content = format!("{round}:").repeat(1 + (round as usize % 3000));
        let file = if path.exists() {
            OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(&path)
                .expect("open to truncate")
        } else {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&path)
                .expect("create")
        };
        file.write_all_at(content.as_bytes(), 0).expect("write");
        drop(file);
        assert!(
            fs::read(&path).expect("read") == content.as_bytes(),
            "the written content is read"
        );
        if round % 7 == 6 {
            fs::remove_file(&path).expect("unlink");
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

fn link_and_unlink(dir: &Path, stop: &AtomicBool, rounds: &AtomicU64) {
    use std::os::unix::fs::MetadataExt;
    fs::write(dir.join("one"), "x").expect("write");
    while !stop.load(Ordering::Relaxed) {
        fs::hard_link(dir.join("one"), dir.join("two")).expect("link");
        assert_eq!(fs::metadata(dir.join("one")).expect("stat").nlink(), 2);
        fs::remove_file(dir.join("one")).expect("unlink one of two");
        fs::rename(dir.join("two"), dir.join("one")).expect("rename");
        assert_eq!(fs::metadata(dir.join("one")).expect("stat").nlink(), 1);
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// An exchange done twice would have no effect.
fn exchange(dir: &Path, stop: &AtomicBool, rounds: &AtomicU64) {
    fs::write(dir.join("left"), "0").expect("write");
    fs::write(dir.join("right"), "1").expect("write");
    while !stop.load(Ordering::Relaxed) {
        let at = File::open(dir).expect("open");
        rustix::fs::renameat_with(&at, "left", &at, "right", rustix::fs::RenameFlags::EXCHANGE)
            .expect("exchange");
        let round = rounds.fetch_add(1, Ordering::Relaxed) + 1;
        assert_eq!(
            fs::read_to_string(dir.join("left")).expect("read"),
            (round % 2).to_string(),
            "after {round} exchanges"
        );
    }
}

fn attributes(dir: &Path, stop: &AtomicBool, rounds: &AtomicU64) {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join("f");
    fs::write(&path, "x").expect("write");
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed);
        let mode = 0o600 | (round as u32 % 64);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        assert_eq!(
            fs::metadata(&path).expect("stat").permissions().mode() & 0o777,
            mode
        );
        rustix::fs::setxattr(
            &path,
            "user.a",
            round.to_string().as_bytes(),
            rustix::fs::XattrFlags::CREATE,
        )
        .expect("setxattr of a new one");
        rustix::fs::removexattr(&path, "user.a").expect("removexattr");
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Uses one handle throughout, as a logging program does.
fn append_to_a_log(dir: &Path, stop: &AtomicBool, rounds: &AtomicU64) {
    use std::io::Write;
    let path = dir.join("log");
    let mut log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .expect("open");
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed);
        log.write_all(&round.to_le_bytes()).expect("append");
        if round.is_multiple_of(64) {
            log.sync_data().expect("fdatasync");
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    let told: Vec<u64> = fs::read(&path)
        .expect("read")
        .chunks(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("whole")))
        .collect();
    assert!(
        told.iter().copied().eq(0..rounds.load(Ordering::Relaxed)),
        "every line once, in order"
    );
}

fn store_through_a_mapping(dir: &Path, stop: &AtomicBool, rounds: &AtomicU64) {
    let path = dir.join("map");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .expect("open");
    file.set_len(64 * 4096).expect("truncate");
    let map = crate::takeover::map::SharedMapping::new(file, 64 * 4096);
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.fetch_add(1, Ordering::Relaxed) + 1;
        let page = (round % 64) as usize;
        map.store(page * 4096, round);
        assert_eq!(map.load(page * 4096), round);
        thread::sleep(Duration::from_micros(200));
    }
    let content = fs::read(&path).expect("read");
    for page in 0..64_usize {
        let there = u64::from_le_bytes(
            content[page * 4096..page * 4096 + 8]
                .try_into()
                .expect("eight"),
        );
        assert_eq!(there, map.load(page * 4096), "page {page}");
    }
}

/// Each permanent name is in every listing exactly once.
fn list_while_it_changes(dir: &Path, stop: &AtomicBool, rounds: &AtomicU64) {
    let stay: BTreeSet<OsString> = (0..600)
        .map(|number| OsString::from(format!("stays-{number:04}")))
        .collect();
    stay.iter()
        .for_each(|name| fs::write(dir.join(name), "").expect("write"));
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        fs::write(dir.join(format!("comes-{round}")), "").expect("write");
        let listed: Vec<OsString> = fs::read_dir(dir)
            .expect("readdir")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        let there: BTreeSet<OsString> = listed.iter().cloned().collect();
        assert_eq!(there.len(), listed.len(), "no name twice");
        assert!(stay.is_subset(&there), "no name is missing");
        fs::remove_file(dir.join(format!("comes-{round}"))).expect("unlink");
    }
}

/// Prints the checksums compared for each view during the run. Excludes files renamed all the time:
/// a view may return ESTALE between a rename and the update of the tables.
const LISTING: &str =
    "find sample files log attributes -type f -print0 | sort -z | xargs -0 sha256sum";

fn start(v: Variant) -> Rig {
    let rig = v.start_with(crate::common::MountOpts::new(v.io), |dir| {
        fs::create_dir(dir.join("sample")).expect("mkdir");
        sample::sample_tree(&dir.join("sample"));
    });
    for (name, _) in PROGRAMS {
        fs::create_dir(rig.path().join(name)).expect("mkdir");
    }
    rig
}

/// All programs run while workers die at random moments and checkpoints are made, whose views must
/// not change.
fn programs_go_on_while_workers_die(v: Variant) {
    let mut rig = start(v);
    let root = rig.path().to_owned();
    work(v, &mut rig, &root, of_run(KILLS));
}

/// The same with inherited files.
fn programs_go_on_in_a_branch(v: Variant) {
    let mut rig = start(v);
    let root = crate::branch::support::create(&rig, "work");
    work(v, &mut rig, &root, of_run(KILLS_IN_BRANCH));
}

fn work(v: Variant, rig: &mut Rig, root: &Path, kills: u32) {
    let stop = AtomicBool::new(false);
    let rounds: Vec<AtomicU64> = PROGRAMS.iter().map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        let programs: Vec<_> = PROGRAMS
            .iter()
            .zip(&rounds)
            .map(|((name, program), rounds)| {
                let (dir, stop) = (root.join(name), &stop);
                (name, scope.spawn(move || program(&dir, stop, rounds)))
            })
            .collect();
        let _stop = StopProgramsOnDrop(&stop);
        let slowest = kill_workers(rig, root, &rounds, kills);
        stop.store(true, Ordering::Relaxed);
        for (name, program) in programs {
            assert!(program.join().is_ok(), "the program {name} failed");
        }
        println!("{v:?}: {kills} takeovers, the slowest took {slowest:?}; rounds {rounds:?}",);
        assert!(slowest < WAIT, "a takeover took {slowest:?}");
    });
}

/// Stops the programs when dropped.
struct StopProgramsOnDrop<'a>(&'a AtomicBool);

impl Drop for StopProgramsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn kill_workers(rig: &mut Rig, root: &Path, rounds: &[AtomicU64], kills: u32) -> Duration {
    let mut slowest = Duration::ZERO;
    let mut views: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    for kill in 0..kills {
        thread::sleep(PAUSE);
        slowest = slowest.max(rig.mount.replace_worker());
        // Every program makes progress with the next worker.
        let before: Vec<u64> = rounds
            .iter()
            .map(|rounds| rounds.load(Ordering::Relaxed))
            .collect();
        wait_until(
            &format!("every program continues after kill {kill}"),
            || {
                let mut both = rounds.iter().zip(&before);
                let on = both.all(|(now, before)| now.load(Ordering::Relaxed) > *before);
                seen(on, (&before, rounds))
            },
        );
        let id = crate::branch::support::inside(root, &["checkpoint"]);
        let view = root.join(".snapshots").join(id.trim_end());
        let list = sh(&view, LISTING);
        views.push((view, list.into_bytes()));
    }
    for (view, list) in &views {
        let again = sh(view, LISTING);
        assert!(again.as_bytes() == list, "{} has changed", view.display());
    }
    slowest
}
