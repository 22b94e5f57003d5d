//! `ckptfs remote-reader`: see `remote::restic::lazy::reader`.

use std::os::fd::AsFd;

use super::super::holder::null;
use super::super::remotes::names;
use super::repository;
use ckptfs_core::engine::origin::TYPED_PASSWORD;
use ckptfs_remote::limits::Limits;
use ckptfs_remote::restic::OpenPurpose;
use ckptfs_remote::restic::lazy::reader;
use ckptfs_sys::{self as sys, host};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome};

/// The process that reads a remote for a daemon, which starts it
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The name of the remote
    remote: String,
    /// The number of the repository there
    repository: String,
}

/// Serves the daemon at the other end of stdin until that end is closed.
pub fn run(args: Args, _: &mut Context) -> Outcome {
    sys::limit_memory(Limits::new().process());
    let control = std::io::stdin().as_fd().try_clone_to_owned().on("stdin")?;
    // The password command inherits stdin, and must not read the daemon's requests.
    null()
        .and_then(|null| Ok(host::redirect_stdio(0, null.as_fd())?))
        .on("stdin")?;
    // Reads the configuration each time, so that a corrected address or password needs no remount.
    let opener = move || {
        let names = names()?;
        let named = names.get(&args.remote)?;
        let password = named.password()?;
        let password = password.or_else(|| std::env::var(TYPED_PASSWORD).ok());
        repository::open_with(named, &password.unwrap_or_default(), OpenPurpose::Serve)
    };
    Ok(reader::serve(&control, Box::new(opener), args.repository).on("stdin")?)
}
