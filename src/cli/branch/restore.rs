//! `ckptfs branch restore`.

use super::drop::recall_in_git;
use ckptfs_api::ReviveBranch;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::locate;

/// Bring a dropped branch back to its directory, and print the path
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The branch; of several with this name the one that was made last
    #[arg(value_name = "NAME")]
    name: String,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let back = served.client.ask(ReviveBranch { name: args.name })?;
    recall_in_git(&served, &back, &context.out);
    super::create::print(&back, context)
}
