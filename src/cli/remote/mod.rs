//! `ckptfs remote`, `push` and `pull`.

pub mod lazy;
mod oci;
pub mod pull;
pub mod push;
mod tell;
pub mod upkeep;

use std::path::PathBuf;

use clap::Subcommand;
use serde::Serialize;

use super::context::Context;
use super::copies::Begun;
use super::error::{Outcome, error, hinted, io_error};
use super::locate::Served;
use super::output::can_ask;
use super::{config, locate};
use crate::engine::api::{CheckpointInfo, Code, ListCheckpoints, VerbResult};
use crate::engine::word::word;
use crate::remote::restic::names::{Named, Names};
use crate::remote::restic::{Purpose, Remote, guarded};
use crate::store::ids::CheckpointId;

/// Begins the address of an image.
const OCI: &str = "oci://";

/// Name the places that checkpoints are pushed to, list them, or list what is there
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Name a place, and make a repository there if there is none
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
        /// Run this command for sh, which prints the password
        #[arg(long, value_name = "COMMAND")]
        password_command: Option<String>,
        /// Replace a remote that has this name
        #[arg(short, long)]
        force: bool,
    },
    /// List the remotes (the default)
    List,
    /// Forget a remote; what is stored there stays
    Remove {
        /// The name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Forget checkpoints of this tree there by the rules that `ckptfs gc` applies here, and free
    /// what nothing needs any more
    Prune(upkeep::Prune),
    /// List the checkpoints that a remote has, newest first
    Log {
        /// The remote
        #[arg(value_name = "REMOTE")]
        name: String,
        /// Those of all trees, not of this one alone
        #[arg(long)]
        all: bool,
    },
}

/// A remote, for `--json`.
#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    #[serde(flatten)]
    named: &'a Named,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    match args.what.unwrap_or(What::List) {
        What::Add {
            name,
            url,
            password_file,
            password_command,
            force,
        } => {
            let named = Named {
                url: absolute(url)?,
                password_file: password_file
                    .map(|file| std::path::absolute(&file))
                    .transpose()
                    .map_err(|cause| io_error("the password file", cause))?,
                password_command,
            };
            add(&name, named, force, context)
        }
        What::List => list(context),
        What::Remove { name } => {
            names()?.remove(&name)?;
            let removed = serde_json::json!({ "removed": name });
            let out = &mut context.out;
            out.answer(&removed, |out| {
                out.text_line(&format!("{name} is forgotten; what is stored there stays"))
            })
        }
        What::Prune(prune) => guarded(|| upkeep::prune(&prune, context)),
        What::Log { name, all } => guarded(|| tell::log(&name, all, context)),
    }
}

/// A path is relative to where it is typed only there.
fn absolute(url: String) -> VerbResult<String> {
    if url.contains(':') {
        return Ok(url);
    }
    let path = std::path::absolute(&url).map_err(|cause| io_error(&url, cause))?;
    path.into_os_string()
        .into_string()
        .map_err(|_| error(Code::BadRemote, "the path of a remote must be UTF-8"))
}

/// The remotes of the user.
fn names() -> VerbResult<Names> {
    let file = config::user_file().ok_or_else(|| {
        hinted(
            Code::NoDirectory,
            "your remotes cannot be found",
            "set HOME or XDG_CONFIG_HOME",
        )
    })?;
    Names::read(file.parent().unwrap_or(&file))
}

fn add(name: &str, named: Named, force: bool, context: &mut Context) -> Outcome {
    let mut names = names()?;
    names.check(name, &named, force)?;
    if named.url.starts_with('/') && std::path::Path::new(&named.url).is_file() {
        return Err(error(Code::NotADirectory, format!("{} is a file", named.url)).into());
    }
    open(&named, Purpose::Create)?;
    names.add(name, named.clone(), force)?;
    let listed = Listed {
        name,
        named: &named,
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
    let listed: Vec<Listed<'_>> = names
        .all()
        .map(|(name, named)| Listed { name, named })
        .collect();
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&listed)?);
    }
    let width = super::output::width(&listed, |one| one.name.to_owned());
    for one in &listed {
        out.text_line(&format!("{:width$}  {}", one.name, one.named.url))?;
    }
    if listed.is_empty() {
        out.talk("no remote is named yet: ckptfs remote add NAME URL");
    }
    Ok(())
}

/// Opens a repository; asks for the password where none is told.
///
/// # Errors
/// `bad-password`, `no-terminal`; those of the repository.
fn open(named: &Named, purpose: Purpose) -> VerbResult<Remote> {
    let password = match named.password()? {
        Some(password) => password,
        None => asked(named)?,
    };
    open_with(named, &password, purpose)
}

/// The password that somebody types.
fn asked(named: &Named) -> VerbResult<String> {
    if can_ask() {
        let asked = rpassword::prompt_password(format!("password of {}: ", named.url));
        return asked.map_err(|cause| io_error("the terminal", cause));
    }
    Err(hinted(
        Code::NoTerminal,
        format!("no password is known for {}", named.url),
        "set CKPTFS_REMOTE_PASSWORD, or name a file or a command: ckptfs remote add \
         NAME URL --force --password-file FILE",
    ))
}

fn open_with(named: &Named, password: &str, purpose: Purpose) -> VerbResult<Remote> {
    if password.is_empty() {
        return Err(hinted(
            Code::BadPassword,
            "the password is empty",
            "whoever may read the repository would read everything in it",
        ));
    }
    Remote::open(&named.url, password, purpose)
}

/// The checkpoints of the tree that a remote has not.
///
/// # Errors
/// `unknown-remote`, `not-mounted`; those of the repository.
pub fn unpushed(name: &str, context: &Context) -> VerbResult<Vec<CheckpointId>> {
    let mut served = locate::served(context.dir())?;
    let store = store_of(&mut served)?.unwrap_or_default();
    let pushed = open(names()?.get(name)?, Purpose::Verb)?.pushed(Some(&store))?;
    let kept = served.client.ask(ListCheckpoints)?;
    let is_there = |one: &CheckpointInfo| pushed.iter().any(|known| push::is_of(known, one));
    Ok(kept
        .iter()
        .filter(|one| !is_there(one))
        .map(|one| one.id)
        .collect())
}

/// The number of a tree's store; `None`: it has no checkpoint yet.
fn store_of(served: &mut Served) -> VerbResult<Option<String>> {
    let checkpoints = served.client.ask(ListCheckpoints)?;
    let Some(newest) = checkpoints.first() else {
        return Ok(None);
    };
    let Some(client) = served.client.again() else {
        return Err(error(Code::DaemonLost, "the daemon is gone"));
    };
    Ok(Some(Begun::whole(client, newest.id, None)?.part.store))
}
