//! `ckptfs pull`.

use std::path::PathBuf;

use super::super::context::Context;
use super::super::error::Outcome;
use super::oci;

/// Fetch a checkpoint from a remote into a new directory
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The name of a remote (ckptfs remote add), or oci://HOST/NAME:TAG
    #[arg(value_name = "REMOTE")]
    pub(super) remote: String,
    /// The checkpoint: its number or a tag, as `ckptfs remote log` shows it; default: the newest
    #[arg(value_name = "ID")]
    pub(super) id: Option<String>,
    /// The directory: it does not exist, is empty, or holds an earlier pull
    #[arg(long, value_name = "DIR")]
    pub(super) into: PathBuf,
    /// Of an image: keep set-id bits, devices and the system's attributes, which whoever may write
    /// to the registry could have made
    #[arg(long)]
    pub(super) trusted: bool,
    #[command(flatten)]
    pub(super) registry: oci::Options,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    if oci::is_place(&args.remote) {
        return oci::pull(&args, context);
    }
    Ok(())
}
