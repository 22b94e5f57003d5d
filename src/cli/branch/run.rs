//! `ckptfs branch run`: runs a command with a branch at the path of the project.
//!
//! In a mount namespace of its own the branch covers the project, so that programs that refer to
//! the project by path (caches of a build, an editor, an agent) work in the branch. Permissions are
//! the caller's, as with `run --at` (`cli::run_at`). The wait for the command is that of `run`.
//!
//! **git.** `.git` of the branch is a file that leads into the project's `.git`, which the branch
//! now covers. The namespace therefore shows that directory at another place also, in a directory
//! in memory over `.snapshots` of the branch at its own path, which is not needed there. The file
//! leads to that place. git's files on disk do not change.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::super::run::{CommandResult, execute};
use super::super::run_at::{enter_again, own_mounts};
use super::create;
use super::git::DOT_GIT;
use ckptfs_api::display::word;
use ckptfs_api::{BranchInfo, Code, ListBranches, TreePath, VerbError, VerbResult};
use ckptfs_sys::{self as sys, Errno};
use ckptfs_ui::changes;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Failure, Outcome, hinted, io_error};
use ckptfs_ui::locate::{self, ServedTree};
use ckptfs_ui::past;

/// Environment variable with the name of the branch.
const VARIABLE: &str = "CKPTFS_BRANCH";
/// Default command if the caller has no shell.
const SHELL: &str = "/bin/sh";

/// Run a command in a branch, at the project's own path
///
/// Creates the branch if none has this name. The command and its children see the branch in place
/// of the project; other processes see no change. CKPTFS_BRANCH is the name. The exit status is the
/// command's, 128 plus the signal's number if it was killed by one, 125 if ckptfs itself failed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The branch
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    how: create::BranchOptions,
    /// The command and its arguments; by default your shell
    #[arg(value_name = "CMD", last = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Output of `--json`, on stderr, because stdout is the command's.
#[derive(Serialize)]
struct BranchRunReport<'a> {
    branch: &'a BranchInfo,
    /// It was made for this command.
    made: bool,
    command: Vec<TreePath>,
    status: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    duration_us: u64,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    match in_branch(args, context) {
        Ok(0) => Ok(()),
        Ok(status) => Err(Failure::Status(status)),
        Err(error) => Err(Failure::Unable(error)),
    }
}

fn in_branch(args: Args, context: &Context) -> VerbResult<u8> {
    let Args {
        name,
        how,
        mut command,
    } = args;
    if command.is_empty() {
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
        command.push(shell.unwrap_or_else(|| SHELL.into()));
    }
    let mut served = locate::served(context.dir())?;
    let found = named(&mut served, &name, false)?;
    let made = found.is_none();
    let branch = match found {
        Some(branch) => branch,
        None => create::make(&mut served, &name, &how, false, &context.out)?.branch,
    };
    enter(&served, &branch)?;
    let ended = execute(&command, &served.cwd, |command| {
        command.env(VARIABLE, &name);
    })?;
    let status = ended.tell(&command, context);
    // It may have been dropped since.
    let branch = named(&mut served, &name, true)
        .ok()
        .flatten()
        .unwrap_or(branch);
    tell(&branch, made, &command, &ended, context);
    Ok(status)
}

/// Returns the branch of this name, mounted; `None` if none exists. `counted`: with the number of
/// its changes.
fn named(served: &mut ServedTree, name: &str, counted: bool) -> VerbResult<Option<BranchInfo>> {
    let all = served.client.ask(ListBranches {
        counted,
        ..ListBranches::default()
    })?;
    let Some(branch) = all.into_iter().find(|branch| branch.name == name) else {
        return Ok(None);
    };
    if !branch.mounted {
        return Err(hinted(
            Code::NotMounted,
            format!("the branch {name} is not mounted"),
            format!("ckptfs branch mount {}", word(name)),
        ));
    }
    Ok(Some(branch))
}

/// Enters a namespace with the branch at the path of the project; includes the working directory.
fn enter(served: &ServedTree, branch: &BranchInfo) -> VerbResult<()> {
    let mount = served.mount()?;
    let at = served.root.clone();
    // The path of a volume that is a branch is not its mountpoint, once it is staged.
    let path = &locate::served(Some(&branch.path))?.mount()?;
    own_mounts("the branch cannot be mounted over the project's path")?;
    let snapdir = path.join(past::snapdir(served.client.store()));
    let link = git_elsewhere(&mount, path, snapdir)?;
    let places = [Some(&mount), (mount != at).then_some(&at)];
    for place in places.into_iter().flatten() {
        sys::mount_bind(path, place).map_err(|cause| cannot(place, cause))?;
    }
    if let Some(link) = link {
        // The branch stays visible at its own path.
        let places = places.into_iter().flatten().chain([path]);
        for place in places.map(|place| place.join(DOT_GIT)) {
            sys::mount_bind(&link, &place).map_err(|cause| cannot(&place, cause))?;
        }
    }
    enter_again(
        &served.cwd,
        &at,
        &format!("as it is in the branch {}", branch.name),
    )
}

fn cannot(at: &Path, cause: Errno) -> VerbError {
    io_error(format!("mounting over {}", at.display()), cause)
}

/// Shows the project's `.git` at another place, if that of the branch leads into it; returns a file
/// that leads there. `hidden`: a directory of the branch that the command does not need.
fn git_elsewhere(project: &Path, branch: &Path, hidden: PathBuf) -> VerbResult<Option<PathBuf>> {
    let Some(entry) = super::git::leads_below(branch, &project.join(DOT_GIT)) else {
        return Ok(None);
    };
    sys::mount_scratch(&hidden).map_err(|cause| cannot(&hidden, cause))?;
    // Processes of other users may work for the command.
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o755)).on(hidden.display())?;
    let shown = hidden
        .join(project.file_name().unwrap_or_default())
        .join(DOT_GIT);
    fs::create_dir_all(&shown).on(shown.display())?;
    let from = project.join(DOT_GIT);
    sys::mount_bind(&from, &shown).map_err(|cause| cannot(&shown, cause))?;
    let link = hidden.join(DOT_GIT);
    let text = super::git::link_text(&shown.join(entry));
    fs::write(&link, text).on(link.display())?;
    Ok(Some(link))
}

fn tell(
    branch: &BranchInfo,
    made: bool,
    command: &[OsString],
    ended: &CommandResult,
    context: &Context,
) {
    if context.out.json {
        let report = BranchRunReport {
            branch,
            made,
            command: command
                .iter()
                .map(|word| TreePath(word.as_bytes().to_vec()))
                .collect(),
            status: ended.code(),
            signal: ended.signal(),
            duration_us: ended.duration_us,
        };
        if let Ok(line) = serde_json::to_string(&report) {
            // stderr may be closed.
            let _ =
                std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes());
        }
        return;
    }
    if let Some(changed) = branch.changed {
        let (name, changed) = (&branch.name, changes::count(changed));
        let base = branch
            .base
            .map_or_else(String::new, |base| base.to_string());
        context.out.talk(&format!(
            "branch {name}: {changed} since checkpoint {base}; to see it: ckptfs branch diff {}",
            word(name)
        ));
    }
}
