//! Checkpoints as snapshots in a repository that restic and rustic can read.
//!
//! A snapshot has the tags `ckptfs`, `store=ID`, `checkpoint=N` and those of the checkpoint, its
//! time and its note, and one directory, `/NAME`, which is the tree's root. The list of snapshots
//! is read from the repository each time; no copy of it is stored elsewhere.

mod backend;
pub mod config;
mod existing;
mod idle_client;
mod keys;
pub mod lazy;
mod measure;
mod node;
pub mod pull;
pub mod push;
mod rclone;
mod repo_cache;
mod rest;
mod s3;
mod seal;
pub mod upkeep;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use jiff::{Timestamp, Zoned};
use rustic_core::repofile::SnapshotFile;
use rustic_core::{
    ConfigOptions, Credentials, KeyOptions, OpenStatus, Repository, RepositoryBackends,
    RepositoryOptions, RusticError, SnapshotOptions, StringList,
};

use self::backend::{CheckedBackend, RateLimit};
use self::idle_client::RemoteTrouble;
use self::seal::RepoKey;
use crate::limits::Limits;
use ckptfs_api::{CheckpointId, Code, VerbError, VerbResult, hinted};

/// The tag of every snapshot that ckptfs created.
const TAG: &str = "ckptfs";
/// Prefixes of the tags that identify the store and the checkpoint.
const STORE_TAG: &str = "store=";
const CHECKPOINT_TAG: &str = "checkpoint=";

/// The purpose of opening a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenPurpose {
    /// Create one if none exists.
    Create,
    /// For a verb, which waits for a server that restarts.
    Verb,
    /// For programs that wait for content: an error is better than a long wait.
    Serve,
}

/// An open repository.
pub struct Remote {
    repo: Repository<OpenStatus>,
    watched: Arc<CheckedBackend>,
}

/// A snapshot that ckptfs created.
#[derive(Clone, Debug)]
pub struct PushedSnapshot {
    /// The ID of the snapshot in the repository, in hexadecimal.
    pub snapshot: String,
    /// The store.
    pub store: String,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The checkpoint's tags.
    pub tags: Vec<String>,
    /// Its note.
    pub note: String,
    /// The time of creation of the checkpoint.
    pub created: Timestamp,
    /// The name of the machine that pushed it.
    pub host: String,
    /// The name of the directory in it that is the tree's root.
    pub root: String,
    file: SnapshotFile,
}

impl Remote {
    /// Opens the repository at a URL.
    ///
    /// # Errors
    /// `bad-password`, `unknown-remote` if the repository does not exist, `remote-failed`.
    pub fn open(url: &str, password: &str, purpose: OpenPurpose) -> VerbResult<Remote> {
        let opened = backend::open(url, purpose == OpenPurpose::Serve)?;
        let limits = Limits::new();
        let watched = Arc::new(CheckedBackend::new(opened, url, limits));
        let backends = RepositoryBackends::new(Arc::clone(&watched) as _, None);
        // The library's cache would bypass the limits; `kept` caches instead.
        let options = RepositoryOptions::default().no_cache(true);
        let repo = Repository::new(&options, &backends).map_err(failed)?;
        let repo = match repo.config_id().map_err(failed)? {
            Some(_) => {
                let key = keys::find(&*watched, password, limits)?;
                watched.unseal(RepoKey::new(&key));
                repo.open(&Credentials::Masterkey(key)).map_err(failed)?
            }
            None if purpose == OpenPurpose::Create => {
                let credentials = Credentials::password(password);
                let (key, config) = (KeyOptions::default(), ConfigOptions::default());
                let repo = repo.init(&credentials, &key, &config).map_err(failed)?;
                watched.unseal(RepoKey::new(&repo.key()));
                repo
            }
            None => {
                return Err(hinted(
                    Code::UnknownRemote,
                    "there is no repository at this address",
                    "ckptfs remote add makes one; check the address with ckptfs remote",
                ));
            }
        };
        if let Some(cache) = cache_dir().filter(|_| !backend::is_local(url)) {
            watched.keep(&cache, &repo.config().id.to_hex());
        }
        Ok(Remote { repo, watched })
    }

    /// Limits the bytes sent and received per second, averaged over some packs.
    pub fn limit(&self, bytes_per_second: u64) {
        drop(self.watched.pace.set(RateLimit::new(bytes_per_second)));
    }

    /// Lists the snapshots of checkpoints, the oldest checkpoint first; `store`: only of this one.
    ///
    /// # Errors
    /// `remote-failed`.
    pub fn pushed(&self, store: Option<&str>) -> VerbResult<Vec<PushedSnapshot>> {
        let all = self.repo.get_all_snapshots().map_err(failed)?;
        let mut pushed: Vec<PushedSnapshot> = all
            .into_iter()
            .filter_map(PushedSnapshot::of)
            .filter(|one| store.is_none_or(|store| one.store == store))
            .collect();
        pushed.sort_by(|a, b| (&a.store, a.created).cmp(&(&b.store, b.created)));
        Ok(pushed)
    }
}

impl PushedSnapshot {
    fn of(file: SnapshotFile) -> Option<PushedSnapshot> {
        // A snapshot with two values of one tag is not trusted.
        let value = |key: &str| {
            let mut all = file.tags.iter().filter_map(|tag| tag.strip_prefix(key));
            all.next().filter(|_| all.next().is_none())
        };
        if !file.tags.contains(TAG) {
            return None;
        }
        let (store, checkpoint) = (value(STORE_TAG)?, value(CHECKPOINT_TAG)?.parse().ok()?);
        let root = file.paths.iter().next()?.trim_start_matches('/').to_owned();
        Some(PushedSnapshot {
            snapshot: file.id.to_hex().to_string(),
            store: store.to_owned(),
            checkpoint: CheckpointId(checkpoint),
            tags: file
                .tags
                .iter()
                .filter(|tag| !is_own(tag))
                .cloned()
                .collect(),
            note: file.description.clone().unwrap_or_default(),
            created: file.time.timestamp(),
            host: file.hostname.clone(),
            root,
            file,
        })
    }
}

/// Returns whether a tag identifies our snapshots.
fn is_own(tag: &str) -> bool {
    tag == TAG || tag.starts_with(STORE_TAG) || tag.starts_with(CHECKPOINT_TAG)
}

/// Returns the snapshot of a checkpoint, still without content.
fn snapshot(of: &push::PushSource) -> VerbResult<SnapshotFile> {
    let mut tags = StringList::default();
    tags.add(TAG.to_owned());
    tags.add(format!("{STORE_TAG}{}", of.store));
    tags.add(format!("{CHECKPOINT_TAG}{}", of.checkpoint));
    // A user chooses the checkpoint's tags: `mkdir .snapshots/store=X` creates one.
    let others = of.tags.iter().filter(|tag| !is_own(tag));
    others.for_each(|tag| tags.add(tag.clone()));
    Ok(SnapshotFile {
        time: Zoned::new(of.created, jiff::tz::TimeZone::UTC),
        program_version: concat!("ckptfs ", env!("CARGO_PKG_VERSION")).to_owned(),
        tags,
        description: Some(of.note.clone()).filter(|note| !note.is_empty()),
        ..SnapshotFile::from_options(&SnapshotOptions::default()).map_err(failed)?
    })
}

/// Returns the directory of cached repositories: `$XDG_CACHE_HOME/ckptfs`, or below `~/.cache`.
fn cache_dir() -> Option<PathBuf> {
    let of = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let cache = of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("ckptfs"))
}

/// Runs an operation on a repository. rustic panics on some kinds of damage; a panic becomes an
/// ordinary error.
///
/// # Errors
/// Errors of the operation; `remote-failed`.
pub fn guarded<T, E: From<VerbError>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    static HOOK: Once = Once::new();
    static WORKING: AtomicUsize = AtomicUsize::new(0);
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // rustic's threads may panic after the operation has failed.
            let by_rustic = |at: &std::panic::Location<'_>| at.file().contains("/rustic_");
            if WORKING.load(Ordering::Relaxed) == 0 && !panic.location().is_some_and(by_rustic) {
                before(panic);
            }
        }));
    });
    WORKING.fetch_add(1, Ordering::Relaxed);
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    WORKING.fetch_sub(1, Ordering::Relaxed);
    done.unwrap_or_else(|_| {
        Err(E::from(hinted(
            Code::RemoteFailed,
            "the repository is damaged in a way that nobody has expected",
            "restic check may tell more; what is here is as it was",
        )))
    })
}

/// Returns the error for a password that opens no key file.
fn bad_password() -> VerbError {
    hinted(
        Code::BadPassword,
        "the password does not open this repository",
        "give the right one: ckptfs remote add NAME URL --force --password-file FILE",
    )
}

/// Converts an error of a repository for display. It may contain text from a server, which the
/// caller must escape.
fn failed(cause: Box<RusticError>) -> VerbError {
    told(&cause)
}

/// As [`failed`], by reference.
fn told(cause: &RusticError) -> VerbError {
    let again =
        "run the same command again once the cause is gone: what was sent is not sent again";
    if let Some(trouble) = trouble_of(cause) {
        return hinted(
            Code::RemoteFailed,
            format!("the remote: {trouble}"),
            trouble.advice.unwrap_or(again),
        );
    }
    let said = cause.display_log();
    let said = said.strip_prefix("Error: ").unwrap_or(&said);
    hinted(Code::RemoteFailed, format!("the remote: {said}"), again)
}

/// Returns the cause of an error, if it is a failed server or an exceeded limit.
fn trouble_of(cause: &RusticError) -> Option<&RemoteTrouble> {
    let mut source = std::error::Error::source(cause);
    while let Some(found) = source {
        if let Some(trouble) = found.downcast_ref::<RemoteTrouble>() {
            return Some(trouble);
        }
        source = found.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mkdir .snapshots/store=X` made a pushed snapshot that of another store.
    #[test]
    fn tags_of_a_checkpoint_do_not_say_which_it_is() {
        let what = push::PushSource {
            tags: ["store=a", "checkpoint=1", "ckptfs", "mine"]
                .map(String::from)
                .to_vec(),
            store: "z".to_owned(),
            checkpoint: CheckpointId(7),
            note: String::new(),
            created: Timestamp::UNIX_EPOCH,
            root: "p".to_owned(),
        };
        let mut file = snapshot(&what).expect("a snapshot");
        file.paths.add("/p".to_owned());
        let pushed = PushedSnapshot::of(file.clone()).expect("ours");
        assert_eq!(
            (pushed.store.as_str(), pushed.checkpoint),
            ("z", CheckpointId(7))
        );
        assert_eq!(pushed.tags, ["mine"]);
        // As older versions pushed it.
        file.tags.add("checkpoint=1".to_owned());
        assert!(PushedSnapshot::of(file).is_none());
    }
}
