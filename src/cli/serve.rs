//! `ckptfs serve`: the drivers of container volumes.

use clap::Subcommand;

#[cfg(feature = "csi")]
use super::csi;
use super::volumes;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;

/// Serve container volumes to Docker, Podman or Kubernetes, until a signal ends it
///
/// Mounted volumes stay mounted. Any other verb acts on a volume with --volume NAME, while
/// containers use it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: ServeCommand,
}

#[derive(Debug, Subcommand)]
enum ServeCommand {
    /// The volume driver of Docker and Podman
    Volumes(volumes::Driver),
    /// The CSI driver, for Kubernetes: snapshots are checkpoints, ready at once
    #[cfg(feature = "csi")]
    Csi(csi::Args),
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    match args.what {
        ServeCommand::Volumes(driver) => volumes::drive(driver, context),
        #[cfg(feature = "csi")]
        ServeCommand::Csi(args) => csi::run(args, context),
    }
}
