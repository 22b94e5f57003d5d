//! Creation of a volume's tree.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use super::files::{make_dir, remove_tree, sync_parent};
use super::image;
use super::mount_facts::VolumePlace;
use super::mounts::Mounts;
use super::options::Options;
use super::record::{VolumeOrigin, VolumeRecord};
use ckptfs_api::{Code, ErrorContext, VerbError, VerbResult};

impl Mounts {
    /// Creates the tree of a volume.
    pub(super) fn fill(
        &self,
        record: &mut VolumeRecord,
        options: &Options,
        place: &VolumePlace,
    ) -> VerbResult<()> {
        let dirs = self.registry.dirs();
        if let Some(bytes) = options.size {
            // A long fetch may be killed; the record then marks the remains for removal.
            let is_long = options.remote.is_some();
            if is_long {
                (record.making, record.removing) = (true, true);
                self.registry.save(record)?;
            }
            let image = dirs.image(&record.name);
            image::make(&image, bytes)?;
            make_dir(&place.backing, 0o700)?;
            image::mount(&image, &place.backing)?;
            self.fill_tree(&place.backing, record, options)?;
            image::unmount(&place.backing)?;
            if is_long {
                (record.making, record.removing) = (false, false);
            }
            return Ok(());
        }
        let staged = if options.remote.is_some() {
            // Partially fetched data is not fetched again.
            dirs.fetched(&record.name)
        } else {
            dirs.staged(&record.name)
        };
        if options.remote.is_none() {
            remove_tree(&staged)?;
        }
        make_dir(&staged, 0o700)?;
        self.fill_tree(&staged, record, options)
            .inspect_err(|why| drop_unless_goes_on(&staged, why))?;
        fs::rename(&staged, &place.backing)
            .and_then(|()| sync_parent(&place.backing))
            .on(place.backing.display())
    }

    fn fill_tree(
        &self,
        dir: &Path,
        record: &mut VolumeRecord,
        options: &Options,
    ) -> VerbResult<()> {
        if let Some((volume, state)) = &options.from {
            let state = state.as_deref();
            record.parent = Some(match &options.remote {
                Some(remote) => self.fetch_into(dir, remote, volume, state)?,
                None => self.clone_into(dir, volume, state, &record.name)?,
            });
        } else {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).on(dir.display())?;
        }
        set_owner(dir, options)
    }

    /// Copies a state of a volume to an empty directory. Files share their data where the
    /// filesystem supports reflink.
    fn clone_into(
        &self,
        dir: &Path,
        volume: &str,
        state: Option<&str>,
        child: &str,
    ) -> VerbResult<VolumeOrigin> {
        self.during(volume, child, |point| {
            let history = self.registry.history(&self.registry.get(volume)?)?;
            let state = match state {
                Some(state) => history.checkpoint(state)?.id,
                None => history.make(&format!("volume {child} begins here"))?,
            };
            self.verbs.fork(&point, state, dir)?;
            Ok(VolumeOrigin {
                volume: volume.to_owned(),
                checkpoint: state.0,
                branch: None,
                remote: None,
            })
        })
    }
}

/// Keeps fetched data only if a repeated call can resume: not after a full disk or with a damaged
/// remote, and not if nothing was fetched.
fn drop_unless_goes_on(staged: &Path, why: &VerbError) {
    let dropped = match why.code {
        Code::RemoteFailed => match fs::remove_dir(staged) {
            Err(cause) if cause.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed.on(staged.display()),
        },
        _ => remove_tree(staged),
    };
    if let Err(error) = dropped {
        tracing::warn!(error = error.message, "what was fetched cannot be removed");
    }
}

/// Applies owner, group and mode options to the root directory of a volume.
pub(super) fn set_owner(dir: &Path, options: &Options) -> VerbResult<()> {
    if options.uid.is_some() || options.gid.is_some() {
        chown(dir, options.uid, options.gid).on(dir.display())?;
    }
    match options.mode {
        Some(mode) => fs::set_permissions(dir, fs::Permissions::from_mode(mode)).on(dir.display()),
        None => Ok(()),
    }
}
