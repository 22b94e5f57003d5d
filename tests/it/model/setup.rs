//! What a run is like as a whole: a property of its seed, and the first line of its list.

use super::ops::{Op, Verb};
use crate::common::MountOpts;

/// Marks of the tripwire come with the third removal in this time, and go when it is over.
const TRIPWIRE: &str = "2/100ms";
const TRIPWIRE_VARIABLE: &str = "CKPTFS_TRIPWIRE";

/// The properties of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// The tripwire is on: there are checkpoints that no operation asks for.
    pub marks: bool,
    /// Views are looked at after each operation.
    pub watch: bool,
}

impl Setup {
    /// As a seed has it: all of them among six that follow each other.
    pub fn of_seed(seed: u64) -> Setup {
        Setup {
            marks: seed % 3 == 1,
            watch: seed.is_multiple_of(2),
        }
    }

    /// As a list has it.
    pub fn of_list(list: &[Op]) -> Setup {
        let has = |word: &str| {
            list.iter()
                .filter(|op| op.verb == Verb::With)
                .any(|op| op.paths.iter().any(|path| path == word))
        };
        Setup {
            marks: has("marks"),
            watch: has("watch"),
        }
    }

    /// The line of a list; `None`: it needs none.
    pub fn op(self) -> Option<Op> {
        let words = [(self.marks, "marks"), (self.watch, "watch")];
        let words: Vec<&str> = words
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, word)| *word)
            .collect();
        (!words.is_empty()).then(|| Op::new(Verb::With, &words, &[]))
    }

    /// How to mount for it.
    pub fn opts(self, opts: &MountOpts) -> MountOpts {
        let mut opts = opts.clone();
        if self.marks {
            opts.env.push((TRIPWIRE_VARIABLE.into(), TRIPWIRE.into()));
        }
        opts
    }
}

/// The tripwire of such a mount is on; `CKPTFS_TEST_TRIPWIRE=2/100ms` turns it on in all.
pub fn has_tripwire(opts: &MountOpts) -> bool {
    let asked = opts
        .env
        .iter()
        .any(|(name, value)| name == TRIPWIRE_VARIABLE && value != "off");
    asked || std::env::var("CKPTFS_TEST_TRIPWIRE").is_ok_and(|tripwire| tripwire != "off")
}
