//! Volumes that an orchestrator has staged.
//!
//! The kubelet unstages a volume only when no other mount in its table has the same device and root
//! (`GetDeviceMountRefs`). Therefore a staged volume is mounted where it is staged and not at its own
//! place in the pool, unless something else uses it there. It is bound to the new place and then taken
//! away from the old one, in both directions, so the filesystem remains the same. A driver that is killed
//! between the two leaves both, and [`Mounts::settle`] of the next one finds them.

use std::path::Path;

use super::bind::{self, There};
use super::error::On;
use super::facts;
use super::mounts::{Mounts, is_own};
use super::name::Named;
use super::record::{MountId, Record};
use crate::engine::api::VerbResult;
use crate::sys::{self, MountPoint};

/// How the uses of an orchestrator begin; an engine's are hexadecimal.
const STAGED_ID: &str = "csi-";

/// A staged volume is used in the pool under this name.
fn use_id(staging: &Path) -> String {
    let hash = blake3::hash(staging.as_os_str().as_encoded_bytes());
    format!("{STAGED_ID}{}", hash.to_hex())
}

fn is_staged(mount: &MountId) -> bool {
    mount.id.starts_with(STAGED_ID)
}

impl Mounts {
    /// Mounts a volume at `at`, which is made if it is not there.
    ///
    /// # Errors
    /// As of [`Mounts::mount`] and [`bind::bind`].
    pub fn stage(&self, volume: &str, at: &Path) -> VerbResult<()> {
        self.mount(&Named::whole(volume), &use_id(at), None)?;
        let read_only = self.registry.get(volume)?.parsed()?.readonly;
        self.show(volume, at, read_only, &[])
    }

    /// Shows a volume that is mounted at `at` too: [`bind::bind`].
    ///
    /// # Errors
    /// Those of that.
    pub fn show(
        &self,
        volume: &str,
        at: &Path,
        read_only: bool,
        options: &[&str],
    ) -> VerbResult<()> {
        // Until it is shown here it stays where it is.
        let _locked = self.registry.lock(volume)?;
        let record = self.registry.get(volume)?;
        let place = self.registry.place(&record)?;
        bind::bind(&place, at, read_only, options)?;
        self.settle(&record, None)
    }

    /// Ends the use of a volume that was staged at `at`, or shown there.
    ///
    /// # Errors
    /// It is in use there.
    pub fn unstage(&self, volume: &str, at: &Path) -> VerbResult<()> {
        self.hide(volume, at)?;
        self.unmount(&Named::whole(volume), &use_id(at))
    }

    fn hide(&self, volume: &str, at: &Path) -> VerbResult<()> {
        if self.registry.load(volume)?.is_none() {
            return Ok(());
        }
        let _locked = self.registry.lock(volume)?;
        let Some(record) = self.registry.load(volume)? else {
            return Ok(());
        };
        let place = self.registry.place(&record)?;
        if matches!(bind::there(&place, at)?, There::Volume { .. }) {
            // It is saved without the use afterwards: a driver that is killed in between is asked
            // again.
            let mut left = record.clone();
            left.take(&use_id(at));
            self.settle(&left, Some(at))?;
        }
        bind::unbind(&place, at).inspect_err(|_| {
            if let Err(error) = self.settle(&record, None) {
                tracing::warn!(name = volume, error = error.message, "it is shown twice");
            }
        })
    }

    /// Has a mounted volume at its own place if it is not staged, or something else uses it, and only
    /// where it is staged otherwise. `leaving`: a place that it will be taken away from. The caller has
    /// the volume's lock. A mount that does not answer is not waited for, unless it has to be bound.
    pub(super) fn settle(&self, record: &Record, leaving: Option<&Path>) -> VerbResult<()> {
        let place = self.registry.place(record)?;
        let table = facts::table()?;
        let all = facts::shown(&table, &place);
        if !place.chosen || all.is_empty() {
            return Ok(());
        }
        let home = facts::ours(&table, &place.point);
        let is_elsewhere = |mount: &MountPoint| {
            mount.at != place.point
                && Some(mount.at.as_path()) != leaving
                && home.is_none_or(|home| home.dev == mount.dev)
        };
        let is_moved = record.mounts.iter().any(is_staged) && all.into_iter().any(is_elsewhere);
        // The use of a process that was killed has ended, or is a mount in another namespace.
        let mut others = record
            .mounts
            .iter()
            .filter(|mount| !is_staged(mount) && !mount.is_orphan());
        match home {
            // A verb goes on where it began.
            Some(_) if is_moved && others.next().is_none() => {
                sys::unmount(&place.point, true).on(place.point.display())
            }
            None if !is_moved || !others.all(|mount| is_own(&mount.id)) => {
                let read_only = record.parsed()?.readonly;
                bind::bind(&place, &place.point, read_only, &[])
            }
            _ => Ok(()),
        }
    }
}
