//! `ckptfs redo`.

use super::undo;
use ckptfs_api::{UndoOptions, UndoWalk};
use ckptfs_ui::changes;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;

/// Redo the operations that were undone last
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of operations
    #[arg(value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Skip operations that cannot be redone
    #[arg(long)]
    skip: bool,
    /// Only show what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    listed: changes::ListAllArg,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let options = UndoOptions {
        walk: UndoWalk::Redo(args.count as usize),
        skip: args.skip,
        force: false,
        dry_run: args.dry_run,
    };
    undo::walk_and_tell(options, "redone", args.listed, context)
}
