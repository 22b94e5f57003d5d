//! `ckptfs volumes`, and `--volume` of every other verb.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Subcommand, ValueEnum};
use serde_json::json;

use super::remotes::REMOTES_VARIABLE;
use super::size;
use super::verb_runner::CliVerbRunner;
use ckptfs_api::display::{count, word};
use ckptfs_api::{Code, VerbResult};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome, error, hinted};
use ckptfs_ui::output::Role;
use ckptfs_volumes::options::{OPTIONS, OnRemove};
use ckptfs_volumes::serve::{PoolImage, mount_image, serve};
use ckptfs_volumes::{Pool, VolumeOrigin, name, protocol};

/// Default directory of the pool.
pub const ROOT: &str = "/var/lib/ckptfs/volumes";
/// Default socket, in the directory where engines look for plugins.
const SOCKET: &str = "/run/docker/plugins/ckptfs.sock";
/// Environment variable with the directory of the pool, for every verb.
pub const ROOT_VARIABLE: &str = "CKPTFS_VOLUMES";

/// Manage container volumes (the driver is `ckptfs serve volumes`)
///
/// Any other verb acts on a volume with --volume NAME, while containers use it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: VolumeCommand,
    /// The directory of the volumes
    #[arg(long, value_name = "DIR", env = ROOT_VARIABLE, default_value = ROOT, global = true)]
    root: PathBuf,
}

#[derive(Debug, Subcommand)]
enum VolumeCommand {
    /// List the volumes
    Ls {
        /// List the trash: volumes that were removed with on-remove=trash
        #[arg(long)]
        trash: bool,
    },
    /// Create a volume
    #[command(after_help = options_help())]
    Create {
        /// The name: letters, digits, _ . and -
        name: String,
        /// An option, as in `docker volume create`
        #[arg(short, value_name = "OPTION[=VALUE]")]
        options: Vec<String>,
    },
    /// Remove an unused volume, with its history
    Rm {
        /// The volume
        name: String,
        /// Only show what would be removed
        #[arg(short = 'n', long)]
        dry_run: bool,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Recover a volume from the trash, with its history
    Recover {
        /// The volume (the newest of this name), or NAME@TIME as in `ls --trash`
        name: String,
    },
    /// Delete a volume in the trash for good
    Purge {
        /// The volume (the newest of this name), or NAME@TIME as in `ls --trash`
        name: String,
    },
    /// Show the details of a volume
    Inspect {
        /// The volume, VOLUME@CHECKPOINT or VOLUME@branch/NAME
        name: String,
    },
}

/// The volume driver.
#[derive(Debug, clap::Args)]
pub struct Driver {
    /// The socket to listen on, unless the service manager passes one
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    #[command(flatten)]
    pool: PoolArgs,
    /// Treatment of a removed volume that has no option for it
    #[arg(long, value_enum, value_name = "HOW", default_value = "delete")]
    on_remove: Removal,
    /// The directory of the volumes
    #[arg(long, value_name = "DIR", env = ROOT_VARIABLE, default_value = ROOT)]
    root: PathBuf,
}

/// Options for the pool of a driver.
#[derive(Debug, clap::Args)]
pub struct PoolArgs {
    /// Where volumes are mounted; by default in the pool
    #[arg(long, value_name = "DIR")]
    mounts: Option<PathBuf>,
    /// Keep the pool in a separate filesystem (XFS), in this file
    #[arg(long, value_name = "FILE")]
    pool_image: Option<PathBuf>,
    /// Size of that file, if it does not exist yet; it is sparse
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "pool_image")]
    pool_size: Option<u64>,
    /// The remotes of classes and options; by default those of the user who starts the driver
    #[arg(long, value_name = "FILE", env = REMOTES_VARIABLE)]
    remotes: Option<PathBuf>,
}

impl PoolArgs {
    /// Opens the pool at `root`; mounts its image, and creates it if necessary.
    pub fn open(&self, root: &Path) -> VerbResult<Pool> {
        if let Some(file) = &self.pool_image {
            let file = std::path::absolute(file).on(file.display())?;
            mount_image(
                &PoolImage {
                    file,
                    bytes: self.pool_size,
                },
                root,
            )?;
        }
        let absolute = |file: &PathBuf| std::path::absolute(file).on(file.display());
        let remotes = self.remotes.as_ref().map(absolute).transpose()?;
        Pool::open(
            root,
            self.mounts.as_deref(),
            Arc::new(CliVerbRunner { remotes }),
        )
    }
}

/// `--on-remove`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Removal {
    /// Move it to the pool's trash
    Trash,
    /// Delete it
    Delete,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let root = args.root;
    match args.what {
        // A query creates no pool.
        VolumeCommand::Ls { .. } if !is_pool(&root) => {
            Ok(context.out.answer(&[(); 0], |_| Ok(()))?)
        }
        VolumeCommand::Ls { trash: false } => list(&pool(&root)?, context),
        VolumeCommand::Ls { trash: true } => list_trash(&pool(&root)?, context),
        VolumeCommand::Recover { name } => recover(&made(&root)?, &name, context),
        VolumeCommand::Purge { name } => purge(&made(&root)?, &name, context),
        VolumeCommand::Create { name, options } => create(&pool(&root)?, &name, &options, context),
        VolumeCommand::Rm { name, dry_run, yes } => {
            remove(&made(&root)?, &name, dry_run, yes, context)
        }
        VolumeCommand::Inspect { name } => inspect(&made(&root)?, &name, context),
    }
}

/// Reports whether a driver or `create` has created a pool there.
fn is_pool(root: &Path) -> bool {
    root.join("meta").is_dir()
}

/// Opens the pool, if it exists.
fn made(root: &Path) -> VerbResult<Pool> {
    if !is_pool(root) {
        return Err(hinted(
            Code::NotFound,
            format!("there are no volumes in {}", root.display()),
            format!("{ROOT_VARIABLE} names another pool"),
        ));
    }
    pool(root)
}

/// Opens the pool, and creates it if missing.
fn pool(root: &Path) -> VerbResult<Pool> {
    Pool::open(root, None, Arc::new(CliVerbRunner { remotes: None }))
}

/// Serves container engines until a signal ends it.
pub fn drive(driver: Driver, context: &mut Context) -> Outcome {
    let on_remove = match driver.on_remove {
        Removal::Trash => OnRemove::Trash,
        Removal::Delete => OnRemove::Delete,
    };
    let pool = driver.pool.open(&driver.root)?.with_on_remove(on_remove);
    let socket = std::path::absolute(&driver.socket).on(driver.socket.display())?;
    let shown = pool.registry().root().display().to_string();
    let out = &context.out;
    serve(pool, &socket, |warnings| {
        warnings.iter().for_each(|warning| out.warn(warning));
        out.talk(&format!(
            "serving the volumes in {shown} at {}",
            socket.display()
        ));
    })?;
    Ok(())
}

fn list(pool: &Pool, context: &mut Context) -> Outcome {
    let out = &mut context.out;
    let mut all = Vec::new();
    for record in pool.registry().list()? {
        let point = pool.registry().mountpoint(&record)?;
        let parent = record.parent.as_ref().map(VolumeOrigin::told);
        if out.json {
            let point = point
                .as_ref()
                .map(|point| point.to_string_lossy().into_owned());
            all.push(json!({"name": record.name, "created": record.created, "mountpoint": point, "mounts": record.mounts.len(), "parent": parent, "options": record.options}));
            continue;
        }
        let state = if point.is_some() {
            out.paint(Role::Good, "mounted")
        } else {
            out.paint(Role::Faint, "-")
        };
        let parent = parent.map_or(String::new(), |parent| format!("  from {parent}"));
        out.line(&format!(
            "{}  {}  {state}{parent}",
            record.name, record.created
        ))?;
    }
    if out.json {
        out.json(&all)?;
    }
    Ok(())
}

fn list_trash(pool: &Pool, context: &mut Context) -> Outcome {
    let out = &mut context.out;
    let all = pool.trash().list()?;
    let told: Vec<_> = all
        .iter()
        .map(|thrown| json!({"name": thrown.name, "volume": thrown.volume}))
        .collect();
    out.answer(&told, |out| {
        all.iter().try_for_each(|thrown| out.line(&thrown.name))
    })
}

fn recover(pool: &Pool, text: &str, context: &mut Context) -> Outcome {
    let name = pool.trash().recover(text)?;
    context
        .out
        .answer(&json!({"recovered": name}), |out| out.line(&name))
}

fn purge(pool: &Pool, text: &str, context: &mut Context) -> Outcome {
    pool.trash().purge(text)?;
    context.out.talk(&format!("{text} is deleted"));
    context.out.answer(&json!({"purged": text}), |_| Ok(()))
}

fn create(pool: &Pool, name: &str, options: &[String], context: &mut Context) -> Outcome {
    let mut given = BTreeMap::new();
    for option in options {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if given.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(error(Code::BadOption, format!("the option {name} is given twice")).into());
        }
    }
    let record = pool.create(name, &given)?;
    context.out.answer(&json!({"created": record.name}), |out| {
        out.line(&record.name)
    })
}

fn remove(pool: &Pool, name: &str, dry_run: bool, yes: bool, context: &mut Context) -> Outcome {
    let record = pool.registry().get(name)?;
    let checkpoints = pool
        .registry()
        .history(&record)
        .and_then(|history| history.checkpoints())
        .map_or(0, |list| list.len());
    let out = &mut context.out;
    let trash = pool.keeps(&record)?;
    let how = if trash {
        "moved to the trash"
    } else {
        "deleted"
    };
    let told =
        json!({"removed": name, "checkpoints": checkpoints, "trash": trash, "dry_run": dry_run});
    if dry_run {
        return out.answer(&told, |out| {
            out.line(&format!(
                "volume {name} with {} would be {how}",
                count(checkpoints, "checkpoint")
            ))
        });
    }
    out.go_on(
        yes,
        &format!(
            "volume {name} with {} will be {how}. Go on?",
            count(checkpoints, "checkpoint")
        ),
        "nothing was removed",
    )?;
    if let Some(gone) = pool.remove(name)? {
        std::fs::remove_dir_all(&gone).on(gone.display())?;
    }
    out.talk(&format!("volume {name} is {how}"));
    out.answer(&told, |_| Ok(()))
}

fn inspect(pool: &Pool, text: &str, context: &mut Context) -> Outcome {
    let value = protocol::inspect(pool.registry(), text)?;
    let text = serde_json::to_string_pretty(&value)
        .map_err(|cause| error(Code::Internal, cause.to_string()))?;
    context.out.answer(&value, |out| out.line(&text))
}

/// Runs a verb on a volume, which is mounted for its duration if necessary.
pub fn with(
    text: &str,
    context: &mut Context,
    verb: impl FnOnce(&mut Context) -> Outcome,
) -> Outcome {
    let named = name::parse(text)?;
    if named.checkpoint.is_some() {
        let hint = format!(
            "name the volume, and the checkpoint as the verb wants it: --volume {}",
            named.volume
        );
        return Err(hinted(
            Code::BadName,
            format!("{text} is a past state of a volume"),
            hint,
        )
        .into());
    }
    if let Some(branch) = &named.branch {
        return Err(hinted(
            Code::BadName,
            format!("{text} is a branch of a volume"),
            format!(
                "name the volume: ckptfs --volume {} branch diff {}",
                named.volume,
                word(branch)
            ),
        )
        .into());
    }
    let root = std::env::var_os(ROOT_VARIABLE).map_or_else(|| PathBuf::from(ROOT), PathBuf::from);
    let pool = made(&root)?;
    pool.registry().get(&named.volume)?;
    pool.mounts().during(&named.volume, &named.volume, |point| {
        context.dir = Some(point);
        verb(context)
    })
}

/// Formats all options for `--help`.
fn options_help() -> String {
    let lines = OPTIONS
        .iter()
        .map(|(name, wanted)| format!("  {name:<12} {wanted}\n"));
    format!("Options:\n{}", lines.collect::<String>())
}
