//! A failing disk: a sparse image on a small tmpfs that runs full, so that writes to unallocated
//! blocks return EIO.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::common::tree::{assert_tree_is, tree_without};
use crate::common::{Fs, Image, Io, Mount, MountOpts, TreeOpts, run_limited, skip, succeeds, tool};

/// Size of the tmpfs: the filesystem, the tree, the first checkpoint, and a small margin.
const TMPFS_BYTES: u64 = 96 << 20;
const DISK_BYTES: u64 = 1 << 30;

/// A filesystem on a disk that can be made to fail.
struct FailingDisk {
    // In drop order.
    point: PathBuf,
    below: Image,
}

impl FailingDisk {
    fn new() -> FailingDisk {
        let below = Image::new(Fs::Tmpfs, TMPFS_BYTES);
        let (image, point) = (below.path().join("disk.img"), below.dir("disk"));
        File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        succeeds(
            tool(
                "mkfs.ext4",
                &["-q", "-F", "-E", "nodiscard,lazy_itable_init=1"],
            )
            .arg(&image),
            60,
        );
        // Continues after errors, as is usual for servers.
        succeeds(
            tool("mount", &["-t", "ext4", "-o", "loop,errors=continue"])
                .arg(&image)
                .arg(&point),
            60,
        );
        FailingDisk { point, below }
    }

    /// From now on writes to unallocated blocks fail.
    fn breaks(&self) {
        let mut number = 0;
        for size in [1 << 20, 4 << 10] {
            let block = vec![1; size];
            while fs::write(
                self.below.path().join(format!("filler-{size}-{number}")),
                &block,
            )
            .is_ok()
            {
                number += 1;
            }
        }
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        let done = run_limited(tool("umount", &[&self.point]).arg("-l"), 60);
        if !done.status.success() {
            eprintln!("harness: {} is still mounted", self.point.display());
        }
    }
}

#[test]
fn a_disk_that_fails_ends_the_keeping_and_loses_nothing() {
    if let Some(reason) = Fs::Tmpfs.unavailable().or_else(|| Fs::Ext4.unavailable()) {
        return skip(&reason);
    }
    let disk = FailingDisk::new();
    let (backing, point) = (disk.point.join("project"), disk.point.join("here"));
    fs::create_dir(&backing).unwrap();
    fs::create_dir(&point).unwrap();
    let opts = MountOpts {
        mountpoint: Some(point),
        ..MountOpts::new(Io::Daemon)
    };
    let mount = Mount::start(&backing, &opts);
    for number in 0..20 {
        fs::write(
            mount.path().join(format!("f{number}")),
            vec![number as u8; 50_000],
        )
        .unwrap();
    }
    let id: u64 = mount.ok(&["checkpoint", "--sync"]).trim().parse().unwrap();
    let was = tree_without(&backing, &[".ckptfs".to_owned()]);
    disk.breaks();
    // Each first write copies 50,000 bytes to unallocated blocks; the fsync reports the error.
    let mut errors = 0;
    for number in 0..20 {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(mount.path().join(format!("f{number}")))
            .unwrap();
        let written = file.write_all_at(b"XX", 0).and_then(|()| file.sync_all());
        errors +=
            u32::from(written.is_err_and(|error| {
                matches!(error.raw_os_error(), Some(libc::EIO | libc::ENOSPC))
            }));
    }
    eprintln!("{errors} of 20 writes with fsync failed");
    assert!(errors > 0, "the disk fails");
    assert!(
        !mount.run(&["checkpoint", "--sync"]).status.success(),
        "only synced data is acknowledged"
    );
    let status = mount.run(&["status"]);
    let said = String::from_utf8_lossy(&[status.stdout, status.stderr].concat()).into_owned();
    assert!(
        said.contains("cannot be written"),
        "status reports it: {said}"
    );
    // The content is in the page cache or on an allocated block.
    assert_tree_is(&mount.view(id), &was, &TreeOpts::default());
    for number in 0..20 {
        assert_eq!(
            fs::read(mount.path().join(format!("f{number}")))
                .unwrap()
                .len(),
            50_000
        );
    }
}
