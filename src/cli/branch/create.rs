//! `ckptfs branch create`.

use std::ffi::OsString;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::super::context::Context;
use super::super::error::{Outcome, error, hinted, io_error};
use super::super::locate::{self, Served};
use super::super::mounts;
use crate::engine::api::{BranchInfo, Code, CreateBranch, StateName, VerbResult};
use crate::engine::branches::check_name;
use crate::engine::word::word;
use crate::sys::MountPoint;

/// Make a branch, and print where it is
///
/// It begins as a checkpoint that is made for it. Whatever is changed in it does not show here, nor
/// the other way round, until one of the two is merged.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Letters, digits, _ . and -
    #[arg(value_name = "NAME")]
    name: String,
    /// Begin as this checkpoint: a number, a tag, `latest`
    #[arg(long, value_name = "ID")]
    at: Option<String>,
    /// Where it is to be, on the filesystem of the tree; beside it, as TREE@NAME, if not given
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// Only tell what would be made
    #[arg(short = 'n', long)]
    dry_run: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    // It becomes part of a path.
    check_name(&args.name)?;
    let mut served = locate::served(context.dir())?;
    let path = match &args.path {
        Some(path) => served.cwd.join(path),
        None => beside(&served, &args.name)?,
    };
    let dir = NewDir::at(&path, args.dry_run)?;
    let made = served.client.ask(CreateBranch {
        name: args.name,
        at: args.at.map(StateName),
        path: dir.path.clone(),
        dry_run: args.dry_run,
    });
    if made.is_err() {
        dir.take_back();
    }
    print(&made?, context)
}

/// Prints where a branch is.
pub fn print(branch: &BranchInfo, context: &mut Context) -> Outcome {
    context.out.answer(branch, |out| {
        out.text_line(&branch.path.display().to_string())
    })
}

/// The directory beside that of the tree: `TREE@NAME`.
fn beside(served: &Served, name: &str) -> VerbResult<PathBuf> {
    let table = mounts::all()?;
    let backing = mounts::top(&table, &served.root)
        .and_then(MountPoint::backing)
        .unwrap_or_else(|| served.root.clone());
    let own = backing.file_name().ok_or_else(|| {
        error(
            Code::BadPath,
            "the tree has no name that a branch could have",
        )
    })?;
    let mut file = OsString::from(own);
    file.push("@");
    file.push(name);
    Ok(backing.with_file_name(file))
}

/// The directory that a branch is made in, with the rights of whoever asks.
struct NewDir {
    path: PathBuf,
    /// It was not there before.
    made: bool,
}

impl NewDir {
    /// Makes it, unless there is an empty one.
    fn at(path: &Path, dry_run: bool) -> VerbResult<NewDir> {
        let shown = path.display();
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(error(
                Code::BadPath,
                format!("{shown} cannot be the directory of a branch"),
            ));
        };
        // The daemon follows no links.
        let parent = parent
            .canonicalize()
            .map_err(|cause| io_error(parent.display(), cause))?;
        let path = parent.join(name);
        let table = mounts::all()?;
        if let Some(mount) = mounts::containing(&table, &path).filter(|mount| mount.says_ours()) {
            let at = mount.at.display();
            return Err(hinted(
                Code::BadMountpoint,
                format!("{shown} is inside of the mount at {at}, which cannot have another in it"),
                format!("name a place outside of {}: --path DIR", word(at)),
            ));
        }
        if dry_run {
            return Ok(NewDir { path, made: false });
        }
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(NewDir { path, made: true }),
            Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
                Ok(NewDir { path, made: false })
            }
            Err(cause) => Err(io_error(path.display(), cause)),
        }
    }

    /// Nothing came of it.
    fn take_back(&self) {
        if self.made {
            // The daemon may have done so.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}
