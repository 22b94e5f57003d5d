//! Looking for damage in a repository, and freeing what no snapshot needs.

use rustic_core::{CheckOptions, PruneOptions};

use super::{Pushed, Remote, failed, guarded};
use crate::engine::api::VerbResult;

impl Remote {
    /// What is wrong with the repository, in words; `deep`: every byte is read. Changes nothing.
    ///
    /// # Errors
    /// None: what cannot be looked at is damage.
    pub fn damage(&self, deep: bool) -> VerbResult<Vec<String>> {
        let options = CheckOptions::default().read_data(deep);
        let found = guarded(|| self.repo.check(options).map_err(failed));
        Ok(match found {
            Ok(found) => found.0.iter().map(|(_, error)| error.to_string()).collect(),
            // What cannot be looked at is not in order.
            Err(error) => vec![error.message],
        })
    }

    /// Removes snapshots; what only they need stays until the next [`Remote::prune`].
    ///
    /// # Errors
    /// `remote-failed`; what was removed before stays removed.
    pub fn forget(&self, gone: &[&Pushed]) -> VerbResult<()> {
        let ids: Vec<_> = gone.iter().map(|one| one.file.id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        self.repo.delete_snapshots(&ids).map_err(failed)
    }

    /// Removes snapshots, and marks what no snapshot of anybody needs; what has been marked for 23
    /// hours, longer than a push lasts, is freed. Gives how many bytes nothing needs.
    ///
    /// # Errors
    /// `remote-failed`; what was removed before stays removed.
    pub fn prune(&self, gone: &[&Pushed]) -> VerbResult<u64> {
        self.forget(gone)?;
        let options = PruneOptions::default();
        let plan = self.repo.prune_plan(&options).map_err(failed)?;
        let unneeded = plan.stats.size_sum().unused + plan.stats.size_unref;
        self.repo.prune(&options, plan).map_err(failed)?;
        Ok(unneeded)
    }
}
