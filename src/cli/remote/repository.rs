//! Common parts of the verbs for remotes: opening a repository, and the store of a tree.

use super::super::export_common::ExportStream;
use ckptfs_api::{Code, ListCheckpoints, VerbResult};
use ckptfs_remote::restic::config::RemoteConfig;
use ckptfs_remote::restic::{OpenPurpose, Remote};
use ckptfs_ui::error::{error, hinted, io_error};
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::output::can_ask;

/// Opens a repository; asks for the password if none is configured.
///
/// # Errors
/// `bad-password`, `no-terminal`; those of the repository.
pub fn open(named: &RemoteConfig, purpose: OpenPurpose) -> VerbResult<Remote> {
    let password = match named.password()? {
        Some(password) => password,
        None => asked(named)?,
    };
    open_with(named, &password, purpose)
}

/// Asks the user for the password.
///
/// # Errors
/// `no-terminal`.
pub fn asked(named: &RemoteConfig) -> VerbResult<String> {
    if can_ask() {
        let asked = rpassword::prompt_password(format!("password of {}: ", named.url));
        return asked.map_err(|cause| io_error("the terminal", cause));
    }
    Err(hinted(
        Code::NoTerminal,
        format!("no password is known for {}", named.url),
        "set CKPTFS_REMOTE_PASSWORD, or name a file or a command: ckptfs remote add \
         NAME URL --force --password-file FILE",
    ))
}

/// Like [`open`], with this password.
///
/// # Errors
/// `bad-password`; those of the repository.
pub fn open_with(named: &RemoteConfig, password: &str, purpose: OpenPurpose) -> VerbResult<Remote> {
    if password.is_empty() {
        return Err(hinted(
            Code::BadPassword,
            "the password is empty",
            "whoever may read the repository would read everything in it",
        ));
    }
    let remote = Remote::open(&named.url, password, purpose)?;
    if let Some(limit) = named.limit {
        remote.limit(limit);
    }
    Ok(remote)
}

/// Returns the number of a tree's store; `None`: it has no checkpoint yet.
pub fn store_of(served: &mut ServedTree) -> VerbResult<Option<String>> {
    let checkpoints = served.client.ask(ListCheckpoints)?;
    let Some(newest) = checkpoints.first() else {
        return Ok(None);
    };
    let Some(client) = served.client.again() else {
        return Err(error(Code::DaemonLost, "the daemon is gone"));
    };
    Ok(Some(
        ExportStream::whole(client, newest.id, None)?.part.store,
    ))
}
