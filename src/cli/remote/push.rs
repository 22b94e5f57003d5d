//! `ckptfs push`.

use super::super::context::Context;
use super::super::error::Outcome;
use super::oci;

/// Send checkpoints to a remote: a repository in restic's format, or an image in a registry
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The name of a remote (ckptfs remote add), or oci://HOST/NAME:TAG
    #[arg(value_name = "REMOTE")]
    pub(super) remote: String,
    /// Checkpoints: numbers or tags; default: all that the remote has not (of an image: `latest`)
    #[arg(value_name = "ID")]
    pub(super) ids: Vec<String>,
    /// Only show what would be done
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) registry: oci::Options,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    if oci::is_place(&args.remote) {
        return oci::push(&args, context);
    }
    Ok(())
}
