//! `ckptfs mount --from`, and later mounts of such trees.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::super::export_common;
use super::super::launch;
use super::super::origin::OriginInputs;
use super::super::remotes::names;
use super::{oci, repository};
use ckptfs_api::display::word;
use ckptfs_api::{Code, VerbResult};
use ckptfs_core::engine::origin::ServedOrigin;
use ckptfs_remote::restic::lazy::record::StoredOrigin;
use ckptfs_remote::restic::lazy::{FetchOptions, RemoteBase};
use ckptfs_remote::restic::{OpenPurpose, guarded};
use ckptfs_sys as sys;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, hinted};
use ckptfs_ui::output::can_ask;
use ckptfs_volumes::tool;

/// Makes `dest`, which is empty or missing, a tree that looks through to a checkpoint of a remote,
/// unless it is one already. `from`: `REMOTE[:ID]`.
///
/// # Errors
/// `not-empty`; those of the remote.
pub fn begin(from: &str, dest: &Path, context: &mut Context) -> VerbResult<OriginInputs> {
    if oci::is_place(from) {
        return Err(hinted(
            Code::BadRemote,
            "an image cannot be mounted before all of it is here",
            format!("ckptfs pull {} --into DIR --mount", word(from)),
        ));
    }
    let (name, id) = match from.split_once(':') {
        Some((name, id)) => (name, Some(id)),
        None => (from, None),
    };
    let names = names()?;
    let named = names.get(name)?;
    let root = File::from(export_common::open_destination(dest)?);
    if StoredOrigin::is_there(&root) {
        return again((name, id), dest, &root, context);
    }
    if !sys::list_dir(&root)
        .on(dest.display())?
        .iter()
        .all(|entry| entry.name == b".ckptfs")
        || ckptfs_store::layout::is_made(&root)
    {
        return Err(hinted(
            Code::NotEmpty,
            format!(
                "{} is not empty, and nothing was mounted from a remote there",
                dest.display()
            ),
            "name a directory that does not exist or is empty",
        ));
    }
    let (password, typed) = match named.password()? {
        Some(password) => (password, None),
        None => {
            let typed = repository::asked(named)?;
            (typed.clone(), Some(typed))
        }
    };
    let (left_out, checkpoint) = guarded(|| {
        let remote = repository::open_with(named, &password, OpenPurpose::Verb)?;
        let pushed = super::pull::choose(remote.pushed(None)?, (name, id), context)?;
        Ok((remote.make_origin(name, &pushed, &root)?, pushed.checkpoint))
    })?;
    if left_out > 0 {
        context.out.warn(&format!(
            "left out: {}, of kinds that cannot be made here",
            ckptfs_api::display::count(left_out, "name")
        ));
    }
    Ok(OriginInputs {
        password: typed,
        note: Some(format!("mounted from checkpoint {checkpoint} of {name}")),
    })
}

/// Accepts an existing tree if it is from the same checkpoint.
fn again(
    (name, id): (&str, Option<&str>),
    dest: &Path,
    root: &File,
    context: &mut Context,
) -> VerbResult<OriginInputs> {
    let Some(stored) = StoredOrigin::of(root)? else {
        return Ok(OriginInputs::default());
    };
    let record = &stored.record;
    let same = id.is_none_or(|id| {
        id == "latest"
            || id == record.checkpoint.to_string()
            || id.len() >= 6 && record.snapshot.starts_with(id)
    });
    if record.remote != name || !same {
        return Err(hinted(
            Code::NotEmpty,
            format!(
                "{} was mounted from checkpoint {} of {}",
                dest.display(),
                record.checkpoint,
                record.remote
            ),
            "mount it with: ckptfs mount DIR; mount another checkpoint in a directory of its own",
        ));
    }
    goes_on(root, context)
}

/// Prepares another mount of a tree that was mounted from a remote, and asks for the password.
///
/// # Errors
/// `bad-store`. Without a password only a warning is printed.
pub fn goes_on(root: impl AsFd, context: &mut Context) -> VerbResult<OriginInputs> {
    let mut begun = OriginInputs::default();
    let Some(stored) = StoredOrigin::of(root)? else {
        return Ok(begun);
    };
    let password = names().and_then(|names| {
        let named = names.get(&stored.record.remote)?;
        match named.password()? {
            None if can_ask() => repository::asked(named).map(Some),
            _ => Ok(None),
        }
    });
    match password {
        Ok(typed) => begun.password = typed,
        // Names and local content are served without it.
        Err(error) => context.out.warn(&format!(
            "what is not here cannot be read: {}",
            error.message
        )),
    }
    Ok(begun)
}

/// Returns the remote that a tree looks through to; `None` for a tree that was not mounted from
/// one.
///
/// # Errors
/// `bad-store`; `io`.
pub fn of(root: &OwnedFd, wishes: (Option<u64>, bool)) -> VerbResult<Option<ServedOrigin>> {
    let Some(stored) = StoredOrigin::of(root)? else {
        return Ok(None);
    };
    let (name, repository) = (&stored.record.remote, &stored.record.repository);
    let arguments = ["remote-reader", name, repository].map(str::to_owned);
    let starter = move |stdin: OwnedFd| {
        let mut command = Command::new(launch::program());
        tool::clean(&mut command);
        command
            .arg0("ckptfs")
            .args(&arguments)
            .stdin(stdin)
            .stdout(Stdio::null())
            .spawn()
    };
    let (limit, on_open_only) = wishes;
    let wishes = FetchOptions {
        limit,
        on_open_only,
    };
    let lazy = RemoteBase::open(stored, Box::new(starter), wishes)?;
    Ok(Some(ServedOrigin(Arc::new(lazy))))
}
