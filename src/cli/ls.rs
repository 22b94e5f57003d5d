//! `ckptfs ls`, and `ckptfs show ID:PATH` of a directory.

use std::ffi::OsString;
use std::io;

use serde::Serialize;

use super::context::Context;
use super::error::Outcome;
use super::output::{Out, width};
use super::{past, stat};
use crate::engine::api::TreePath;
use crate::engine::import::is_of_no_tree;
use crate::sys::{self, Kind, SysResult};

/// List a directory as it was
#[derive(Debug, clap::Args)]
pub struct Args {
    /// State and path, such as `latest:src`; `3:` is the working directory at checkpoint 3
    #[arg(value_name = "ID:PATH")]
    path: OsString,
    /// Mode, size and time of each
    #[arg(short)]
    long: bool,
    /// End each name with NUL and escape nothing
    #[arg(short = 'z', conflicts_with_all = ["json", "long"])]
    nul: bool,
}

impl Args {
    /// Returns the arguments that list the names in a directory.
    pub fn of(path: OsString) -> Args {
        Args {
            path,
            long: false,
            nul: false,
        }
    }
}

/// An entry in the output of `--json`.
#[derive(Serialize)]
struct Listed {
    name: TreePath,
    #[serde(flatten)]
    what: stat::Shown,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    if !args.nul {
        context.out.page();
    }
    let found = past::find(context.dir(), &args.path)?;
    let kind = found
        .tree
        .stat(&found.path)
        .map_err(|cause| found.failed(cause))?
        .kind;
    let names = if kind == Kind::Dir {
        names(&found).map_err(|cause| found.failed(cause))?
    } else {
        vec![
            found
                .path
                .0
                .rsplit(|byte| *byte == b'/')
                .next()
                .unwrap_or_default()
                .to_vec(),
        ]
    };
    let out = &mut context.out;
    if !out.json && !args.long {
        for name in names {
            let line = if args.nul {
                [&name, &b"\0"[..]].concat()
            } else {
                [&out.name(&name), &b"\n"[..]].concat()
            };
            out.bytes(&line)?;
        }
        return Ok(());
    }
    let listed: Vec<Listed> = names
        .into_iter()
        .map(|name| {
            let path = if kind == Kind::Dir {
                below(&found.path, &name)
            } else {
                found.path.clone()
            };
            stat::shown(&found.tree, &path).map(|what| Listed {
                name: TreePath(name),
                what,
            })
        })
        .collect::<SysResult<_>>()
        .map_err(|cause| found.failed(cause))?;
    out.answer(&listed, |out| print(&listed, out))
}

/// Returns the names in a directory, sorted.
pub fn names(found: &past::Found) -> SysResult<Vec<Vec<u8>>> {
    let dir = found.tree.open_dir(&found.path)?;
    // The store and the snapshot directory are not part of the tree.
    let shown = |name: &[u8]| sys::stat_at(&dir, name).is_ok_and(|stat| is_of_no_tree(stat.ino));
    let ours = |name: &[u8]| found.path.0.is_empty() && (name == b".ckptfs" || shown(name));
    let mut names: Vec<Vec<u8>> = sys::list_dir(&dir)?
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| !ours(name))
        .collect();
    names.sort();
    Ok(names)
}

/// Returns the path of a name in a directory.
pub fn below(dir: &TreePath, name: &[u8]) -> TreePath {
    let mut path = dir.0.clone();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    TreePath(path)
}

fn print(listed: &[Listed], out: &mut Out) -> io::Result<()> {
    let width = width(listed, |one| one.what.size.to_string());
    for one in listed {
        let mut line = format!(
            "{} {:>width$} {} ",
            one.what.mode_text(),
            one.what.size,
            one.what.local_time()
        )
        .into_bytes();
        line.extend_from_slice(&out.name(&one.name.0));
        if let Some(target) = &one.what.target {
            line.extend_from_slice(b" -> ");
            line.extend_from_slice(&out.name(&target.0));
        }
        line.push(b'\n');
        out.bytes(&line)?;
    }
    Ok(())
}
