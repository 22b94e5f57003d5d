//! Recognizes mounts of ckptfs in the mount table, and decides which mounts to trust.
//!
//! Any user may mount a FUSE filesystem with any type and source, and report any attributes for its
//! files. The user who mounted it cannot be forged: the kernel takes it from the caller of
//! mount(2), or from fusermount3, and reports it in the mount table (`user_id=`).

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::args::MountPoint;

/// Prefix of the source of our mounts; the path of the backing directory follows.
const SOURCE_PREFIX: &str = "ckptfs#";

/// Filesystem type of our mounts in the mount table.
#[cfg(target_os = "linux")]
const FS_TYPE: &str = "fuse.ckptfs";

/// Returns the source that `/proc/mounts` shows for a mount that serves `backing`.
///
/// Every way of mounting preserves it: fusermount3 joins its options by commas. Commas,
/// backslashes, percent signs, control characters and bytes that are not UTF-8 become `%2C` and the
/// like. Distinct paths have distinct sources.
pub fn mount_source(backing: &Path) -> String {
    let path = backing.as_os_str().as_bytes();
    let mut source = String::with_capacity(SOURCE_PREFIX.len() + path.len());
    source.push_str(SOURCE_PREFIX);
    for chunk in path.utf8_chunks() {
        for character in chunk.valid().chars() {
            if matches!(character, ',' | '\\' | '%') || character.is_ascii_control() {
                source.push_str(&format!("%{:02X}", u32::from(character)));
            } else {
                source.push(character);
            }
        }
        for byte in chunk.invalid() {
            source.push_str(&format!("%{byte:02X}"));
        }
    }
    source
}

/// The paths in the filesystem of device `dev` that another mount of the table covers.
pub(super) fn covered(table: &[MountPoint], dev: u64) -> impl Iterator<Item = PathBuf> {
    let below: HashMap<u64, &MountPoint> = table
        .iter()
        .filter(|mount| mount.dev == dev)
        .map(|mount| (mount.id, mount))
        .collect();
    table.iter().filter_map(move |mount| {
        let on = below.get(&mount.parent)?;
        let inside = mount.at.strip_prefix(&on.at).ok()?;
        let path = on.root.join(inside);
        let path = path.strip_prefix("/").ok()?.to_owned();
        (!path.as_os_str().is_empty()).then_some(path)
    })
}

/// Returns whether content that belongs to this user is trusted: the user is the caller or root.
pub fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == super::process::ids().0
}

/// Returns the topmost mount at `at`.
pub fn topmost_mount<'a>(mounts: &'a [MountPoint], at: &Path) -> Option<&'a MountPoint> {
    mounts.iter().rev().find(|mount| mount.at == at)
}

impl MountPoint {
    /// Returns whether type and source are those of a ckptfs mount, which any user can forge.
    pub fn says_ours(&self) -> bool {
        #[cfg(target_os = "linux")]
        let of_type = self.fs_type == FS_TYPE;
        #[cfg(not(target_os = "linux"))]
        let of_type = self.fs_type.contains("fuse");
        of_type && self.source.starts_with(SOURCE_PREFIX)
    }

    /// Returns whether it is a ckptfs mount made by the caller or root.
    pub fn is_ours(&self) -> bool {
        self.says_ours() && self.owner.is_some_and(is_trusted)
    }

    /// Returns whether it is a ckptfs mount that serves `backing`.
    pub fn serves(&self, backing: &Path) -> bool {
        self.is_ours() && self.source == mount_source(backing)
    }

    /// Returns the directory that it serves, if it is a ckptfs mount made by the caller or root.
    pub fn backing(&self) -> Option<PathBuf> {
        let mut rest = self
            .source
            .strip_prefix(SOURCE_PREFIX)
            .filter(|_| self.is_ours())?
            .as_bytes();
        let mut path = Vec::with_capacity(rest.len());
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            let code = (*byte == b'%').then(|| rest.split_at_checked(2)).flatten();
            let decoded = code.and_then(|(code, after)| {
                Some((
                    u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok()?,
                    after,
                ))
            });
            path.push(decoded.map_or(*byte, |(byte, _)| byte));
            rest = decoded.map_or(rest, |(_, after)| after);
        }
        Some(PathBuf::from(OsString::from_vec(path)))
    }

    /// Returns whether another user than the caller and root serves its content: that user controls
    /// the attributes and owners reported there.
    pub fn is_foreign(&self) -> bool {
        self.owner.is_some_and(|owner| !is_trusted(owner))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn a_source_cannot_carry_an_option() {
        let source = |path: &[u8]| mount_source(Path::new(OsStr::from_bytes(path)));
        assert_eq!(
            source(b"/srv/a,dev,100%\n"),
            "ckptfs#/srv/a%2Cdev%2C100%25%0A"
        );
        assert_eq!(source("/home/é x".as_bytes()), "ckptfs#/home/é x");
        assert_eq!(source(b"/\xff\xc3"), "ckptfs#/%FF%C3");
    }

    #[test]
    fn who_mounted_it_says_whose_it_is_and_its_name_does_not() {
        let mount = |fs_type: &str, source: &str, owner| MountPoint {
            id: 1,
            parent: 0,
            dev: 1,
            root: "/".into(),
            at: "/m".into(),
            read_only: false,
            fs_type: fs_type.into(),
            source: source.into(),
            owner,
        };
        let own = super::super::process::ids().0;
        for owner in [0, own] {
            let ours = mount("fuse.ckptfs", "ckptfs#/p", Some(owner));
            for path in [
                b"/p".as_slice(),
                b"/srv/a,dev,100%\n",
                b"/\xff\xc3%2",
                "/home/é x".as_bytes(),
            ] {
                let path = Path::new(OsStr::from_bytes(path));
                assert_eq!(
                    mount("fuse.ckptfs", &mount_source(path), Some(owner))
                        .backing()
                        .as_deref(),
                    Some(path)
                );
            }
            assert!(
                ours.is_ours()
                    && ours.serves(Path::new("/p"))
                    && !ours.serves(Path::new("/p/q"))
                    && !ours.is_foreign()
            );
        }
        let forged = mount("fuse.ckptfs", "ckptfs#/p", Some(own + 1));
        assert!(
            forged.says_ours()
                && forged.is_foreign()
                && !forged.is_ours()
                && !forged.serves(Path::new("/p"))
        );
        assert!(!mount("fuse.ckptfs", "ckptfs-like", Some(0)).is_ours());
        assert!(
            !mount("xfs", "ckptfs#/p", None).is_ours()
                && !mount("xfs", "/dev/a", None).is_foreign()
        );
    }

    #[test]
    fn a_mount_point_is_named_as_a_path_in_the_filesystem() {
        let mount = |id, parent, dev, root: &str, at: &str| MountPoint {
            id,
            parent,
            dev,
            root: root.into(),
            at: at.into(),
            read_only: false,
            fs_type: "tmpfs".into(),
            source: "none".into(),
            owner: None,
        };
        let table = [
            mount(1, 0, 7, "/", "/"),
            mount(2, 1, 9, "/", "/p"),
            mount(3, 2, 8, "/", "/p/a/cache"),
            mount(4, 3, 8, "/", "/p/a/cache/below"),
            mount(5, 1, 9, "/sub", "/alias"),
            mount(6, 5, 8, "/", "/alias/x"),
            mount(7, 2, 8, "/", "/p"),
            mount(8, 1, 8, "/", "/q"),
        ];
        let found: Vec<PathBuf> = covered(&table, 9).collect();
        assert_eq!(found, [PathBuf::from("a/cache"), PathBuf::from("sub/x")]);
    }
}
