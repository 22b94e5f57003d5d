//! Volumes staged by an orchestrator.
//!
//! The kubelet unstages a volume only when no other mount in its table has the same device and root
//! (`GetDeviceMountRefs`). Therefore a staged volume is mounted at its staging path and not at its
//! own mount point in the pool, unless another use needs it there. In both directions it is bound
//! to the new path, then unmounted at the old one, so the filesystem remains the same. A driver
//! killed in between leaves both mounts, and [`Mounts::settle`] of the next driver removes one.

use std::path::Path;

use super::bind::{self, BindState};
use super::mount_facts;
use super::mounts::{Mounts, is_own};
use super::name::VolumeRef;
use super::record::{VolumeRecord, VolumeUse};
use ckptfs_api::{ErrorContext, VerbResult};
use ckptfs_sys::{self as sys, MountPoint};

/// Prefix of the ids of uses by an orchestrator; an engine's ids are hexadecimal.
const STAGED_ID: &str = "csi-";

/// Returns the use id of a volume staged at a path.
fn use_id(staging: &Path) -> String {
    let hash = blake3::hash(staging.as_os_str().as_encoded_bytes());
    format!("{STAGED_ID}{}", hash.to_hex())
}

fn is_staged(mount: &VolumeUse) -> bool {
    mount.id.starts_with(STAGED_ID)
}

impl Mounts {
    /// Mounts a volume at `at`, which is created if missing.
    ///
    /// # Errors
    /// As [`Mounts::mount`] and [`bind::bind`].
    pub fn stage(&self, volume: &str, at: &Path) -> VerbResult<()> {
        self.mount(&VolumeRef::whole(volume), &use_id(at), None)?;
        let read_only = self.registry.get(volume)?.parsed()?.readonly;
        self.show(volume, at, read_only, &[])
    }

    /// Mounts a mounted volume at an additional path `at`: [`bind::bind`].
    ///
    /// # Errors
    /// As [`bind::bind`].
    pub fn show(
        &self,
        volume: &str,
        at: &Path,
        read_only: bool,
        options: &[&str],
    ) -> VerbResult<()> {
        // It stays at its current path until it is bound here.
        let _locked = self.registry.lock(volume)?;
        let record = self.registry.get(volume)?;
        let place = self.registry.place(&record)?;
        bind::bind(&place, at, read_only, options)?;
        self.settle(&record, None)
    }

    /// Ends the use of a volume staged or bound at `at`.
    ///
    /// # Errors
    /// The volume is in use there.
    pub fn unstage(&self, volume: &str, at: &Path) -> VerbResult<()> {
        self.hide(volume, at)?;
        self.unmount(&VolumeRef::whole(volume), &use_id(at))
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
        if matches!(bind::there(&place, at)?, BindState::Volume { .. }) {
            // The record is saved without the use later: a driver killed in between receives the
            // request again.
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

    /// Places a mounted volume: at its own mount point if it is not staged or has other uses,
    /// otherwise only where it is staged. `leaving` is a path at which it is about to be unmounted.
    /// The caller holds the volume's lock. Does not wait for a mount that does not answer, unless
    /// it must be bound.
    pub(super) fn settle(&self, record: &VolumeRecord, leaving: Option<&Path>) -> VerbResult<()> {
        let place = self.registry.place(record)?;
        let table = mount_facts::table()?;
        let all = mount_facts::shown(&table, &place);
        if !place.chosen || all.is_empty() {
            return Ok(());
        }
        let home = mount_facts::ours(&table, &place.point);
        let is_elsewhere = |mount: &MountPoint| {
            mount.at != place.point
                && Some(mount.at.as_path()) != leaving
                && home.is_none_or(|home| home.dev == mount.dev)
        };
        let is_moved = record.mounts.iter().any(is_staged) && all.into_iter().any(is_elsewhere);
        // The use of a killed process has ended, or is a mount in another namespace.
        let mut others = record
            .mounts
            .iter()
            .filter(|mount| !is_staged(mount) && !mount.is_orphan());
        match home {
            // A verb continues at the path where it started.
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
