//! Baseline of `benches/remote.py` for `ckptfs push`: a backup of a directory by rustic_core.
//!
//! Usage: `rustic REPOSITORY DIR`. The newest snapshot of the directory is the parent.

use rustic_backend::BackendOptions;
use rustic_core::repofile::SnapshotFile;
use rustic_core::{
    BackupOptions, ConfigOptions, Credentials, KeyOptions, PathList, Repository, RepositoryOptions,
    RusticResult,
};

fn main() -> RusticResult<()> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|one| !one.starts_with('-'))
        .collect();
    let [repository, dir] = arguments.as_slice() else {
        // `cargo bench` passes no arguments.
        return Ok(());
    };
    let backends = BackendOptions::default()
        .repository(repository.clone())
        .to_backends()?;
    let options = RepositoryOptions::default().no_cache(true);
    let repo = Repository::new(&options, &backends)?;
    let credentials = Credentials::password("bench");
    let repo = match repo.config_id()? {
        Some(_) => repo.open(&credentials)?,
        None => repo.init(
            &credentials,
            &KeyOptions::default(),
            &ConfigOptions::default(),
        )?,
    };
    let repo = repo.to_indexed_ids()?;
    let source = PathList::from_string(dir)?.sanitize().map_err(|error| {
        rustic_core::RusticError::new(rustic_core::ErrorKind::InvalidInput, error.to_string())
    })?;
    let snapshot = repo.backup(&BackupOptions::default(), &source, SnapshotFile::default())?;
    println!("{}", snapshot.id);
    Ok(())
}
