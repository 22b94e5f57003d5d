//! Mounts of other users that imitate our mounts or cover them.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;

use super::support::put;
use super::trust::{NOBODY, ckptfs, said};
use crate::common::pool::mount_points;
use crate::common::{Fs, Image, Io, Mount, MountOpts};

/// A FUSE mount of another user that imitates our mount; no server replies.
struct ImitatedMount {
    at: PathBuf,
    _device: File,
}

impl ImitatedMount {
    fn of(backing: &Path, at: PathBuf) -> ImitatedMount {
        ImitatedMount::called(format!("ckptfs#{}", backing.display()), at)
    }

    fn called(source: String, at: PathBuf) -> ImitatedMount {
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .expect("/dev/fuse");
        // The options that fusermount3 passes for that user.
        let options = format!(
            "fd={},rootmode=40000,user_id={NOBODY},group_id={NOBODY},allow_other",
            device.as_raw_fd()
        );
        let options = CString::new(options).expect("options");
        rustix::mount::mount(
            source,
            &at,
            "fuse.ckptfs",
            MountFlags::NOSUID | MountFlags::NODEV,
            options.as_c_str(),
        )
        .expect("mount");
        ImitatedMount {
            at,
            _device: device,
        }
    }
}

impl Drop for ImitatedMount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Any user may mount a FUSE filesystem with the source `ckptfs#/srv/project`. Failed before: that
/// project could not be mounted ("already mounted"), `doctor` and `mount` waited for a reply of its
/// server, and trusted the reply.
#[test]
fn a_mount_that_somebody_else_made_is_not_ours_whatever_it_is_called() {
    let image = Image::of(Fs::Ext4);
    let project = image.dir("project");
    put(project.join("f"), "mine");
    let fake = ImitatedMount::of(&project, image.dir("fake"));
    let output = ckptfs(image.path(), &["doctor", "project"]);
    assert!(
        output.status.success() && said(&output).contains("mounted       no"),
        "{}",
        said(&output)
    );
    // The machine may have other stale mounts.
    assert!(
        !said(&output).contains(fake.at.to_str().expect("a path")),
        "{}",
        said(&output)
    );
    let output = ckptfs(image.path(), &["umount", "project"]);
    assert!(
        !output.status.success() && Path::new("/proc/self/mountinfo").exists(),
        "{}",
        said(&output)
    );
    assert!(
        mounted_at(&fake.at),
        "it was mistaken for the mount of the project"
    );
    let mut mount = Mount::start(&project, &MountOpts::new(Io::Daemon));
    mount.checkpoint();
    mount.umount();
    // Root unmounts it by its name, without waiting for its server.
    let output = ckptfs(image.path(), &["umount", "fake"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(!mounted_at(&fake.at));
}

/// Failed before: the check whether the mount is dead examined the covering mount, and "is
/// unmounted" was printed for a mount that remained.
#[test]
fn umount_takes_nothing_away_that_is_covered_and_says_so() {
    let image = Image::of(Fs::Ext4);
    let project = image.dir("project");
    let mut mount = Mount::start(&project, &MountOpts::new(Io::Daemon));
    for dead in [false, true] {
        let mut fake = ImitatedMount::called("anything".into(), project.clone());
        if dead {
            fake._device = File::open("/dev/null").expect("open");
        }
        let output = ckptfs(image.path(), &["umount", "project"]);
        assert!(
            !output.status.success()
                && said(&output).contains("is hidden")
                && said(&output).contains("umount "),
            "{}",
            said(&output)
        );
        drop(fake);
        assert!(mounted_at(&project) && project.join(".snapshots").exists());
    }
    mount.umount();
}

/// A mount that covers ours is not taken for ours.
#[test]
fn a_mount_of_somebody_else_over_ours_is_not_taken_for_it() {
    let image = Image::of(Fs::Ext4);
    let (tree, point) = (image.dir("tree"), image.dir("point"));
    put(tree.join("f"), "mine");
    let mount = Mount::start(
        &tree,
        &MountOpts {
            mountpoint: Some(point.clone()),
            ..MountOpts::new(Io::Daemon)
        },
    );
    mount.checkpoint();
    let fake = ImitatedMount::of(&tree, point);
    // The command works by the served directory; `show` reads through the mount, which is covered.
    assert!(ckptfs(&tree, &["status"]).status.success());
    let output = ckptfs(&tree, &["show", "latest:f"]);
    assert!(!output.status.success(), "{}", said(&output));
    drop(fake);
    assert_eq!(said(&ckptfs(&tree, &["show", "latest:f"])), "mine");
}

fn mounted_at(path: &Path) -> bool {
    mount_points().iter().any(|point| point == path)
}
