//! Filesystems without free blocks or free inodes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::common::command::{TOOL_SECONDS, succeeds, tool};
use crate::common::tree::{Tree, assert_tree_is, tree, tree_without};
use crate::common::wait::wait_until;
use crate::common::{Fs, Image, Io, Mount, MountOpts, TreeOpts, Variant, for_each_variant, skip};

for_each_variant! { reflink => what_keeps_the_past_goes_on }

const SMALL: usize = 240;
const LARGE: usize = 20;

/// A full filesystem with a mount at another place than its backing directory.
pub struct FullDisk {
    pub mount: Mount,
    pub backing: PathBuf,
    pub image: Image,
}

impl FullDisk {
    pub fn new(image: Image, io: Io) -> FullDisk {
        let (backing, point) = (image.dir("project"), image.dir("here"));
        let mount = Mount::start(
            &backing,
            &MountOpts {
                mountpoint: Some(point),
                ..MountOpts::new(io)
            },
        );
        FullDisk {
            mount,
            backing,
            image,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    /// Allocates all blocks, first with a large file, then with small ones.
    pub fn fill(&self) {
        if let Ok(mut file) = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.image.path().join("filler"))
        {
            for size in [1 << 20, 4 << 10] {
                let block = vec![0xa5; size];
                while file.write_all(&block).is_ok() {}
            }
            // Delayed allocation may find no space.
            let _ = file.sync_all();
        }
        let mut number = 0;
        while fs::write(
            self.image.path().join(format!("filler-{number}")),
            [1; 3000],
        )
        .is_ok()
            && number < 20_000
        {
            number += 1;
        }
    }

    pub fn free(&self) {
        for entry in fs::read_dir(self.image.path()).unwrap() {
            let path = entry.unwrap().path();
            if path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"filler"))
            {
                fs::remove_file(path).unwrap();
            }
        }
        File::open(self.image.path())
            .and_then(|dir| Ok(rustix::fs::syncfs(dir)?))
            .unwrap();
    }

    pub fn kept(&self, id: u64, was: &Tree) {
        assert_tree_is(&self.mount.view(id), was, &TreeOpts::default());
    }

    pub fn live(&self) -> Tree {
        tree(self.mount.path())
    }
}

fn small(number: usize) -> String {
    format!("sub/small-{number:03}")
}

fn populate(root: &Path) {
    fs::create_dir(root.join("sub")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    for number in 0..SMALL {
        fs::write(root.join(small(number)), format!("small {number}")).unwrap();
    }
    for number in 0..LARGE {
        fs::write(
            root.join(format!("large-{number}")),
            vec![number as u8; 200_000],
        )
        .unwrap();
    }
}

/// Checks that the operation succeeds or fails with ENOSPC or EDQUOT, and reports whether it
/// succeeded.
#[track_caller]
fn works_or_full(done: io::Result<()>) -> bool {
    match done {
        Ok(()) => true,
        Err(error) => {
            assert!(
                matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)),
                "{error}"
            );
            false
        }
    }
}

fn write(path: &Path, offset: u64, data: &[u8]) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open(path)?
        .write_all_at(data, offset)
}

/// Performs ten of each operation that needs no new space, and returns the number refused.
fn operate(full: &FullDisk, from: usize) -> Vec<(&'static str, usize)> {
    let root = full.mount.path();
    let at = |number: usize| root.join(small(from + number));
    let ten = |run: &dyn Fn(usize) -> io::Result<()>| {
        (0..10)
            .filter(|number| !works_or_full(run(*number)))
            .count()
    };
    vec![
        ("rename over", ten(&|n| fs::rename(at(n), at(10 + n)))),
        ("unlink", ten(&|n| fs::remove_file(at(20 + n)))),
        (
            "truncate",
            ten(&|n| OpenOptions::new().write(true).open(at(30 + n))?.set_len(0)),
        ),
        (
            "open to empty",
            ten(&|n| File::create(at(40 + n)).map(drop)),
        ),
        (
            "chmod",
            ten(&|n| fs::set_permissions(at(50 + n), fs::Permissions::from_mode(0o600))),
        ),
        (
            "rename",
            ten(&|n| fs::rename(at(60 + n), root.join(format!("sub/moved-{:03}", from + n)))),
        ),
        (
            "checkpoint",
            ten(&|_| match full.mount.run(&["checkpoint"]) {
                output if output.status.success() => Ok(()),
                output => {
                    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
                    Err(io::Error::from_raw_os_error(libc::ENOSPC))
                }
            }),
        ),
    ]
}

/// Negative control: without the reserve some operations fail.
#[test]
fn without_the_reserve_it_does_not() {
    if let Some(reason) = (Variant {
        fs: Fs::Xfs,
        io: Io::Daemon,
    })
    .unavailable()
    {
        return skip(&reason);
    }
    let full = FullDisk::new(Image::in_memory(Fs::Xfs, 320 << 20), Io::Daemon);
    populate(full.mount.path());
    let id = full.mount.checkpoint();
    let was = tree_without(&full.backing, &[".ckptfs".to_owned()]);
    let reserve = full.backing.join(".ckptfs/reserve");
    wait_until("the reserve is allocated", || {
        reserve.join("ballast-7").exists()
    });
    full.fill();
    fs::remove_dir_all(&reserve).unwrap();
    full.fill();
    let refused = operate(&full, 0);
    eprintln!("without the reserve, refused: {refused:?}");
    assert!(refused.iter().any(|(_, count)| *count > 0));
    full.kept(id, &was);
    full.free();
    full.kept(id, &was);
}

fn what_keeps_the_past_goes_on(v: Variant) {
    let mut full = FullDisk::new(Image::in_memory(v.fs, 320 << 20), v.io);
    populate(full.mount.path());
    let id = full.mount.checkpoint();
    let was = tree_without(&full.backing, &[".ckptfs".to_owned()]);
    let reserve = full.backing.join(".ckptfs/reserve");
    let ballast = |number: u32| {
        fs::metadata(reserve.join(format!("ballast-{number}"))).is_ok_and(|meta| meta.len() > 0)
    };
    wait_until("the reserve is allocated", || ballast(7));
    full.fill();
    assert!(
        fs::create_dir(full.image.path().join("no")).is_err()
            || File::create(full.image.path().join("no/room")).is_err()
            || v.fs == Fs::Btrfs
    );
    let refused = operate(&full, 0);
    eprintln!(
        "{v:?}: refused: {refused:?}; ballast left: {}",
        (0..8).filter(|n| ballast(*n)).count()
    );
    full.kept(id, &was);
    let writes = (0..LARGE)
        .filter(|n| works_or_full(write(&full.path(&format!("large-{n}")), 5000, b"XX")))
        .count();
    eprintln!("{v:?}: {writes} of {LARGE} first writes to large files worked");
    full.kept(id, &was);
    assert!(refused.iter().all(|(_, count)| *count == 0), "{refused:?}");
    let live = full.live();
    // Mounted again with the disk still full.
    full.mount.umount();
    full.mount.remount();
    full.kept(id, &was);
    assert_tree_is(full.mount.path(), &live, &TreeOpts::default());
    let second = full.mount.checkpoint();
    full.mount.ok(&["delete", &second.to_string()]);
    // Deletions free space: first of live files, then of their versions.
    fs::remove_dir_all(full.path("sub")).unwrap();
    fs::remove_dir(full.path("empty")).unwrap();
    full.kept(id, &was);
    full.free();
    wait_until("the reserve is allocated again", || ballast(7));
    full.mount.restore(id);
    full.kept(id, &was);
    write(&full.path("large-0"), 0, b"there is room again").unwrap();
    let last = full.mount.checkpoint();
    assert_eq!(
        &fs::read(full.mount.view(last).join("large-0")).unwrap()[..5],
        b"there"
    );
    full.kept(id, &was);
    // After a mount the index, which was only in memory, is on disk.
    full.mount.umount();
    full.mount.remount();
    assert_eq!(full.mount.status_json()["warnings"].to_string(), "[]");
}

/// A btrfs quota that is used up. Failed before: unlike on a full disk, pwrite(2) to allocated
/// space and ftruncate(2) fail there, which made the journal fail permanently.
#[test]
fn a_quota_of_btrfs_that_is_used_up() {
    let v = Variant {
        fs: Fs::Btrfs,
        io: Io::Passthrough,
    };
    if let Some(reason) = v.unavailable() {
        return skip(&reason);
    }
    let image = Image::in_memory(v.fs, 1 << 30);
    let (root, project) = (image.path().to_owned(), image.path().join("project"));
    let btrfs = |arguments: &[&Path]| {
        succeeds(&mut tool("btrfs", arguments), TOOL_SECONDS);
    };
    btrfs(&[Path::new("quota"), Path::new("enable"), &root]);
    btrfs(&[Path::new("subvolume"), Path::new("create"), &project]);
    btrfs(&[
        Path::new("qgroup"),
        Path::new("limit"),
        Path::new("60M"),
        &project,
    ]);
    let mut full = FullDisk::new(image, v.io);
    populate(full.mount.path());
    let id = full.mount.checkpoint();
    let was = tree_without(&full.backing, &[".ckptfs".to_owned()]);
    let reserve = full.backing.join(".ckptfs/reserve/ballast-7");
    wait_until("the reserve is allocated", || reserve.exists());
    let filler = full.path("filler");
    let mut file = File::create(&filler).unwrap();
    let block = vec![0xa5; 64 << 10];
    while works_or_full(file.write_all(&block)) {}
    let _ = file.sync_all();
    drop(file);
    // No operation fails with another error.
    for number in 0..LARGE / 4 {
        let large = |n: usize| full.path(&format!("large-{}", 4 * number + n));
        let _ = works_or_full(fs::remove_file(large(0)));
        let _ = works_or_full(fs::rename(large(1), full.path(&small(number))));
        let _ = works_or_full(File::create(large(2)).map(drop));
        let _ = works_or_full(fs::set_permissions(
            large(3),
            fs::Permissions::from_mode(0o600),
        ));
    }
    full.kept(id, &was);
    fs::remove_file(&filler).unwrap();
    File::open(&root)
        .and_then(|dir| Ok(rustix::fs::syncfs(dir)?))
        .unwrap();
    write(&full.path("large-3"), 0, b"there is room again").unwrap();
    fs::remove_file(full.path("large-7")).unwrap();
    full.kept(id, &was);
    full.mount.umount();
    full.mount.remount();
    full.mount.checkpoint();
    full.mount.restore(id);
    full.kept(id, &was);
    assert_eq!(full.mount.status_json()["warnings"].to_string(), "[]");
}

/// Small filesystems without reflink: every operation succeeds or fails with ENOSPC.
fn everything_works_or_says_so(image: Image) {
    let mut full = FullDisk::new(image, Io::Daemon);
    for number in 0..12 {
        fs::write(full.path(&format!("f{number}")), format!("{number}")).unwrap();
    }
    let id = full.mount.checkpoint();
    let was = tree_without(&full.backing, &[".ckptfs".to_owned()]);
    full.fill();
    let mut made = 0;
    while works_or_full(fs::write(full.path(&format!("new-{made}")), "new")) {
        made += 1;
        assert!(made < 20_000, "the filesystem is full");
    }
    let _ = works_or_full(write(&full.path("f0"), 0, b"X"));
    let _ = works_or_full(fs::rename(full.path("f1"), full.path("f2")));
    let _ = works_or_full(fs::remove_file(full.path("f3")));
    let _ = works_or_full(
        OpenOptions::new()
            .write(true)
            .open(full.path("f4"))
            .and_then(|file| file.set_len(0)),
    );
    let _ = works_or_full(fs::create_dir(full.path("dir")));
    let _ = works_or_full(fs::hard_link(full.path("f5"), full.path("link")));
    let _ = full.mount.run(&["checkpoint"]);
    full.kept(id, &was);
    for entry in fs::read_dir(full.mount.path()).unwrap() {
        let name = entry.unwrap().file_name();
        if name.as_encoded_bytes().starts_with(b"new-") {
            fs::remove_file(full.mount.path().join(name))
                .expect("a file in no checkpoint can always be deleted");
        }
    }
    full.free();
    full.kept(id, &was);
    write(&full.path("f6"), 0, b"again").unwrap();
    let next = full.mount.checkpoint();
    full.mount.umount();
    full.mount.remount();
    full.kept(id, &was);
    full.mount.restore(id);
    full.mount.ok(&["delete", "--now", &next.to_string()]);
    full.kept(id, &was);
}

#[test]
fn a_small_tmpfs() {
    match Fs::Tmpfs.unavailable() {
        Some(reason) => skip(&reason),
        None => everything_works_or_says_so(Image::new(Fs::Tmpfs, 14 << 20)),
    }
}

#[test]
fn an_ext4_with_few_inodes() {
    match Fs::Ext4.unavailable() {
        Some(reason) => skip(&reason),
        None => everything_works_or_says_so(Image::with(Fs::Ext4, 64 << 20, &["-N", "160"])),
    }
}
