//! Many names in one directory, and many checkpoints.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};

use super::support::{get, put};
use super::{rss, size};
use crate::common::{Fs, Image, Io, MountOpts, Variant, skip};
use ckptfs_api::{CheckpointOptions, Client};

/// Maximum memory of the daemon, in bytes, for each name of a directory that is listed in a view.
/// The names are sorted in memory, and the kernel requests attributes.
const RSS_PER_NAME: u64 = 1500;
/// Maximum memory, in bytes, for each checkpoint.
const RSS_PER_CHECKPOINT: u64 = 8 << 10;

fn on_xfs(test: impl FnOnce(Variant)) {
    let v = Variant {
        fs: Fs::Xfs,
        io: Io::Daemon,
    };
    match v.unavailable() {
        Some(reason) => skip(&reason),
        None => test(v),
    }
}

#[test]
fn a_directory_with_very_many_names() {
    on_xfs(|v| {
        let count = size(30_000, 1_000_000);
        let limit = std::time::Duration::from_secs(3600);
        // XFS limits inodes to a quarter of the space.
        let image = Image::new(v.fs, (2 << 30) + count as u64 * 6000);
        let rig = v.start_on(
            image,
            MountOpts {
                limit,
                ..MountOpts::new(v.io)
            },
            |dir| {
                fs::create_dir(dir.join("wide")).expect("mkdir");
                for number in 0..count {
                    rustix::fs::mknodat(
                        rustix::fs::CWD,
                        dir.join(format!("wide/{number}")),
                        rustix::fs::FileType::Fifo,
                        Mode::RWXU,
                        0,
                    )
                    .expect("mknod");
                }
            },
        );
        let wide = rig.path().join("wide");
        let list = |what: &std::path::Path| {
            let began = Instant::now();
            let names = fs::read_dir(what)
                .expect("list")
                .inspect(|entry| assert!(entry.is_ok()))
                .count();
            eprintln!(
                "{names} names of {} in {:?}",
                what.display(),
                began.elapsed()
            );
            names
        };
        let before = rss(&rig.mount, "with the directory");
        let id = rig.mount.checkpoint();
        assert_eq!(list(&wide), count);
        put(wide.join("new"), "new");
        fs::remove_file(wide.join("7")).expect("rm");
        fs::rename(wide.join("8"), wide.join("eight")).expect("mv");
        assert_eq!(list(&wide), count);
        for _ in 0..2 {
            assert_eq!(list(&rig.view(id).join("wide")), count);
        }
        assert!(
            rig.view(id).join("wide/8").symlink_metadata().is_ok()
                && !rig.view(id).join("wide/new").exists()
        );
        assert_eq!(rig.mount.dirty(), ["wide/7", "wide/eight", "wide/new"]);
        let after = rss(&rig.mount, "after its listings");
        assert!(
            after < before + (64 << 20) + RSS_PER_NAME * count as u64,
            "{after}"
        );
        rig.mount.restore(id);
        assert_eq!(list(&wide), count);
    });
}

#[test]
fn very_many_checkpoints() {
    on_xfs(|v| {
        let count = size(1_000, 10_000) as u64;
        let mut rig = v.start();
        let (path, before) = (
            rig.path().join("f"),
            rss(&rig.mount, "without a checkpoint"),
        );
        let store: OwnedFd = rustix::fs::open(
            rig.path().join(".ckptfs"),
            OFlags::PATH | OFlags::DIRECTORY,
            Mode::empty(),
        )
        .expect("the store");
        let mut client = Client::connect(&store).expect("connect");
        let began = Instant::now();
        for number in 1..=count {
            if number % 10 == 1 {
                put(&path, number.to_string());
            }
            let tags = if number % 100 == 0 {
                vec![format!("tag-{number}")]
            } else {
                Vec::new()
            };
            let made = client
                .ask(CheckpointOptions {
                    tags,
                    ..CheckpointOptions::default()
                })
                .expect("a checkpoint");
            assert_eq!(made.id.0, number);
        }
        eprintln!("{count} checkpoints in {:?}", began.elapsed());
        drop((client, store));
        let after = rss(&rig.mount, "with them");
        assert!(
            after < before + (64 << 20) + RSS_PER_CHECKPOINT * count,
            "{after}"
        );
        let check = |rig: &crate::common::Rig| {
            assert_eq!(
                rig.mount.log_json().as_array().map(Vec::len),
                Some(count as usize)
            );
            let listed = fs::read_dir(rig.path().join(".snapshots"))
                .expect("list")
                .count() as u64;
            assert_eq!(listed, count + count / 100 + 1, "numbers, tags and latest");
            for number in [1, 2, 11, count / 2, count - 1, count] {
                assert_eq!(
                    get(rig.view(number).join("f")),
                    ((number - 1) / 10 * 10 + 1).to_string(),
                    "{number}"
                );
            }
            assert_eq!(get(rig.path().join(".snapshots/tag-100/f")), "91");
        };
        check(&rig);
        rig.mount.umount();
        let began = Instant::now();
        rig.mount.remount();
        eprintln!("mounted again in {:?}", began.elapsed());
        check(&rig);
        rss(&rig.mount, "mounted again");
    });
}

/// Failed before: each part of the listing was produced from a sorted list of all names. Listing
/// 82,000 names, which a container creates with mkdir(2) in 20 s, took 47 s. Deleting them took
/// quadratic time, because each deletion scanned all tags.
#[test]
fn names_of_snapshots_cost_what_they_are_and_not_all_there_are() {
    on_xfs(names_of_snapshots);
}

fn names_of_snapshots(v: Variant) {
    let rig = v.start();
    let dir = rig.path().join(".snapshots");
    let fill = |to: usize| {
        (fs::read_dir(&dir).expect("list").count() / 2..to)
            .for_each(|n| fs::create_dir(dir.join(format!("n{n}"))).expect("mkdir"))
    };
    let list = |count: usize| {
        fill(count);
        let names = || {
            fs::read_dir(&dir)
                .expect("list")
                .map(|entry| entry.expect("an entry").file_name())
                .collect::<Vec<_>>()
        };
        let mut all = names();
        all.sort();
        all.dedup();
        assert_eq!(
            all.len(),
            2 * count + 1,
            "numbers, names and latest, each once"
        );
        let anew = || {
            // Another checkpoint invalidates the kernel's cached listing.
            rig.mount
                .ok(&["delete", &rig.mount.checkpoint().to_string()]);
            let before = on_cpu(rig.mount.pid());
            assert_eq!(names().len(), 2 * count + 1);
            let took = on_cpu(rig.mount.pid()).saturating_sub(before);
            eprintln!("{count}: {took:?}");
            took
        };
        (0..3).map(|_| anew()).min().unwrap_or_default()
    };
    let (few, many) = (list(1000), list(8000));
    assert!(
        many < few * 24,
        "eight times as many names took {few:?} and {many:?}"
    );
}

/// Returns the CPU time of a process's threads, which does not depend on the load of the machine.
fn on_cpu(pid: u32) -> std::time::Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it is alive");
    let ran = |thread: fs::DirEntry| {
        let said = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        said.split(' ').next()?.parse::<u64>().ok()
    };
    std::time::Duration::from_nanos(threads.flatten().filter_map(ran).sum())
}
