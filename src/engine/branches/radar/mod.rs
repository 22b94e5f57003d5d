//! The conflict radar: what more than one tree has touched, known while they work.
//!
//! It goes by what each has recorded since they had it in common, so it costs what was changed, not
//! what there is. An inode of the base is one in all of them, so what was renamed here and edited
//! there is one file.
//!
//! - `answers`: what is asked and answered.
//! - `touches`: what each has touched, and of which inode that is.
//! - `rows`: what more than one has touched.
//! - `check`: what of that would clash in a merge.
//! - `watch`: waiting until something of it changes.
//!
//! **Locking.** None is held: a branch may be dropped meanwhile, and is left out then.

mod answers;
mod check;
mod rows;
mod touches;
mod watch;

pub use self::answers::{Clash, Conflict, ListConflicts, Touch, WatchConflicts, Watched};
use self::rows::Rows;
use self::touches::{Touches, settle};
use crate::engine::Engine;
use crate::engine::api::VerbResult;
use crate::engine::requester::Requester;
use crate::engine::verb::Verb;

impl Verb for ListConflicts {
    type Answer = Vec<Conflict>;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<Conflict>> {
        settle(engine);
        let touches = Touches::of(engine)?;
        let mut rows = Rows::of(&touches);
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
