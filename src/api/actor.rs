//! The origin of a checkpoint and of a request.

use serde::{Deserialize, Serialize};

use crate::ids::CheckpointId;
/// The reason for the creation of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Reason {
    /// A request.
    Asked,
    /// mkdir(2) of `.snapshots/NAME`; it is listed as a directory, so that rmdir(2) can delete it.
    Directory {
        /// NAME, which is also a tag.
        name: String,
    },
    /// The guard of a restore or merge: the state before it.
    Guard {
        /// The restored checkpoint; for a merge, the guard itself.
        restored: CheckpointId,
    },
    /// Created by the daemon without a request.
    Auto {
        /// The trigger.
        trigger: Trigger,
    },
    /// Imported from another tool's history.
    Imported {
        /// Time of the imported state, nanoseconds since 1970.
        of_ns: i64,
    },
}

impl Reason {
    /// Reports whether the tripwire created it.
    pub fn is_mark(&self) -> bool {
        matches!(
            self,
            Reason::Auto {
                trigger: Trigger::Tripwire
            }
        )
    }

    /// Reports whether the daemon created it without a request.
    pub fn is_auto(&self) -> bool {
        matches!(self, Reason::Auto { .. })
    }

    /// Reports whether it was requested, and can thus be `latest`.
    pub fn is_asked(&self) -> bool {
        matches!(
            self,
            Reason::Asked | Reason::Directory { .. } | Reason::Imported { .. }
        )
    }

    /// Reports whether it is a guard or a tripwire mark. These exist for undo, and retention rules
    /// do not count them.
    pub fn is_guard_or_mark(&self) -> bool {
        matches!(self, Reason::Guard { .. }) || self.is_mark()
    }

    /// Reports whether it was created by mkdir(2) of `.snapshots/NAME`.
    pub fn is_directory(&self, name: &str) -> bool {
        matches!(self, Reason::Directory { name: made } if made == name)
    }
}

/// The trigger of an automatic checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// A process began to destroy files and continued (`--tripwire`).
    Tripwire,
    /// The interval elapsed, with changes since the last checkpoint (`--auto-every`).
    Interval,
    /// No writes for a while after a change (`--auto-quiet`).
    Quiet,
    /// The state at the end of the last service, if the tree was changed while unmounted
    /// (`--auto-absence`).
    Unmount,
    /// The state found at the next mount in that case.
    Absence,
}

impl Trigger {
    /// Returns its name, as in `auto:tripwire`.
    pub fn name(self) -> &'static str {
        match self {
            Trigger::Tripwire => "tripwire",
            Trigger::Interval => "interval",
            Trigger::Quiet => "quiet",
            Trigger::Unmount => "unmount",
            Trigger::Absence => "absence",
        }
    }
}

/// The origin of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Process id, for a kernel request thread id; 0: unknown.
    pub pid: u32,
    /// Name of the process; empty: unknown.
    pub process: String,
}
