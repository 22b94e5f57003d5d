//! The names in a directory as it was, or a file, with their attributes.

use std::io;

use serde::Serialize;

use crate::attrs;
use crate::error::Outcome;
use crate::output::{Out, width};
use crate::past::PathInState;
use ckptfs_api::{TreePath, is_snapdir_inode};
use ckptfs_sys::{self as sys, Kind, SysResult};

/// How names are printed.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// With mode, size and time.
    pub long: bool,
    /// Names end with NUL; nothing is escaped.
    pub nul: bool,
}

/// One name, as `--json` prints it.
#[derive(Serialize)]
struct ListedName {
    name: TreePath,
    #[serde(flatten)]
    attrs: attrs::Shown,
}

/// Prints the names in a directory, or a single file, each with its attributes in JSON and in the
/// long format.
pub fn print(found: &PathInState, kind: Kind, format: Format, out: &mut Out) -> Outcome {
    let entries = if kind == Kind::Dir {
        let names = names(found).map_err(|cause| found.failed(cause))?;
        let entry = |name: Vec<u8>| (below(&found.path, &name), name);
        names.into_iter().map(entry).collect()
    } else {
        let name = found.path.0.rsplit(|byte| *byte == b'/').next();
        vec![(found.path.clone(), name.unwrap_or_default().to_vec())]
    };
    if !out.json && !format.long {
        for (_, name) in entries {
            let line = if format.nul {
                [&name, &b"\0"[..]].concat()
            } else {
                [&out.name(&name), &b"\n"[..]].concat()
            };
            out.bytes(&line)?;
        }
        return Ok(());
    }
    let listed: Vec<ListedName> = entries
        .into_iter()
        .map(|(path, name)| {
            attrs::shown(&found.tree, &path).map(|attrs| ListedName {
                name: TreePath(name),
                attrs,
            })
        })
        .collect::<SysResult<_>>()
        .map_err(|cause| found.failed(cause))?;
    out.answer(&listed, |out| print_long(&listed, out))
}

/// Returns the names in a directory, sorted.
pub fn names(found: &PathInState) -> SysResult<Vec<Vec<u8>>> {
    let dir = found.tree.open_dir(&found.path)?;
    // The store and the snapshot directory are not part of the tree.
    let shown = |name: &[u8]| sys::stat_at(&dir, name).is_ok_and(|stat| is_snapdir_inode(stat.ino));
    let ours = |name: &[u8]| found.path.0.is_empty() && (name == b".ckptfs" || shown(name));
    let mut names: Vec<Vec<u8>> = sys::list_dir(&dir)?
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| !ours(name))
        .collect();
    names.sort();
    Ok(names)
}

/// Returns the path of `name` in `dir`.
pub fn below(dir: &TreePath, name: &[u8]) -> TreePath {
    let mut path = dir.0.clone();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    TreePath(path)
}

fn print_long(listed: &[ListedName], out: &mut Out) -> io::Result<()> {
    let width = width(listed, |one| one.attrs.size.to_string());
    for one in listed {
        let mut line = format!(
            "{} {:>width$} {} ",
            one.attrs.mode_text(),
            one.attrs.size,
            one.attrs.local_time()
        )
        .into_bytes();
        line.extend_from_slice(&out.name(&one.name.0));
        if let Some(target) = &one.attrs.target {
            line.extend_from_slice(b" -> ");
            line.extend_from_slice(&out.name(&target.0));
        }
        line.push(b'\n');
        out.bytes(&line)?;
    }
    Ok(())
}
