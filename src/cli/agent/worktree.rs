//! Second trees for isolated agents: branches, if the project is served. Claude Code calls the hook
//! *instead* of creating the tree itself, so elsewhere the hook does the same as Claude Code, with
//! git.
//!
//! `WorktreeCreate` prints the absolute path of the new tree as the last line on stdout, and
//! nothing else.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::branch::create::{BranchOptions, make};
use super::super::branch::drop::drop_branch;
use super::event::Event;
use super::event_tree::{self, CheckpointRoute};
use ckptfs_api::{Code, DropBranch, ListBranches, VerbResult};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome, error};
use ckptfs_ui::locate::ServedTree;

/// Limit of a name, in characters.
const NAME_CHARS_MAX: usize = 60;

/// Creates a branch with the requested name, or finds the existing one.
///
/// # Errors
/// Those of `branch create`, and of git if nothing is served.
pub fn create(event: &Event, context: &mut Context) -> Outcome {
    let name = event
        .worktree_name()
        .and_then(branch_name)
        .ok_or_else(|| error(Code::BadHook, "the event does not name the worktree"))?;
    let dirs = project(event);
    let path = match dirs.iter().find_map(|dir| served(dir)) {
        Some(mut served) => branch(&mut served, &name, context)?,
        None => git_worktree(&dirs, &name)?,
    };
    context.out.bytes(path.as_os_str().as_encoded_bytes())?;
    Ok(context.out.bytes(b"\n")?)
}

/// Drops the branch at the path of the event. It goes to the trash, with its changes.
///
/// # Errors
/// Those of `branch drop`, and of git if it is not a branch.
pub fn remove(event: &Event, context: &mut Context) -> Outcome {
    let Some(path) = event.worktree_path() else {
        return Err(error(
            Code::BadHook,
            "the event does not give the path of the worktree",
        )
        .into());
    };
    let mut dirs = project(event);
    // `TREE@NAME` is next to the tree.
    let beside = path.to_str().and_then(|text| text.rsplit_once('@'));
    dirs.extend(beside.map(|(tree, _)| PathBuf::from(tree)));
    for dir in dirs {
        let Some(mut served) = served(&dir) else {
            continue;
        };
        let all = served.client.ask(ListBranches::default())?;
        if let Some(branch) = all.into_iter().find(|branch| branch.path == path) {
            let ask = DropBranch {
                name: branch.name,
                force: false,
                dry_run: false,
            };
            drop_branch(&mut served, ask, &context.out)?;
            return Ok(());
        }
    }
    if path.join(".git").is_file() {
        // Without --force git keeps a worktree that has changes.
        git(path, &["worktree", "remove", "."])?;
    }
    Ok(())
}

/// Returns the possible places of the project. When a second tree is removed, the working directory
/// may be anywhere.
fn project(event: &Event) -> Vec<PathBuf> {
    let told = std::env::var_os("CLAUDE_PROJECT_DIR").map(PathBuf::from);
    told.into_iter().chain(event.paths()).collect()
}

/// Returns the daemon of the tree that contains a directory, if it accepts this user.
fn served(dir: &Path) -> Option<Box<ServedTree>> {
    match event_tree::at(&event_tree::existing(dir)?) {
        Ok(Some(CheckpointRoute::Served(served))) => Some(served),
        _ => None,
    }
}

fn branch(served: &mut ServedTree, name: &str, context: &Context) -> VerbResult<PathBuf> {
    match make(served, name, &BranchOptions::default(), false, &context.out) {
        Ok(made) => Ok(made.branch.path),
        // A resumed session requests its earlier branch.
        Err(why) if why.code == Code::BranchExists => {
            let all = served.client.ask(ListBranches::default())?;
            let known = all.into_iter().find(|branch| branch.name == name);
            known.map(|branch| branch.path).ok_or(why)
        }
        Err(why) => Err(why),
    }
}

/// Returns a valid name for a branch.
fn branch_name(wanted: &str) -> Option<String> {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let name: String = wanted.chars().map(safe).take(NAME_CHARS_MAX).collect();
    let name = name.trim_matches(['.', '-']).to_owned();
    (!name.is_empty()).then_some(name)
}

/// Creates a worktree as Claude Code does without a hook: in `.claude/worktrees` of the repository.
fn git_worktree(dirs: &[PathBuf], name: &str) -> VerbResult<PathBuf> {
    let top = dirs
        .iter()
        .filter_map(|dir| event_tree::existing(dir))
        .find_map(|dir| git(&dir, &["rev-parse", "--show-toplevel"]).ok());
    let Some(top) = top.map(PathBuf::from) else {
        return Err(error(
            Code::NotMounted,
            "the project is neither mounted by ckptfs nor a git repository, so there is nothing to make a worktree of",
        ));
    };
    let path = top.join(".claude/worktrees").join(name);
    if path.join(".git").is_file() {
        return Ok(path);
    }
    let (at, branch) = (path.display().to_string(), format!("worktree-{name}"));
    git(&top, &["worktree", "add", "-q", "-b", &branch, &at])
        // The branch may exist already.
        .or_else(|_| git(&top, &["worktree", "add", "-q", &at, &branch]))?;
    Ok(path)
}

/// Runs git; its stderr is that of this process.
fn git(dir: &Path, arguments: &[&str]) -> VerbResult<String> {
    let ran = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .on("git")?;
    if ran.status.success() {
        return Ok(String::from_utf8_lossy(&ran.stdout).trim_end().to_owned());
    }
    let what = arguments.first().copied().unwrap_or_default();
    Err(error(
        Code::ToolFailed,
        format!("git {what} in {} failed", dir.display()),
    ))
}

#[cfg(test)]
mod tests {
    use super::branch_name;

    #[test]
    fn any_name_becomes_one_of_a_branch() {
        assert_eq!(
            branch_name("bold-oak-a3f2").as_deref(),
            Some("bold-oak-a3f2")
        );
        assert_eq!(branch_name("-fix/ä b.").as_deref(), Some("fix---b"));
        assert_eq!(branch_name("../.."), None);
        assert_eq!(branch_name(""), None);
    }
}
