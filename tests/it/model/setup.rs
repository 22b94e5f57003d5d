//! Properties of a whole run, derived from its seed or from the first line of its list.

use super::ops::{Op, Verb};
use crate::common::MountOpts;

/// The third removal within this time confirms a burst; marks are freed after it.
const TRIPWIRE: &str = "2/100ms";
const TRIPWIRE_VARIABLE: &str = "CKPTFS_TRIPWIRE";

/// The properties of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunProperties {
    /// The tripwire is on, so the daemon makes checkpoints.
    pub marks: bool,
    /// Views are checked after each operation.
    pub watch: bool,
}

impl RunProperties {
    /// Derives the properties from a seed; six successive seeds cover all combinations.
    pub fn of_seed(seed: u64) -> RunProperties {
        RunProperties {
            marks: seed % 3 == 1,
            watch: seed.is_multiple_of(2),
        }
    }

    /// Reads the properties from a list.
    pub fn of_list(list: &[Op]) -> RunProperties {
        let has = |word: &str| {
            list.iter()
                .filter(|op| op.verb == Verb::With)
                .any(|op| op.paths.iter().any(|path| path == word))
        };
        RunProperties {
            marks: has("marks"),
            watch: has("watch"),
        }
    }

    /// Returns the operation for a list, or `None` for the defaults.
    pub fn op(self) -> Option<Op> {
        let words = [(self.marks, "marks"), (self.watch, "watch")];
        let words: Vec<&str> = words
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, word)| *word)
            .collect();
        (!words.is_empty()).then(|| Op::new(Verb::With, &words, &[]))
    }

    /// Returns the mount options for the run.
    pub fn opts(self, opts: &MountOpts) -> MountOpts {
        let mut opts = opts.clone();
        if self.marks {
            opts.env.push((TRIPWIRE_VARIABLE.into(), TRIPWIRE.into()));
        }
        opts
    }
}

/// Reports whether the tripwire is on; `CKPTFS_TEST_TRIPWIRE=2/100ms` enables it in all mounts.
pub fn has_tripwire(opts: &MountOpts) -> bool {
    let asked = opts
        .env
        .iter()
        .any(|(name, value)| name == TRIPWIRE_VARIABLE && value != "off");
    asked || std::env::var("CKPTFS_TEST_TRIPWIRE").is_ok_and(|tripwire| tripwire != "off")
}
