//! Unmounting.

use serde::{Deserialize, Serialize};

use std::time::Duration;

use crate::verb::Verb;
/// Unmounts the tree and ends the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmount {
    /// Detach the mount even if it is in use.
    pub lazy: bool,
    /// End at once although the detached mount is in use; otherwise a lazily unmounted daemon
    /// serves until the last file is closed.
    #[serde(default)]
    pub leave: bool,
    /// Content to preserve; absent: as configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<SavePolicy>,
}

impl Verb for Unmount {
    type Answer = ();
}

/// Amount of content that an unmount saves, in case it is changed while nothing is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SavePolicy {
    /// Clones made within two seconds; without reflink, copies of small files up to 64 MiB in
    /// total.
    #[default]
    Some,
    /// Nothing.
    None,
    /// All content that a checkpoint shows and only the tree has, within 24 hours.
    All,
}

impl SavePolicy {
    /// Parses a value of the setting `umount.keep`.
    pub fn named(word: &str) -> Option<SavePolicy> {
        match word {
            "some" => Some(SavePolicy::Some),
            "none" => Some(SavePolicy::None),
            "all" => Some(SavePolicy::All),
            _ => None,
        }
    }

    /// Returns the time limit for saving content.
    pub fn time_limit(self) -> Duration {
        match self {
            SavePolicy::Some => Duration::from_secs(2),
            SavePolicy::None => Duration::ZERO,
            SavePolicy::All => Duration::from_secs(24 * 3600),
        }
    }
}
