//! The attributes of a path as they were.

use serde::Serialize;

use crate::past::StateTree;
use crate::time;
use ckptfs_api::TreePath;
use ckptfs_sys::{self as sys, Kind, SysResult, Time};

/// Attributes in the output of `--json`.
#[derive(Serialize)]
pub struct Shown {
    /// File type.
    pub kind: Kind,
    /// Permission bits, in octal.
    mode: String,
    /// In bytes.
    pub size: u64,
    uid: u32,
    gid: u32,
    /// Number of hard links.
    nlink: u32,
    /// Inode number; in a view it is not that of the live file.
    ino: u64,
    /// RFC 3339, UTC.
    modified: String,
    changed: String,
    /// The target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TreePath>,
    /// Names of extended attributes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    xattrs: Vec<TreePath>,
}

impl Shown {
    /// Returns kind and permissions in the format of `ls -l`.
    pub fn mode_text(&self) -> String {
        let kind = match self.kind {
            Kind::File => '-',
            Kind::Dir => 'd',
            Kind::Symlink => 'l',
            Kind::Fifo => 'p',
            Kind::Socket => 's',
            Kind::CharDev => 'c',
            Kind::BlockDev => 'b',
        };
        let bits = u32::from_str_radix(&self.mode, 8).unwrap_or(0);
        let mut text = String::from(kind);
        for (shift, special, mark) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
            let three = bits >> shift;
            text.push(if three & 4 != 0 { 'r' } else { '-' });
            text.push(if three & 2 != 0 { 'w' } else { '-' });
            text.push(match (bits & special != 0, three & 1 != 0) {
                (true, true) => mark,
                (true, false) => mark.to_ascii_uppercase(),
                (false, true) => 'x',
                (false, false) => '-',
            });
        }
        text
    }

    /// Returns the modification time in the local time zone.
    pub fn local_time(&self) -> String {
        time::local(&self.modified)
    }
}

fn rfc3339(time: Time) -> String {
    jiff::Timestamp::new(time.sec, time.nsec.cast_signed())
        .map(|time| time.to_string())
        .unwrap_or_default()
}

/// Returns the attributes of a path.
pub fn shown(tree: &StateTree, path: &TreePath) -> SysResult<Shown> {
    let there = tree.open_path(path)?;
    let stat = sys::stat_fd(&there)?;
    let target = if stat.kind == Kind::Symlink {
        Some(TreePath(sys::readlink_fd(&there)?))
    } else {
        None
    };
    let names = if matches!(stat.kind, Kind::File | Kind::Dir) {
        sys::listxattr(&there).unwrap_or_default()
    } else {
        Vec::new()
    };
    Ok(Shown {
        kind: stat.kind,
        mode: format!("{:04o}", stat.mode),
        size: stat.size,
        uid: stat.uid,
        gid: stat.gid,
        nlink: stat.nlink,
        ino: stat.ino,
        modified: rfc3339(stat.mtime),
        changed: rfc3339(stat.ctime),
        target,
        xattrs: names.into_iter().map(TreePath).collect(),
    })
}
