//! Other projects that an import shares content with.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::export_common;
use ckptfs_api::{Code, ImportAsk, VerbResult};
use ckptfs_sys::{self as sys, Errno};
use ckptfs_transfer::import::contents;
use ckptfs_transfer::import::record::ImportRecord;
use ckptfs_transfer::import::record_files::StoredRecord;
use ckptfs_transfer::import::scan;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, hinted, io_error};
use ckptfs_ui::locate::{self, TreeLocation};
use ckptfs_ui::progress::Spinner;

/// A tree, and the known contents of its files.
pub struct ContentSource {
    /// The directory itself, even if a mount covers it.
    pub root: OwnedFd,
    /// Its files with their hashes.
    pub record: ImportRecord,
}

/// Reads the records of trees; a tree without a record is hashed.
pub fn read(
    cwd: &Path,
    dirs: &[PathBuf],
    threads: usize,
    context: &Context,
) -> VerbResult<Vec<ContentSource>> {
    dirs.iter()
        .map(|dir| one(&export_common::destination(cwd, dir), threads, context))
        .collect()
}

fn one(path: &Path, threads: usize, context: &Context) -> VerbResult<ContentSource> {
    let real = path.canonicalize().on(path.display())?;
    let (root, known) = match locate::locate(real.clone())? {
        TreeLocation::Served(mut served) if served.root == real => {
            let (_, fds) = served.client.ask_with_files(ImportAsk::Look)?;
            let root = fds
                .into_iter()
                .next()
                .ok_or_else(|| io_error(path.display(), Errno::EMFILE))?;
            let store = served
                .client
                .store()
                .filter(|store| store.is_in(&root).unwrap_or(false))
                .ok_or_else(|| io_error(path.display(), Errno::ESTALE))?;
            (root, StoredRecord::read(store.dir()).record)
        }
        stale @ TreeLocation::Stale { .. } => return Err(locate::not_served(&stale)),
        TreeLocation::Store { root, store } if root == real => (
            sys::open_root(&real).on(path.display())?,
            StoredRecord::read(store.dir()).record,
        ),
        // The record of another user is not trusted.
        _ => (sys::open_root(&real).on(path.display())?, None),
    };
    if let Some(record) = known.filter(|record| {
        record
            .dirs
            .values()
            .flatten()
            .any(|known| known.hash.is_some())
    }) {
        return Ok(ContentSource { root, record });
    }
    let spinner = Spinner::start(&context.out, "hashing");
    let hashed =
        scan::scan(&root, threads).and_then(|scan| contents::hash_all(&root, &scan, threads));
    spinner.stop();
    let record = hashed.map_err(|cause| {
        hinted(
            Code::Io,
            format!("{}: {cause}", path.display()),
            "name a ckptfs tree, or leave it out",
        )
    })?;
    Ok(ContentSource { root, record })
}
