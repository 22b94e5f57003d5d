//! Periodic cleanup of a pool: orphaned uses, interrupted removals, and unused mounts.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::files::remove_tree;
use super::pool::Pool;
use super::record::{age, boot};
use super::sizes::Sizes;
use ckptfs_api::VerbResult;

/// The container of a use younger than this may still be starting.
const GRACE_SECONDS: u64 = 60;
/// How long a partial fetch of a volume that was not created is kept, to be resumed.
const FETCHED_SECONDS: i64 = 24 * 60 * 60;

impl Pool {
    /// Sweeps the pool. A use that began before `since` (seconds since 1970) has ended if the
    /// volume has no mount elsewhere: its engine was killed, or the machine was rebooted. Young
    /// uses are kept. Returns the volumes that were skipped because they are locked.
    pub fn sweep(&self, since: i64) -> Vec<String> {
        let names = self.registry().dirs().names().unwrap_or_else(|error| {
            tracing::warn!(error = error.message, "the pool cannot be read");
            Vec::new()
        });
        let busy = self.sweep_volumes(&names, since);
        for name in names {
            if let Err(error) = Sizes::renew(self.registry(), &name) {
                tracing::debug!(%name, error = error.message, "what the history takes is not known");
            }
        }
        let dirs = self.registry().dirs();
        for name in dirs.names_in("staging") {
            self.sweep_tree(&name, &dirs.staged(&name));
        }
        for name in dirs.names_in("fetched") {
            let tree = dirs.fetched(&name);
            if fs::symlink_metadata(&tree).is_ok_and(|found| is_old(&found)) {
                self.sweep_tree(&name, &tree);
            }
        }
        for entry in fs::read_dir(self.registry().dirs().gone())
            .into_iter()
            .flatten()
            .flatten()
        {
            if let Err(error) = remove_tree(&entry.path()) {
                tracing::warn!(
                    error = error.message,
                    "what is left of a volume cannot be deleted"
                );
            }
        }
        busy
    }

    /// As [`Pool::sweep`], for the mounts of these volumes only.
    pub fn sweep_volumes(&self, names: &[String], since: i64) -> Vec<String> {
        let is_busy = |name: &&String| {
            let looked_at = self.sweep_one(name, since).unwrap_or_else(|error| {
                tracing::warn!(%name, error = error.message, "the volume cannot be put in order");
                true
            });
            !looked_at
        };
        names.iter().filter(is_busy).cloned().collect()
    }

    /// Returns `false` if the volume is locked.
    fn sweep_one(&self, name: &str, since: i64) -> VerbResult<bool> {
        let record = self.registry().load(name).ok().flatten();
        if record.as_ref().is_some_and(|record| record.removing) {
            // A locked volume may be in creation, which can take as long as a remote server.
            let Some(nobody_works) = self.registry().try_lock(name)? else {
                return Ok(true);
            };
            drop(nobody_works);
            return self.remove_if(name, |record| record.removing).map(|_| true);
        }
        if record.is_some_and(|record| record.retired) {
            self.remove_unneeded(name)?;
        }
        let boot = boot();
        self.mounts().drop_uses(name, |mount, shown| {
            let young = mount.boot == boot && age(mount) < GRACE_SECONDS;
            let orphan = shown.ephemeral && mount.is_orphan();
            mount.since >= since && mount.boot == boot && !orphan
                || shown.elsewhere
                || (shown.here && young)
        })
    }

    /// Removes a partial tree left by a killed process, unless the volume is locked.
    fn sweep_tree(&self, name: &str, tree: &Path) {
        if let Ok(Some(locked)) = self.registry().try_lock(name) {
            if let Err(error) = remove_tree(tree) {
                tracing::warn!(
                    name,
                    error = error.message,
                    "what is left of a volume cannot be deleted"
                );
            }
            if !self.registry().dirs().meta(name).exists() {
                locked.forget();
            }
        }
    }
}

/// Whether a partial fetch was not resumed for a day.
fn is_old(tree: &fs::Metadata) -> bool {
    jiff::Timestamp::now().as_second() - tree.ctime() > FETCHED_SECONDS
}
