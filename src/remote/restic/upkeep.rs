//! Checks a repository for damage, and frees data that no snapshot needs.

use rustic_core::{CheckOptions, PruneOptions};

use super::{PushedSnapshot, Remote, failed, guarded};
use ckptfs_api::VerbResult;

impl Remote {
    /// Returns descriptions of the damage of the repository; `deep`: reads every byte. Changes
    /// nothing.
    ///
    /// # Errors
    /// None: an unreadable repository counts as damage.
    pub fn damage(&self, deep: bool) -> VerbResult<Vec<String>> {
        let options = CheckOptions::default().read_data(deep);
        let found = guarded(|| self.repo.check(options).map_err(failed));
        Ok(match found {
            Ok(found) => found.0.iter().map(|(_, error)| error.to_string()).collect(),
            // An unreadable repository is damaged.
            Err(error) => vec![error.message],
        })
    }

    /// Removes snapshots. Their data stays until the next [`Remote::prune`].
    ///
    /// # Errors
    /// `remote-failed`; earlier removals remain.
    pub fn forget(&self, gone: &[&PushedSnapshot]) -> VerbResult<()> {
        let ids: Vec<_> = gone.iter().map(|one| one.file.id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        self.repo.delete_snapshots(&ids).map_err(failed)
    }

    /// Removes snapshots, and marks data that no snapshot needs, including those of other programs.
    /// Data marked for 23 hours, longer than a push lasts, is freed. Returns the number of unneeded
    /// bytes.
    ///
    /// # Errors
    /// `remote-failed`; earlier removals remain.
    pub fn prune(&self, gone: &[&PushedSnapshot]) -> VerbResult<u64> {
        self.forget(gone)?;
        let options = PruneOptions::default();
        let plan = self.repo.prune_plan(&options).map_err(failed)?;
        let unneeded = plan.stats.size_sum().unused + plan.stats.size_unref;
        self.repo.prune(&options, plan).map_err(failed)?;
        Ok(unneeded)
    }
}
