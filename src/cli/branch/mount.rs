//! `ckptfs branch mount`.

use ckptfs_api::MountBranch;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::locate;
use ckptfs_ui::progress::Spinner;

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
