//! `ckptfs stat`, and the attributes in other verbs.

use std::ffi::OsString;

use serde::Serialize;

use super::context::Context;
use super::error::Outcome;
use super::past::Tree;
use super::{past, time};
use crate::engine::api::TreePath;
use crate::sys::{self, Kind, SysResult, Time};

/// Show the attributes of a path as they were
#[derive(Debug, clap::Args)]
pub struct Args {
    /// State and path, such as `latest:src/main.rs`
    #[arg(value_name = "ID:PATH")]
    path: OsString,
}

/// Attributes in the output of `--json`.
#[derive(Serialize)]
pub struct Shown {
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
    /// Target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TreePath>,
    /// Names of extended attributes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    xattrs: Vec<TreePath>,
}

impl Shown {
    /// Formats kind and permissions as `ls -l` does.
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

    /// Formats the modification time.
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
pub fn shown(tree: &Tree, path: &TreePath) -> SysResult<Shown> {
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

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let found = past::find(context.dir(), &args.path)?;
    let shown = shown(&found.tree, &found.path).map_err(|cause| found.failed(cause))?;
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&shown)?);
    }
    let mut lines = vec![
        ("mode", format!("{} ({})", shown.mode_text(), shown.mode)),
        ("size", shown.size.to_string()),
        ("owner", format!("{}:{}", shown.uid, shown.gid)),
        ("links", shown.nlink.to_string()),
        ("modified", shown.local_time()),
        ("changed", time::local(&shown.changed)),
    ];
    let lossy = |path: &TreePath| String::from_utf8_lossy(&path.0).into_owned();
    lines.extend(
        shown
            .target
            .as_ref()
            .map(|target| ("target", lossy(target))),
    );
    lines.extend(shown.xattrs.iter().map(|name| ("xattr", lossy(name))));
    for (label, value) in lines {
        out.labelled(label, &value)?;
    }
    Ok(())
}
