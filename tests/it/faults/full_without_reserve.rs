//! A disk without a free block or inode, and without a reserve: it is mounted, taken over and freed
//! without any loss.
//!
//! Failed before: on an XFS filled by its user the worker was killed. Five successors failed to
//! create an index, and the mount was gone. `ckptfs mount` set the intact index aside as unreadable
//! and also failed; `gc` and `delete` required a mount.

use std::fs;
use std::io;
use std::process::Output;

use super::full::FullDisk;
use crate::common::command::{TOOL_SECONDS, run_limited, succeeds, tool};
use crate::common::mount::VERB_SECONDS;
use crate::common::tree::{Tree, assert_tree_is, tree_without};
use crate::common::wait::{seen, wait_until};
use crate::common::{Fs, Image, Io, Mount, MountOpts, TreeOpts, Variant, skip};

/// The cause of the full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilledBy {
    /// Files outside the store.
    User,
    /// Captured versions.
    Captures,
    /// Empty files.
    Inodes,
}

const FILES: usize = 40;
const CHECKPOINTS: u64 = 8;

fn image(fs: Fs, by: FilledBy) -> Image {
    match (fs, by) {
        (Fs::Ext4, FilledBy::Inodes) => Image::with(fs, 64 << 20, &["-N", "900"]),
        (Fs::Ext4, _) => Image::in_memory(fs, 64 << 20),
        (Fs::Tmpfs, _) => {
            let image = Image::new(fs, 24 << 20);
            if by == FilledBy::Inodes {
                succeeds(
                    tool("mount", &["-o", "remount,nr_inodes=900"]).arg(image.path()),
                    TOOL_SECONDS,
                );
            }
            image
        }
        _ => Image::in_memory(fs, 320 << 20),
    }
}

fn offline(full: &FullDisk, arguments: &[&str]) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ckptfs"));
    run_limited(
        command.arg("-C").arg(&full.backing).args(arguments),
        VERB_SECONDS,
    )
}

#[track_caller]
fn works(output: &Output) {
    let said = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}: {said:?}", output.status);
}

/// Checks that the live tree and all checkpoints from `from` on are unchanged, and that nothing was
/// set aside as damaged.
#[track_caller]
fn nothing_is_lost(full: &FullDisk, views: &[(u64, Tree)], from: u64, live: &Tree) {
    views
        .iter()
        .filter(|(id, _)| *id >= from)
        .for_each(|(id, was)| full.kept(*id, was));
    assert_tree_is(full.mount.path(), live, &TreeOpts::default());
    let names = fs::read_dir(full.backing.join(".ckptfs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let aside: Vec<String> = names
        .filter(|name| name.starts_with("index.bad") || name == "aside")
        .collect();
    assert!(aside.is_empty(), "{aside:?}");
}

fn history(full: &FullDisk) -> Vec<(u64, Tree)> {
    let work = |round: u64| {
        for number in 0..FILES {
            fs::write(
                full.path(&format!("f{number}")),
                vec![b'a' + (round % 26) as u8; 900 + number],
            )
            .unwrap();
        }
        let id = full.mount.checkpoint();
        (id, full.live())
    };
    (0..CHECKPOINTS).map(work).collect()
}

/// Mounts again. XFS refuses a new inode, and therefore a control socket, without several hundred
/// free blocks beyond its own reserve. The tree is then served without verbs, until space is freed.
fn mount_again(full: &mut FullDisk, io: Io) {
    let opts = MountOpts {
        mountpoint: Some(full.mount.path().to_owned()),
        ..MountOpts::new(io)
    };
    works(&Mount::try_start(&full.backing, &opts));
    if full.image.fs() == Fs::Xfs && !full.mount.run(&["status"]).status.success() {
        assert!(fs::read(full.path("f1")).is_ok(), "the tree is served");
        let filler = fs::OpenOptions::new()
            .write(true)
            .open(full.image.path().join("filler"))
            .unwrap();
        filler
            .set_len(filler.metadata().unwrap().len().saturating_sub(24 << 20))
            .unwrap();
        wait_until("the verbs work", || {
            let asked = full.mount.run(&["status"]);
            seen(asked.status.success(), asked)
        });
    }
    full.mount.adopt();
}

/// Fills the freed space, outside the mount.
fn fill_again(full: &FullDisk, by: FilledBy) {
    fill(
        full,
        if by == FilledBy::Captures {
            FilledBy::User
        } else {
            by
        },
    );
}

fn fill(full: &FullDisk, by: FilledBy) {
    match by {
        FilledBy::User => {}
        FilledBy::Captures => {
            let large = full.path("large");
            let write = |round: u8| {
                fs::write(&large, vec![round; 2 << 20]).is_ok()
                    && full.mount.run(&["checkpoint"]).status.success()
            };
            assert!(
                (0..=u8::MAX).any(|round| !write(round)),
                "the filesystem is full"
            );
        }
        FilledBy::Inodes => {
            let made = (0..2000)
                .take_while(|number| {
                    fs::write(full.image.path().join(format!("filler-i{number}")), "").is_ok()
                })
                .count();
            assert!(made < 2000, "the filesystem is full");
            return;
        }
    }
    full.fill();
}

fn a_full_disk(fs: Fs, by: FilledBy) {
    let io = if fs.has_reflink() {
        Io::Passthrough
    } else {
        Io::Daemon
    };
    if let Some(reason) = (Variant { fs, io }).unavailable() {
        return skip(&reason);
    }
    let mut full = FullDisk::new(image(fs, by), io);
    let views = history(&full);
    let reserve = full.backing.join(".ckptfs/reserve");
    wait_until("the reserve is allocated", || {
        reserve.join("ballast-0").exists()
    });
    fill(&full, by);
    // Nothing is left of the reserve except the part not available to captures.
    for entry in fs::read_dir(&reserve)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("ballast-0"))
    {
        let removed = match entry.is_dir() {
            true => fs::remove_dir_all(entry),
            false => fs::remove_file(entry),
        };
        // Without free inodes the daemon releases an empty file itself.
        let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        assert!(removed.as_ref().err().is_none_or(gone), "{removed:?}");
    }
    fill_again(&full, by);
    let live = full.live();
    full.mount.replace_worker();
    nothing_is_lost(&full, &views, 1, &live);
    full.mount.umount();
    mount_again(&mut full, io);
    nothing_is_lost(&full, &views, 1, &live);
    full.mount.kill();
    mount_again(&mut full, io);
    nothing_is_lost(&full, &views, 1, &live);
    full.mount.ok(&["delete", "1"]);
    full.mount.ok(&["delete", "--now", "2"]);
    fill_again(&full, by);
    full.mount.umount();
    works(&offline(&full, &["delete", "3"]));
    works(&offline(&full, &["delete", "--now", "-y", "4"]));
    works(&offline(&full, &["gc", "--dry-run", "--keep-last", "1"]));
    fill_again(&full, by);
    mount_again(&mut full, io);
    nothing_is_lost(&full, &views, 5, &live);
    full.mount.ok(&["gc", "--yes"]);
    full.mount.umount();
    works(&offline(&full, &["gc", "--yes", "--keep-last", "3"]));
    mount_again(&mut full, io);
    nothing_is_lost(&full, &views, CHECKPOINTS + 1, &live);
    // With free space the index, which was only in memory, is written to disk.
    full.free();
    full.mount.umount();
    mount_again(&mut full, io);
    assert_eq!(full.mount.status_json()["warnings"].to_string(), "[]");
    let last = full.mount.json(&["log"])[0]["id"].as_u64().unwrap();
    fs::write(full.path("f0"), "room again").unwrap();
    full.mount.restore(last);
    assert_tree_is(
        full.mount.path(),
        &tree_without(&full.mount.view(last), &[]),
        &TreeOpts::default(),
    );
}

macro_rules! cases {
    ($($name:ident: $fs:ident $by:ident;)+) => {
        $(#[test]
        fn $name() {
            a_full_disk(Fs::$fs, FilledBy::$by);
        })+
    };
}

cases! {
    xfs_by_its_user: Xfs User;
    xfs_by_captures: Xfs Captures;
    btrfs_by_its_user: Btrfs User;
    btrfs_by_captures: Btrfs Captures;
    ext4_by_its_user: Ext4 User;
    ext4_by_captures: Ext4 Captures;
    ext4_by_inodes: Ext4 Inodes;
    tmpfs_by_its_user: Tmpfs User;
    tmpfs_by_captures: Tmpfs Captures;
    tmpfs_by_inodes: Tmpfs Inodes;
}
