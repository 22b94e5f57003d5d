//! `ckptfs restore`.

use std::path::PathBuf;

use super::by;
use super::error::Outcome;
use super::progress::Spinner;
use super::tree_path::in_tree;
use super::{Context, changes, locate, time};
use crate::engine::api::who::OnlyBy;
use crate::engine::api::{RestoreOptions, Restored, StateName, TreePath, VerbResult};

/// Make the tree, or some paths of it, what it was
///
/// A checkpoint of what is there now is made first and named, so that a restore can be undone by another one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A number, a tag, or `latest`
    #[arg(value_name = "ID", required_unless_present = "only_by")]
    id: Option<String>,
    /// Only these, and what is below them; relative ones start at the working directory
    #[arg(value_name = "PATHS")]
    paths: Vec<PathBuf>,
    /// Only list what would change
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Take back only what this process changed since (the newest checkpoint if no ID is given): a process id, the path of a control group (/...), or a
    /// name; what others changed too stays, and is named
    #[arg(long, value_name = "PID|CGROUP|NAME", conflicts_with = "paths")]
    only_by: Option<String>,
    /// With --only-by: also what others changed too
    #[arg(long, requires = "only_by")]
    also_shared: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    if let Some(who) = args.only_by {
        let options = OnlyBy { to: args.id.map(StateName), who, also_shared: args.also_shared, dry_run: args.dry_run };
        return only_by(&mut served, options, context);
    }
    let paths: Vec<TreePath> = args.paths.iter().map(|path| in_tree(&served.root, &served.cwd, path)).collect::<VerbResult<_>>()?;
    let options = RestoreOptions { to: StateName(args.id.unwrap_or_default()), paths, dry_run: args.dry_run };
    let spinner = Spinner::start(&context.out, "restoring");
    let answer = served.client.restore(options);
    spinner.stop();
    let restored = answer?;
    if context.out.json {
        return Ok(context.out.json(&restored)?);
    }
    print(&restored, context)
}

fn only_by(served: &mut locate::Served, options: OnlyBy, context: &mut Context) -> Outcome {
    let spinner = Spinner::start(&context.out, "restoring");
    let answer = served.client.restore_only_by(options);
    spinner.stop();
    let restored = answer?;
    if context.out.json {
        return Ok(context.out.json(&restored)?);
    }
    by::warn_shared(&context.out, &restored);
    if restored.restored.changes.is_empty() && !restored.restored.dry_run {
        context.out.line("nothing to take back")?;
        return Ok(());
    }
    print(&restored.restored, context)
}

fn print(restored: &Restored, context: &mut Context) -> Outcome {
    changes::print(&mut context.out, &restored.changes)?;
    for path in &restored.unknown {
        let path = String::from_utf8_lossy(&path.0).into_owned();
        let path = context.out.text(&path);
        eprintln!("Warning: {path} was changed while nothing was mounted; it stays as it is");
    }
    for path in &restored.dropped {
        let path = String::from_utf8_lossy(&path.0).into_owned();
        context.out.warn(&format!("{path} stays as it is: a tier has dropped something of it from checkpoint {}", restored.restored));
    }
    let summary = summary(restored);
    Ok(context.out.line(&summary)?)
}

fn summary(restored: &Restored) -> String {
    let Restored { restored: id, guard, changes, unknown: _, dropped: _, dry_run, duration_us } = restored;
    let count = changes::count(changes.len() as u64);
    match guard {
        _ if *dry_run => format!("restore of checkpoint {id} would make {count}"),
        Some(guard) => {
            format!("restored checkpoint {id}: {count} in {}; what was there before is checkpoint {guard}", time::duration(*duration_us))
        }
        None => format!("restored checkpoint {id}: {count} in {}", time::duration(*duration_us)),
    }
}
