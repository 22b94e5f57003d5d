//! `ckptfs remote`, `push` and `pull`.

pub mod auto;
pub mod lazy;
pub mod maintenance;
mod oci;
pub mod pull;
mod pull_branch;
pub mod push;
pub mod reader;
mod remote_log;
mod repository;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::Serialize;

use super::remotes::names;
use super::size;
use ckptfs_api::display::word;
use ckptfs_api::{CheckpointId, CheckpointInfo, Code, ListCheckpoints, VerbResult};
use ckptfs_remote::restic::config::{RemoteConfig, RemoteConfigs};
use ckptfs_remote::restic::{OpenPurpose, guarded};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Outcome, error, io_error};
use ckptfs_ui::locate;

/// Prefix of the address of an image.
const OCI: &str = "oci://";

/// Manage remotes, which are places to push checkpoints to, and list their checkpoints
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Option<RemoteCommand>,
}

#[derive(Debug, Subcommand)]
enum RemoteCommand {
    /// Add a remote, and create a repository there if missing
    Add {
        /// The name
        #[arg(value_name = "NAME")]
        name: String,
        /// A directory, s3:http(s)://HOST/BUCKET/PATH, rest:http(s)://HOST/PATH or
        /// rclone:REMOTE:PATH
        #[arg(value_name = "URL")]
        url: String,
        /// Read the password from the first line of this file, which only you may read
        #[arg(long, value_name = "FILE", conflicts_with = "password_command")]
        password_file: Option<PathBuf>,
        /// Run this command with sh; it prints the password
        #[arg(long, value_name = "COMMAND")]
        password_command: Option<String>,
        /// Limit of the bytes sent and received per second, such as 2M
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        limit: Option<u64>,
        /// Replace a remote with this name
        #[arg(short, long)]
        force: bool,
        /// For all users and services of this machine, in /etc/ckptfs/remotes.toml (root only)
        #[arg(long)]
        system: bool,
    },
    /// List the remotes (the default)
    List,
    /// Remove a remote from the configuration; its data stays
    Remove {
        /// The name
        #[arg(value_name = "NAME")]
        name: String,
        /// A remote of the system (root only)
        #[arg(long)]
        system: bool,
    },
    /// Forget checkpoints of this tree in a remote, by the rules of `ckptfs gc`, and free unneeded
    /// data
    Prune(maintenance::Prune),
    /// Forget snapshots in a remote; `prune` frees the data that only they need
    Forget(maintenance::Forget),
    /// List the checkpoints in a remote, newest first
    Log {
        /// The remote
        #[arg(value_name = "REMOTE")]
        name: String,
        /// List those of all trees, not only of this one
        #[arg(long)]
        all: bool,
    },
}

/// A remote in the output of `--json`.
#[derive(Serialize)]
struct ListedRemote<'a> {
    name: &'a str,
    #[serde(flatten)]
    named: &'a RemoteConfig,
    /// The file that contains it.
    file: &'a Path,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    match args.what.unwrap_or(RemoteCommand::List) {
        RemoteCommand::Add {
            name,
            url,
            password_file,
            password_command,
            limit,
            force,
            system,
        } => {
            let named = RemoteConfig {
                url: absolute(url)?,
                password_file: password_file
                    .map(|file| std::path::absolute(&file))
                    .transpose()
                    .map_err(|cause| io_error("the password file", cause))?,
                password_command,
                limit,
                system,
            };
            guarded(|| add(&name, named, force, context))
        }
        RemoteCommand::List => list(context),
        RemoteCommand::Remove { name, system } => {
            changed(system)?.remove(&name)?;
            let removed = serde_json::json!({ "removed": name });
            let out = &mut context.out;
            out.answer(&removed, |out| {
                out.text_line(&format!("{name} is forgotten; what is stored there stays"))
            })
        }
        RemoteCommand::Forget(forget) => guarded(|| maintenance::forget(&forget, context)),
        RemoteCommand::Prune(prune) => guarded(|| maintenance::prune(&prune, context)),
        RemoteCommand::Log { name, all } => guarded(|| remote_log::log(&name, all, context)),
    }
}

/// Makes a path absolute, because the configuration is used from any directory.
fn absolute(url: String) -> VerbResult<String> {
    if url.contains(':') {
        return Ok(url);
    }
    let path = std::path::absolute(&url).map_err(|cause| io_error(&url, cause))?;
    path.into_os_string()
        .into_string()
        .map_err(|_| error(Code::BadRemote, "the path of a remote must be UTF-8"))
}

/// Returns the remotes that a verb changes.
fn changed(system: bool) -> VerbResult<RemoteConfigs> {
    if system {
        RemoteConfigs::of_system()
    } else {
        names()
    }
}

fn add(name: &str, named: RemoteConfig, force: bool, context: &mut Context) -> Outcome {
    let mut names = changed(named.system)?;
    names.check(name, &named, force)?;
    if named.url.starts_with('/') && std::path::Path::new(&named.url).is_file() {
        return Err(error(Code::NotADirectory, format!("{} is a file", named.url)).into());
    }
    repository::open(&named, OpenPurpose::Create)?;
    names.add(name, named.clone(), force)?;
    let listed = ListedRemote {
        name,
        named: &named,
        file: names.file_of(&named),
    };
    context.out.answer(&listed, |out| {
        out.text_line(&format!(
            "{name} is {}; ckptfs push {} sends what it has not",
            named.url,
            word(name)
        ))
    })
}

fn list(context: &mut Context) -> Outcome {
    let names = names()?;
    let listed: Vec<ListedRemote<'_>> = names
        .all()
        .map(|(name, named)| ListedRemote {
            name,
            named,
            file: names.file_of(named),
        })
        .collect();
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&listed)?);
    }
    let width = ckptfs_ui::output::width(&listed, |one| one.name.to_owned());
    for one in &listed {
        let of = if one.named.system { "  (system)" } else { "" };
        out.text_line(&format!("{:width$}  {}{of}", one.name, one.named.url))?;
    }
    if listed.is_empty() {
        out.talk("no remote is named yet: ckptfs remote add NAME URL");
    }
    Ok(())
}

/// Returns the checkpoints of the tree that a remote lacks.
///
/// # Errors
/// `unknown-remote`, `not-mounted`; those of the repository.
pub fn unpushed(name: &str, context: &Context) -> VerbResult<Vec<CheckpointId>> {
    let mut served = locate::served(context.dir())?;
    let store = repository::store_of(&mut served)?.unwrap_or_default();
    let pushed = repository::open(names()?.get(name)?, OpenPurpose::Verb)?.pushed(Some(&store))?;
    let kept = served.client.ask(ListCheckpoints)?;
    let is_there = |one: &CheckpointInfo| pushed.iter().any(|known| push::is_of(known, one));
    Ok(kept
        .iter()
        .filter(|one| !is_there(one))
        .map(|one| one.id)
        .collect())
}
