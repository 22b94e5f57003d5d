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

mod answers;
mod check;
mod rows;
mod touches;
mod watch;

pub use self::answers::{Clash, Conflict, ListConflicts, Touch, WatchConflicts, Watched};
use self::rows::Overlaps;
use self::touches::{TreeChanges, settle};
use crate::engine::Engine;
use crate::engine::api::VerbResult;
use crate::engine::requester::Requester;
use crate::engine::verb::Verb;

impl Verb for ListConflicts {
    type Answer = Vec<Conflict>;
    const ONLY_ASKS: bool = true;

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

impl Verb for WatchConflicts {
    type Answer = Watched;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Watched> {
        watch::wait(engine, requester, self.seen)
    }
}
