//! `ckptfs browse`: runs `ckptfs-browse`.

use std::path::PathBuf;

use super::satellite;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;

/// Browse checkpoints, their changes and past files in the terminal, and restore them
///
/// `?` shows the keys.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show the versions of this file or directory first; relative to the working directory
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut command = satellite::command("browse", context)?;
    command.args(
        args.path
            .iter()
            .flat_map(|path| ["--".as_ref(), path.as_os_str()]),
    );
    satellite::run(command)
}
