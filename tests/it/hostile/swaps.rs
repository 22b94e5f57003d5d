//! Directories that become links to somewhere outside, and back, while other processes resolve
//! paths through them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, chmodat, linkat, mkdirat, openat2,
    renameat_with, symlinkat, unlinkat,
};

use super::support::put;
use crate::common::{Image, Mount, MountOpts, Variant, for_each_variant};

for_each_variant! { xfs =>
    swaps_below_the_mount_lead_nowhere, swaps_in_the_mount_lead_nowhere,
    what_the_kernel_had_for_a_name_does_not_move_to_another
}

/// Content outside the tree, which must neither be read nor changed.
const SECRET: &str = "outside: nobody reads this through the mount";

/// How long the swapper and the others work.
const WORK: Duration = Duration::from_secs(2);

/// The limit if they have made no progress by then.
const WORK_MAX: Duration = Duration::from_secs(60);

/// Restores with concurrent renames.
const ROUNDS: usize = 30;

/// A directory outside the tree with the same names as the one inside.
struct Outside {
    dir: PathBuf,
    before: Vec<(String, i64, i64, u64)>,
}

impl Outside {
    fn new(image: &Image) -> Outside {
        let dir = image.dir("outside");
        for name in ["f", "g"] {
            put(dir.join(name), SECRET);
        }
        let before = Outside::state(&dir);
        Outside { dir, before }
    }

    /// Returns paths, mtimes, ctimes and sizes, including those of the directory itself.
    fn state(dir: &Path) -> Vec<(String, i64, i64, u64)> {
        let mut state: Vec<_> = fs::read_dir(dir)
            .expect("list")
            .map(|entry| entry.expect("entry").path())
            .chain([dir.to_owned()])
            .map(|path| {
                let meta = fs::symlink_metadata(&path).expect("stat");
                (
                    path.display().to_string(),
                    meta.mtime_nsec() + meta.mtime(),
                    meta.ctime_nsec() + meta.ctime(),
                    meta.size(),
                )
            })
            .collect();
        state.sort();
        state
    }

    #[track_caller]
    fn is_untouched(&self) {
        assert_eq!(Outside::state(&self.dir), self.before);
        assert_eq!(
            fs::read_to_string(self.dir.join("f")).expect("read"),
            SECRET
        );
    }
}

/// Makes a tree with `d/f` and `d/g`, and a link `l` that leads outside.
fn fill(dir: &Path, outside: &Path) {
    fs::create_dir(dir.join("d")).expect("mkdir");
    for name in ["f", "g"] {
        put(dir.join("d").join(name), "inside");
    }
    symlink(outside, dir.join("l")).expect("symlink");
}

/// Exchanges `d` and `l` until `stop` is set, and counts the exchanges.
fn swap(dir: &Path, stop: &AtomicBool, swaps: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        if renameat_with(
            CWD,
            dir.join("d"),
            CWD,
            dir.join("l"),
            RenameFlags::EXCHANGE,
        )
        .is_ok()
        {
            swaps.fetch_add(1, Ordering::Relaxed);
        }
    }
    // Leaves the directory at its original name.
    if fs::symlink_metadata(dir.join("d")).expect("d").is_symlink() {
        renameat_with(
            CWD,
            dir.join("d"),
            CWD,
            dir.join("l"),
            RenameFlags::EXCHANGE,
        )
        .expect("exchange");
    }
}

/// Stops the swapper, even if the test panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Opens a path below a directory. A link in the path is an error here, so only the daemon can have
/// followed one.
fn beneath(dir: &OwnedFd, path: &str, flags: OFlags) -> Option<File> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(
        dir,
        path,
        flags | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o644 * u32::from(flags.contains(OFlags::CREATE))),
        resolve,
    )
    .ok()
    .map(File::from)
}

/// Works in `d` of a mount with every operation, without following a link. Most of them fail while
/// `d` is a link.
fn work(mount: &OwnedFd, id: u64, round: u64) {
    for path in [
        "d/f".to_owned(),
        "d/g".to_owned(),
        format!(".snapshots/{id}/d/f"),
        format!(".snapshots/{id}/d/g"),
    ] {
        let mut text = String::new();
        if beneath(mount, &path, OFlags::RDONLY)
            .is_some_and(|mut file| file.read_to_string(&mut text).is_ok())
        {
            assert!(!text.contains(SECRET), "the daemon left the tree at {path}");
        }
    }
    if let Some(mut file) = beneath(mount, "d/g", OFlags::WRONLY | OFlags::APPEND) {
        let _ = file.write_all(b"+");
    }
    drop(beneath(
        mount,
        &format!("d/new-{}", round % 5),
        OFlags::WRONLY | OFlags::CREATE,
    ));
    let Some(dir) = beneath(mount, "d", OFlags::RDONLY | OFlags::DIRECTORY) else {
        return;
    };
    let _ = unlinkat(&dir, format!("new-{}", (round + 3) % 5), AtFlags::empty());
    let _ = renameat_with(&dir, "new-1", &dir, "new-2", RenameFlags::empty());
    let _ =
        mkdirat(&dir, "sub", Mode::RWXU).and_then(|()| unlinkat(&dir, "sub", AtFlags::REMOVEDIR));
    let _ = linkat(&dir, "g", &dir, "h", AtFlags::empty())
        .and_then(|()| unlinkat(&dir, "h", AtFlags::empty()));
    let _ = symlinkat("x", &dir, "s").and_then(|()| unlinkat(&dir, "s", AtFlags::empty()));
    let _ = chmodat(&dir, "g", Mode::from_raw_mode(0o600), AtFlags::empty());
}

fn swaps_below_the_mount_lead_nowhere(v: Variant) {
    let image = Image::of(v.fs);
    let outside = Outside::new(&image);
    let (backing, point) = (image.dir("project"), image.dir("mnt"));
    fill(&backing, &outside.dir);
    let mount = Mount::start(
        &backing,
        &MountOpts {
            mountpoint: Some(point.clone()),
            ..MountOpts::new(v.io)
        },
    );
    let id = mount.checkpoint();
    let through = rustix::fs::open(
        &point,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .expect("open");
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut followed = 0_u64;
    thread::scope(|scope| {
        scope.spawn(|| swap(&backing, &stop, &swaps));
        let _stop = Stop(&stop);
        let began = Instant::now();
        let mut round = 0_u64;
        let shown = |followed: u64| swaps.load(Ordering::Relaxed) > 100 && followed > 0;
        while began.elapsed() < WORK || (!shown(followed) && began.elapsed() < WORK_MAX) {
            round += 1;
            work(&through, id, round);
            if round % 100 == 1 {
                for verb in [
                    &["checkpoint"][..],
                    &["diff", "1"],
                    &["status"],
                    &["restore", "1", "d"],
                    &["restore", "1", "d/f"],
                    // `d` may have been restored while it was the link: then no link remains.
                    &["restore", "1"],
                ] {
                    let _ = mount.run(verb);
                }
            }
            // Negative control: an access by path follows the swapped link.
            followed += u64::from(read(&backing.join("d/f")).as_deref() == Some(SECRET));
        }
    });
    drop(through);
    outside.is_untouched();
    eprintln!(
        "{} swaps, {followed} reads by path left the tree",
        swaps.load(Ordering::Relaxed)
    );
    assert!(
        swaps.load(Ordering::Relaxed) > 100 && followed > 0,
        "the swaps were too slow to have an effect"
    );
}

fn swaps_in_the_mount_lead_nowhere(v: Variant) {
    let image = Image::of(v.fs);
    let outside = Outside::new(&image);
    let dir = image.dir("project");
    fill(&dir, &outside.dir);
    let mount = Mount::start(&dir, &MountOpts::new(v.io));
    let root = mount.path();
    let id = mount.checkpoint();
    let through = rustix::fs::open(
        root,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .expect("open");
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut followed = 0_u64;
    thread::scope(|scope| {
        scope.spawn(|| swap(root, &stop, &swaps));
        let _stop = Stop(&stop);
        let began = Instant::now();
        let mut round = 0_u64;
        let shown = |followed: u64| swaps.load(Ordering::Relaxed) > 20 && followed > 0;
        while began.elapsed() < WORK || (!shown(followed) && began.elapsed() < WORK_MAX) {
            round += 1;
            let then = mount.view(id);
            work(&through, id, round);
            let past = fs::read_to_string(then.join("d/f"));
            assert_eq!(
                past.expect("the view always has a directory there"),
                "inside"
            );
            assert_eq!(
                fs::read_link(then.join("l")).expect("and it always has a link here"),
                outside.dir
            );
            for verb in [
                &["restore", "1", "d/f"][..],
                &["restore", "1", "d"],
                &["diff", "1"],
                &["restore", "1"],
            ] {
                if round.is_multiple_of(8) {
                    let _ = mount.run(verb);
                }
            }
            followed += u64::from(read(&root.join("d/f")).as_deref() == Some(SECRET));
        }
    });
    drop(through);
    outside.is_untouched();
    eprintln!(
        "{} swaps, {followed} reads by path left the tree",
        swaps.load(Ordering::Relaxed)
    );
    assert!(
        swaps.load(Ordering::Relaxed) > 20 && followed > 0,
        "the swaps were too slow to have an effect"
    );
    mount.ok(&["restore", "1"]);
    assert_eq!(read(&root.join("d/f")).as_deref(), Some("inside"));
}

/// A rename waits for a restore, with dentries that the kernel resolved before. Nothing of the
/// directory that the restore replaced remains, wherever the rename moved it.
fn what_the_kernel_had_for_a_name_does_not_move_to_another(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        for name in ["d", "l"] {
            fs::create_dir(dir.join(name)).expect("mkdir");
            put(dir.join(name).join("f"), name);
        }
    });
    let root = rig.path();
    let id = rig.mount.checkpoint().to_string();
    for round in 0..ROUNDS {
        // The restore replaces only this directory.
        fs::remove_dir_all(root.join("d")).expect("remove");
        fs::create_dir(root.join("d")).expect("mkdir");
        let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| swap(root, &stop, &swaps));
            let _stop = Stop(&stop);
            while swaps.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            rig.mount.ok(&["restore", &id]);
        });
        // Without a listing first, because that would refresh the kernel's dentries.
        for name in ["d", "l"] {
            let brought = fs::read(root.join(name).join("f"));
            brought.unwrap_or_else(|error| panic!("{name}/f in round {round}: {error}"));
        }
    }
}
