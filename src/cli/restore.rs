//! `ckptfs restore`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{restore_target, stale_handles};
use ckptfs_api::{Change, ChangeKind, OnlyBy, RestoreOptions, Restored, StateName, Times};
use ckptfs_sys::Kind;
use ckptfs_ui::changes_by_process;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome};
use ckptfs_ui::interrupt::Interrupt;
use ckptfs_ui::output::Out;
use ckptfs_ui::{changes, locate, time};

/// Bring the tree, or some paths of it, back to an earlier state
///
/// The current state is saved as a checkpoint first, so that a restore can be undone.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A number, a tag, or `latest`; `ID:PATH`; or just a path: its newest version that differs
    /// from the tree
    #[arg(value_name = "ID", required_unless_present = "only_by")]
    id: Option<String>,
    /// Only these paths, and paths below them; relative to the working directory
    #[arg(value_name = "PATHS")]
    paths: Vec<PathBuf>,
    /// The modification time of changed files: `kept`, the earlier time, or `now`, so that build
    /// tools rebuild from them. By default `now` for paths and --only-by, `kept` for the whole tree
    #[arg(long, value_enum, value_name = "WHICH")]
    times: Option<TimesArg>,
    /// Only list the changes
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    listed: changes::ListAllArg,
    /// Revert only the changes of this process since ID (by default since the newest checkpoint): a
    /// process id, session:PID for its whole session, the path of a control group (/...), or a
    /// name. Paths that others also changed are left unchanged, and listed
    #[arg(
        long,
        value_name = "PID|session:PID|CGROUP|NAME",
        conflicts_with = "paths"
    )]
    only_by: Option<String>,
    /// With --only-by: also revert the paths that others changed
    #[arg(long, requires = "only_by")]
    also_shared: bool,
}

/// `--times`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TimesArg {
    Kept,
    Now,
}

impl From<TimesArg> for Times {
    fn from(said: TimesArg) -> Times {
        match said {
            TimesArg::Kept => Times::Kept,
            TimesArg::Now => Times::Now,
        }
    }
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let times = args.times.map(Times::from);
    if let Some(who) = args.only_by {
        let options = OnlyBy {
            to: args.id.map(StateName),
            who,
            paths: Vec::new(),
            also_shared: args.also_shared,
            past_rewinds: false,
            of_user: None,
            dry_run: args.dry_run,
            times,
        };
        return only_by(&mut served, options, args.listed, context);
    }
    let (to, paths) =
        restore_target::meant(&mut served, &args.id.unwrap_or_default(), &args.paths)?;
    let options = RestoreOptions {
        to,
        paths,
        dry_run: args.dry_run,
        times,
    };
    let interrupt = Interrupt::gives_up(&served.client)?;
    let restored = interrupt.ask(&mut served.client, options, "restoring", &context.out)?;
    if context.out.json {
        context.out.json(&restored)?;
    } else {
        print(&restored, args.listed, context)?;
    }
    warn_of_holders(&served.root, &restored, &context.out);
    interrupt.end(&context.out)?;
    told(&restored)
}

/// Warns about processes that still use replaced files: their writes are lost, and a database may
/// not notice.
pub fn warn_of_holders(root: &Path, restored: &Restored, out: &Out) {
    let replaced =
        |change: &&Change| change.kind == Kind::File && change.change != ChangeKind::Added;
    let path = |change: &Change| {
        PathBuf::from(OsStr::from_bytes(
            &change.from.as_ref().unwrap_or(&change.path).0,
        ))
    };
    let files: HashSet<PathBuf> = restored.changes.iter().filter(replaced).map(path).collect();
    if restored.guard.is_none() || files.is_empty() {
        return;
    }
    for holder in stale_handles::holders(root, &files) {
        out.warn(&format!(
            "{holder}, in its old version: what it writes there is lost until it reopens its files"
        ));
    }
}

/// Fails if a path was left unchanged because its earlier state is unknown.
pub fn told(restored: &Restored) -> Outcome {
    if restored.unknown.is_empty() {
        Ok(())
    } else {
        Err(Failure::No)
    }
}

fn only_by(
    served: &mut locate::ServedTree,
    options: OnlyBy,
    listed: changes::ListAllArg,
    context: &mut Context,
) -> Outcome {
    let interrupt = Interrupt::gives_up(&served.client)?;
    let restored = interrupt.ask(&mut served.client, options, "restoring", &context.out)?;
    if context.out.json {
        context.out.json(&restored)?;
        warn_of_holders(&served.root, &restored.restored, &context.out);
        return interrupt.end(&context.out);
    }
    changes_by_process::warn_shared(&context.out, &restored);
    if restored.restored.changes.is_empty() && !restored.restored.dry_run {
        context.out.line("nothing to take back")?;
    } else {
        print(&restored.restored, listed, context)?;
    }
    warn_of_holders(&served.root, &restored.restored, &context.out);
    interrupt.end(&context.out)
}

pub fn print(restored: &Restored, listed: changes::ListAllArg, context: &mut Context) -> Outcome {
    listed.print(&mut context.out, &restored.changes)?;
    warn(restored, &context.out);
    let summary = summary(restored);
    Ok(context.out.line(&summary)?)
}

/// Warns about paths that a restore leaves unchanged, or separates from their hard links.
pub fn warn(restored: &Restored, out: &Out) {
    for path in &restored.unknown {
        let path = String::from_utf8_lossy(&path.0);
        out.warn(&format!(
            "the state of {path} in checkpoint {} is not known: it is left as it is",
            restored.restored
        ));
    }
    for path in &restored.dropped {
        let path = String::from_utf8_lossy(&path.0).into_owned();
        out.warn(&format!(
            "{path} is left as it is: a retention rule has dropped content of it from checkpoint {}",
            restored.restored
        ));
    }
    for path in &restored.mounted {
        let path = String::from_utf8_lossy(&path.0).into_owned();
        out.warn(&format!(
            "{path} is left as it is: another filesystem is mounted there or below"
        ));
    }
    for path in &restored.split {
        let path = String::from_utf8_lossy(&path.0).into_owned();
        out.warn(&format!("{path} is no longer a hard link to names that were not restored: it is a separate file now"));
    }
}

fn summary(restored: &Restored) -> String {
    let Restored {
        restored: id,
        guard,
        changes,
        unknown,
        dropped: _,
        mounted: _,
        split: _,
        dry_run,
        duration_us,
    } = restored;
    let count = changes::count(changes.len() as u64);
    match guard {
        _ if *dry_run => format!("restore of checkpoint {id} would make {count}"),
        Some(guard) => {
            format!(
                "restored checkpoint {id}: {count} in {}; the previous state is checkpoint {guard}",
                time::duration(*duration_us)
            )
        }
        None if !unknown.is_empty() => {
            format!("nothing was restored: everything else is the same as in checkpoint {id}")
        }
        None => format!("nothing to restore: everything is the same as in checkpoint {id}"),
    }
}
