//! `ckptfs branch drop`.

use std::collections::BTreeSet;
use std::path::Path;

use super::super::mount_users::{self, VisibleTree};
use super::git;
use ckptfs_api::display::word;
use ckptfs_api::{
    BranchInfo, Code, DropBranch, DroppedBranch, ListBranches, VerbError, VerbResult,
};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::locate::{self, ServedTree};
use ckptfs_ui::output::Out;
use ckptfs_ui::{changes, mounts};

/// Unmount a branch and move it to the trash; `ckptfs branch restore` brings it back until gc
///
/// Lists its changes, which are in no other tree unless they were merged.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The branch
    #[arg(value_name = "NAME")]
    name: String,
    /// Drop it even if it is in use; calls of its users fail from then on
    #[arg(short, long)]
    force: bool,
    /// Only show what would be dropped
    #[arg(short = 'n', long)]
    dry_run: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let ask = DropBranch {
        name: args.name,
        force: args.force,
        dry_run: args.dry_run,
    };
    let dropped = drop_branch(&mut served, ask, &context.out)?;
    context.out.answer(&dropped, |out| {
        for line in told(&dropped) {
            out.text_line(&line)?;
        }
        Ok(())
    })
}

/// Drops a branch, and removes it from git.
///
/// # Errors
/// Those of [`DropBranch`]; for a branch in use, with its users.
pub fn drop_branch(
    served: &mut ServedTree,
    ask: DropBranch,
    out: &Out,
) -> VerbResult<DroppedBranch> {
    let name = ask.name.clone();
    let dropped = match served.client.ask(ask) {
        Err(error) if error.code == Code::BranchInUse => {
            let all = served.client.ask(ListBranches::default())?;
            let branch = all.iter().find(|branch| branch.name == name);
            return Err(match branch {
                Some(branch) => in_use(&name, &branch.path, error),
                None => error,
            });
        }
        dropped => dropped?,
    };
    if !dropped.dry_run {
        forget_in_git(served, &dropped.branch, out);
    }
    Ok(dropped)
}

/// Updates git after other operations on branches of these names, such as an undo: existing
/// branches are registered, and those in the trash are not. Failures are only warnings.
pub fn tell_git(served: &mut ServedTree, names: &BTreeSet<&str>, out: &Out) {
    let (there, trash) = (
        served.client.ask(ListBranches::default()),
        served.client.ask(ListBranches {
            dropped: true,
            ..ListBranches::default()
        }),
    );
    let (there, trash) = (there.unwrap_or_default(), trash.unwrap_or_default());
    for name in names {
        let is_it = |branch: &&BranchInfo| branch.name == **name;
        if let Some(branch) = there.iter().find(is_it) {
            recall_in_git(served, branch, out);
        } else if let Some(branch) = trash
            .iter()
            .filter(is_it)
            .max_by_key(|branch| branch.created.clone())
        {
            forget_in_git(served, branch, out);
        }
    }
}

/// Registers a branch in git again that was brought back. A failure is only a warning.
pub fn recall_in_git(served: &ServedTree, branch: &BranchInfo, out: &Out) {
    let recalled = served
        .mount()
        .and_then(|mount| git::recall(&mount, &branch.path));
    if let Err(error) = recalled {
        out.warn(&error.message);
    }
}

/// Removes a branch that is already dropped from git. A failure is only a warning.
fn forget_in_git(served: &mut ServedTree, branch: &BranchInfo, out: &Out) {
    let forgotten = served.mount().and_then(|mount| {
        let trash = || {
            let trash = served.client.ask(ListBranches {
                dropped: true,
                ..ListBranches::default()
            })?;
            Ok(trash.into_iter().map(|branch| branch.path).collect())
        };
        git::forget(&mount, &branch.path, &branch.name, trash)
    });
    match forgotten {
        Err(error) => out.warn(&error.message),
        Ok(Some(forgotten)) if forgotten.locked => {
            out.warn("git still has it registered, and locked: git worktree unlock, then git worktree prune");
        }
        Ok(Some(forgotten)) if !forgotten.head.starts_with("ref: ") => {
            out.talk(&format!("its HEAD was {}", forgotten.head));
        }
        Ok(_) => {}
    }
}

/// Adds the users of the branch to the error.
fn in_use(name: &str, path: &Path, error: VerbError) -> VerbError {
    let table = mounts::all().unwrap_or_default();
    let users = mounts::top(&table, path)
        .map(|mount| {
            VisibleTree::on(mount)
                .users(&[], mount_users::THOROUGH)
                .holders
        })
        .unwrap_or_default();
    let message = if users.is_empty() {
        error.message
    } else {
        format!("{}: {}", error.message, mount_users::named(users.iter()))
    };
    VerbError {
        message,
        hint: Some(format!(
            "end it, or drop the branch anyway: ckptfs branch drop --force {}",
            word(name)
        )),
        ..error
    }
}

fn told(dropped: &DroppedBranch) -> Vec<String> {
    let name = &dropped.branch.name;
    let verb = if dropped.dry_run {
        "would drop"
    } else {
        "dropped"
    };
    let count = dropped.branch.changed.map_or_else(
        || "not mounted, so its changes are not known".to_owned(),
        changes::count,
    );
    // Lists the lost changes, or all changes if those are unknown.
    let (paths, all, what) = match (dropped.branch.unmerged, dropped.branch.changed) {
        (Some(0), Some(1..)) => (&dropped.unmerged, 0, ", all merged"),
        (Some(left), Some(changed)) if changed > 0 => (&dropped.unmerged, left, ", not merged:"),
        (_, changed) => (&dropped.changed, changed.unwrap_or(0), ""),
    };
    let mut lines = vec![format!("{verb} {name} ({count}{what})")];
    lines.extend(
        paths
            .iter()
            .map(|path| format!("  {}", String::from_utf8_lossy(&path.0))),
    );
    let more = all.saturating_sub(paths.len() as u64);
    lines.extend((more > 0).then(|| format!("  and {more} more")));
    if !dropped.dry_run {
        lines.push(format!(
            "to bring it back, until gc frees it: ckptfs branch restore {}",
            word(name)
        ));
    }
    lines
}
