//! `ckptfs restore`.

use std::path::PathBuf;

use super::error::Outcome;
use super::progress::Spinner;
use super::tree_path::in_tree;
use super::{Context, changes, locate, time};
use crate::engine::api::{RestoreOptions, Restored, StateName, TreePath, VerbResult};

/// Make the tree, or some paths of it, what it was
///
/// A checkpoint of what is there now is made first and named, so that a restore can be undone by another one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A number, a tag, or `latest`
    #[arg(value_name = "ID")]
    id: String,
    /// Only these, and what is below them; relative ones start at the working directory
    #[arg(value_name = "PATHS")]
    paths: Vec<PathBuf>,
    /// Only list what would change
    #[arg(short = 'n', long)]
    dry_run: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let paths: Vec<TreePath> = args.paths.iter().map(|path| in_tree(&served.root, &served.cwd, path)).collect::<VerbResult<_>>()?;
    let options = RestoreOptions { to: StateName(args.id.clone()), paths, dry_run: args.dry_run };
    let spinner = Spinner::start(&context.out, "restoring");
    let answer = served.client.restore(options);
    spinner.stop();
    let restored = answer?;
    if context.out.json {
        return Ok(context.out.json(&restored)?);
    }
    changes::print(&mut context.out, &restored.changes)?;
    for path in &restored.unknown {
        let path = String::from_utf8_lossy(&path.0).into_owned();
        let path = context.out.text(&path);
        eprintln!("Warning: {path} was changed while nothing was mounted; it stays as it is");
    }
    let summary = summary(&restored);
    Ok(context.out.line(&summary)?)
}

fn summary(restored: &Restored) -> String {
    let Restored { restored: id, guard, changes, unknown: _, dry_run, duration_us } = restored;
    let count = changes::count(changes.len() as u64);
    match guard {
        _ if *dry_run => format!("restore of checkpoint {id} would make {count}"),
        Some(guard) => {
            format!("restored checkpoint {id}: {count} in {}; what was there before is checkpoint {guard}", time::duration(*duration_us))
        }
        None => format!("restored checkpoint {id}: {count} in {}", time::duration(*duration_us)),
    }
}
