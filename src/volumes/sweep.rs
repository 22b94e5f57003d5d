//! What others have left: uses that nobody will end, removals that were cut short, mounts that nobody uses any more.

use std::fs;

use super::name;
use super::pool::{Pool, remove_tree};
use super::record::{age, boot};
use crate::engine::api::VerbResult;

/// A use so young may be one whose container is just being started.
const GRACE_SECONDS: u64 = 60;

impl Pool {
    /// Puts the pool in order. Uses that were begun before `since` (seconds since 1970), and of which the kernel knows nothing, have ended: their engine was
    /// killed, or this machine was started since. Younger ones are left alone.
    pub fn sweep(&self, since: i64) {
        let names = self.names().unwrap_or_else(|error| {
            tracing::warn!(error = error.message, "the pool cannot be read");
            Vec::new()
        });
        for name in names {
            if let Err(error) = self.sweep_one(&name, since) {
                tracing::warn!(%name, error = error.message, "the volume cannot be put in order");
            }
            if let Err(error) = self.count(&name) {
                tracing::debug!(%name, error = error.message, "what the history takes is not known");
            }
        }
        self.sweep_staging();
        for entry in fs::read_dir(self.root().join("gone")).into_iter().flatten().flatten() {
            if let Err(error) = remove_tree(&entry.path()) {
                tracing::warn!(error = error.message, "what is left of a volume cannot be deleted");
            }
        }
    }

    fn sweep_one(&self, name: &str, since: i64) -> VerbResult<()> {
        if self.is_removing(name) {
            return self.remove(name).map(drop);
        }
        let boot = boot();
        self.drop_uses(name, |mount, shown| {
            let young = mount.boot == boot && age(mount) < GRACE_SECONDS;
            let orphan = shown.ephemeral && mount.is_orphan();
            mount.since >= since && mount.boot == boot && !orphan || shown.elsewhere || (shown.here && young)
        })
    }

    /// Trees that were being made by somebody who died.
    fn sweep_staging(&self) {
        for entry in fs::read_dir(self.root().join("staging")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name::check(&name).is_ok() {
                self.drop_staged(&name);
            }
        }
    }
}
