//! `ckptfs branch mount`.

use super::super::context::Context;
use super::super::error::Outcome;
use super::super::locate;
use super::super::progress::Spinner;
use ckptfs_api::MountBranch;

/// Mount a branch again, and print its path
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The branch
    #[arg(value_name = "NAME")]
    name: String,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    // Includes the wait for a mount that is just ending.
    let spinner = Spinner::start(&context.out, "mounting");
    let mounted = served.client.ask(MountBranch { name: args.name });
    spinner.stop();
    let mounted = mounted?;
    super::create::print(&mounted, context)
}
