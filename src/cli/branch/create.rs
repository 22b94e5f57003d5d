//! `ckptfs branch create`.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::git::{self, DOT_GIT, GitState};
use ckptfs_api::display::word;
use ckptfs_api::{
    BranchInfo, Code, CreateBranch, StateName, StoreDir, VerbError, VerbResult, is_same,
};
use ckptfs_core::engine::branches::{self, check_name};
use ckptfs_sys as sys;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Outcome, error, hinted, io_error};
use ckptfs_ui::locate::{self, ServedTree};
use ckptfs_ui::mounts;
use ckptfs_ui::output::Out;
use ckptfs_ui::past;

/// Create a branch, and print its path
///
/// It begins as a checkpoint that is made for it. Changes in one of the two trees do not appear in
/// the other until they are merged.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The name: letters, digits, _ . and -
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    how: BranchOptions,
    /// Only show what would be made
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Options of a new branch.
#[derive(Debug, Default, clap::Args)]
pub struct BranchOptions {
    /// Begin as this checkpoint: a number, a tag, `latest`
    #[arg(long, value_name = "ID")]
    at: Option<String>,
    /// Its directory, on the filesystem of the tree; by default TREE@NAME next to the tree
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// Fail if the branch cannot be registered in git: if the tree has a .git, the branch is a
    /// working tree of that repository, on a git branch of the same name
    #[arg(long)]
    git: bool,
    /// Do not register it in git: the branch has a copy of .git, which is a separate repository
    #[arg(long, conflicts_with = "git")]
    no_git: bool,
}

impl BranchOptions {
    /// Returns the options of a branch next to the tree, from a checkpoint or from the live tree,
    /// and registered in git where possible.
    pub fn beside(at: Option<String>) -> BranchOptions {
        BranchOptions {
            at,
            path: None,
            git: false,
            no_git: false,
        }
    }

    /// Like [`BranchOptions::beside`], without git.
    pub fn without_git(at: Option<String>) -> BranchOptions {
        BranchOptions {
            no_git: true,
            ..BranchOptions::beside(at)
        }
    }
}

/// A new branch, and its state in git.
#[derive(Debug, Serialize)]
pub struct CreatedBranch {
    /// The branch.
    #[serde(flatten)]
    pub branch: BranchInfo,
    /// Absent if it is not registered in git.
    #[serde(skip_serializing_if = "Option::is_none")]
    git: Option<GitState>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let made = make(
        &mut served,
        &args.name,
        &args.how,
        args.dry_run,
        &context.out,
    )?;
    context.out.answer(&made, |out| {
        out.text_line(&made.branch.path.display().to_string())
    })
}

/// Creates a branch. Without `--git`, a failure of git is only a warning.
///
/// # Errors
/// Those of [`CreateBranch`]; with `--git` that the branch cannot be registered.
pub fn make(
    served: &mut ServedTree,
    name: &str,
    how: &BranchOptions,
    dry_run: bool,
    out: &Out,
) -> VerbResult<CreatedBranch> {
    // It becomes part of a path.
    check_name(name)?;
    let path = match &how.path {
        Some(path) => served.cwd.join(path),
        None => beside(served, name)?,
    };
    let dir = NewDir::at(&path, dry_run)?;
    let made = make_in(served, &dir, name, how, dry_run, out);
    if made.is_err() {
        dir.take_back();
    }
    made
}

fn make_in(
    served: &mut ServedTree,
    dir: &NewDir,
    name: &str,
    how: &BranchOptions,
    dry_run: bool,
    out: &Out,
) -> VerbResult<CreatedBranch> {
    let snapshots = served.mount()?.join(past::snapdir(served.client.store()));
    let mut link = if how.no_git || dry_run {
        None
    } else {
        begin_git(served, dir, name, how, &snapshots, out)?
    };
    let asked = CreateBranch {
        name: name.to_owned(),
        at: how.at.clone().map(StateName),
        path: dir.path.clone(),
        git: link.is_some(),
        dry_run,
    };
    let branch = std::thread::scope(|scope| {
        if let Some(link) = link.as_mut().filter(|_| how.at.is_none()) {
            // Without a thread that is done afterwards.
            let _ = std::thread::Builder::new().spawn_scoped(scope, || link.copy_ahead());
        }
        served.client.ask(asked)
    });
    let branch = branch.inspect_err(|_| {
        if link.is_some() {
            // The daemon may have removed it.
            let _ = std::fs::remove_file(dir.path.join(DOT_GIT));
        }
    })?;
    let base = branch.base.map(|base| snapshots.join(base.to_string()));
    let finished = link
        .zip(base)
        .map(|(link, base)| link.finish(&base))
        .transpose();
    // The branch exists, whatever the result of git.
    let git = finished.unwrap_or_else(|error| {
        untold(&error, out);
        None
    });
    if let Some(note) = git.as_ref().and_then(|git| git.note.as_ref()) {
        out.warn(note);
    }
    Ok(CreatedBranch { branch, git })
}

/// Begins the registration in git, and creates the file `.git` of the branch.
fn begin_git(
    served: &mut ServedTree,
    dir: &NewDir,
    name: &str,
    how: &BranchOptions,
    snapshots: &Path,
    out: &Out,
) -> VerbResult<Option<git::WorktreeEntry>> {
    let view = how.at.as_ref().map(|at| snapshots.join(at));
    let begun = git::begin(&served.mount()?, view.as_deref(), &dir.path, name)
        .and_then(|begun| begun.map(|begun| begun.link(&dir.path)).transpose());
    match begun {
        Err(_) if std::fs::symlink_metadata(dir.path.join(DOT_GIT)).is_ok() => {
            Err(taken(served, dir, name))
        }
        Err(error) if how.git => Err(error),
        Err(error) => {
            untold(&error, out);
            Ok(None)
        }
        begun => begun,
    }
}

/// Returns the error for a directory that has a `.git` already: a branch of this name exists or is
/// being made, which the daemon reports; or the directory is in use otherwise.
fn taken(served: &mut ServedTree, dir: &NewDir, name: &str) -> VerbError {
    let asked = CreateBranch {
        name: name.to_owned(),
        at: None,
        path: dir.path.clone(),
        git: false,
        dry_run: true,
    };
    served.client.ask(asked).err().unwrap_or_else(|| {
        hinted(
            Code::NotEmpty,
            format!(
                "{} is not empty; another process may be making the branch {name} there",
                dir.path.display()
            ),
            "name a directory that does not exist yet: --path DIR",
        )
    })
}

fn untold(error: &VerbError, out: &Out) {
    out.warn(&error.message);
    if let Some(hint) = &error.hint {
        out.talk(hint);
    }
}

/// Prints the path of a branch.
pub fn print(branch: &BranchInfo, context: &mut Context) -> Outcome {
    context.out.answer(branch, |out| {
        out.text_line(&branch.path.display().to_string())
    })
}

/// Returns the directory next to that of the tree: `TREE@NAME`.
fn beside(served: &mut ServedTree, name: &str) -> VerbResult<PathBuf> {
    // The kernel reports the present path of the store, but not for a mount in another namespace.
    let below = served.client.open_store().ok().and_then(|store| {
        let backing = sys::path_of(&store).ok()?.parent()?.to_owned();
        let there = StoreDir::of(&backing).ok()??;
        is_same(&store, there.dir()).ok()?.then_some(backing)
    });
    let named = || mounts::top(&mounts::all().ok()?, &served.root)?.backing();
    let backing = below.or_else(named);
    branches::beside(backing.as_deref().unwrap_or(&served.root), name)
}

/// The directory of a new branch, created with the permissions of the caller.
struct NewDir {
    path: PathBuf,
    /// It did not exist before.
    made: bool,
}

impl NewDir {
    /// Creates the directory, unless it exists.
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
        if let Some(mount) = mounts::containing(&table, &parent).filter(|mount| mount.says_ours()) {
            let at = mount.at.display();
            return Err(hinted(
                Code::BadMountpoint,
                format!("{shown} is inside the mount at {at}, and mounts cannot be nested"),
                format!("choose a place outside of {}: --path DIR", word(at)),
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

    /// Removes the directory after a failure.
    fn take_back(&self) {
        if self.made {
            // The daemon may have removed it.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}
