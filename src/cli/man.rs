//! `ckptfs man`: the manual, for `make install` and packages.

use std::path::PathBuf;

use super::Context;
use super::error::{On, Outcome};

/// Write the manual to a directory: ckptfs.1, and a page for each verb
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory, which is made if it is not there
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub fn run(args: Args, _: &mut Context) -> Outcome {
    std::fs::create_dir_all(&args.dir).on(args.dir.display())?;
    Ok(clap_mangen::generate_to(super::command(), &args.dir).on(args.dir.display())?)
}
