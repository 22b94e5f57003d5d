//! A disk without one free block or inode, and nothing in reserve: it is mounted, taken over, and
//! freed all the same, and nothing is lost.
//!
//! Story: on an XFS that its user had filled, the worker was killed. Five others failed to make an
//! index, and the mount was gone; `ckptfs mount` set the good index aside as unreadable and failed
//! too; and `gc` and `delete` wanted a mount.

use std::fs;
use std::io;
use std::process::Output;

use super::full::Full;
use crate::common::command::{TOOL_SECONDS, run_limited, succeeds, tool};
use crate::common::mount::VERB_SECONDS;
use crate::common::tree::{Tree, assert_tree_is, tree_without};
use crate::common::wait::{seen, wait_until};
use crate::common::{Fs, Image, Io, Mount, MountOpts, TreeOpts, Variant, skip};

/// Who filled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Somebody's files.
    User,
    /// Captured versions.
    Captures,
    /// Files without content.
    Inodes,
}

const FILES: usize = 40;
const CHECKPOINTS: u64 = 8;

fn image(fs: Fs, by: By) -> Image {
    match (fs, by) {
        (Fs::Ext4, By::Inodes) => Image::with(fs, 64 << 20, &["-N", "900"]),
        (Fs::Ext4, _) => Image::in_memory(fs, 64 << 20),
        (Fs::Tmpfs, _) => {
            let image = Image::new(fs, 24 << 20);
            if by == By::Inodes {
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

fn offline(full: &Full, arguments: &[&str]) -> Output {
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

/// Every checkpoint from the one given on is what it was, and the live tree too; and nothing was
/// taken for damage.
#[track_caller]
fn nothing_is_lost(full: &Full, views: &[(u64, Tree)], from: u64, live: &Tree) {
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

fn history(full: &Full) -> Vec<(u64, Tree)> {
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

/// Mounts again. XFS refuses a new inode, and so a control socket, without some hundred blocks
/// beside those that it keeps for itself: then the tree is served, and who removes something has
/// the verbs back.
fn mount_again(full: &mut Full, io: Io) {
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

/// Takes what has come free meanwhile, past the mount.
fn fill_again(full: &Full, by: By) {
    fill(full, if by == By::Captures { By::User } else { by });
}

fn fill(full: &Full, by: By) {
    match by {
        By::User => {}
        By::Captures => {
            let large = full.path("large");
            let write = |round: u8| {
                fs::write(&large, vec![round; 2 << 20]).is_ok()
                    && full.mount.run(&["checkpoint"]).status.success()
            };
            assert!((0..=u8::MAX).any(|round| !write(round)), "it is full");
        }
        By::Inodes => {
            let made = (0..2000)
                .take_while(|number| {
                    fs::write(full.image.path().join(format!("filler-i{number}")), "").is_ok()
                })
                .count();
            assert!(made < 2000, "it is full");
            return;
        }
    }
    full.fill();
}

fn a_full_disk(fs: Fs, by: By) {
    let io = if fs.has_reflink() {
        Io::Passthrough
    } else {
        Io::Daemon
    };
    if let Some(reason) = (Variant { fs, io }).unavailable() {
        return skip(&reason);
    }
    let mut full = Full::new(image(fs, by), io);
    let views = history(&full);
    let reserve = full.backing.join(".ckptfs/reserve");
    wait_until("the reserve is made", || reserve.join("ballast-0").exists());
    fill(&full, by);
    // All is used up but what the past never gets.
    for entry in fs::read_dir(&reserve)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("ballast-0"))
    {
        let removed = match entry.is_dir() {
            true => fs::remove_dir_all(entry),
            false => fs::remove_file(entry),
        };
        // The daemon gives up an empty file itself where inodes are lacking.
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
    // There is room again: what was in memory only is on disk.
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
            a_full_disk(Fs::$fs, By::$by);
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
