//! The conflict radar: reports files that more than one tree has touched, while they are being
//! changed.
//!
//! It uses the records of each tree since the common state, so its cost depends on the amount of
//! change, not on the size of the trees. All trees share the inodes of the base, so a rename in one
//! and an edit in another refer to the same file.
//!
//! - `answers`: requests and answers.
//! - `touches`: the inodes and paths that each tree has touched.
//! - `rows`: those that more than one has touched.
//! - `check`: their merge conflicts.
//! - `watch`: waiting for changes.
//!
//! **Locking.** None: a branch dropped in the meantime is left out.

mod check;
mod rows;
mod touches;
mod watch;

use self::rows::Overlaps;
use self::touches::{TreeChanges, settle};
use crate::engine::Engine;
use crate::engine::requester::Requester;
use crate::engine::verb::Execute;
use ckptfs_api::{Conflict, ListConflicts, VerbResult, WatchConflicts, Watched};

impl Execute for ListConflicts {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<Conflict>> {
        settle(engine);
        let touches = TreeChanges::of(engine)?;
        let mut rows = Overlaps::of(&touches);
        if self.check {
            check::check(engine, &touches, &mut rows)?;
        }
        Ok(rows.told(&touches))
    }
}

impl Execute for WatchConflicts {
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Watched> {
        watch::wait(engine, requester, self.seen)
    }
}
