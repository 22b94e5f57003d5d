//! Waits for changes of the conflicts.
//!
//! A client polls, and gets an answer when the conflicts differ from those that it has seen; no
//! state is stored for it between requests. Several times a second, two numbers of each tree show
//! whether anything was recorded or changed; only then are the trees compared. Writes through the
//! kernel (passthrough) change none of the numbers. While a file is open for writing, the trees are
//! therefore also compared at intervals. However many changes occur, comparisons take only a part
//! of one CPU.

use std::time::{Duration, Instant};

use super::super::watchers::LOOK;
use super::rows::Overlaps;
use super::touches::{TreeChanges, settle};
use crate::engine::Engine;
use crate::engine::error::{error, not_mounted};
use crate::engine::requester::Requester;
use ckptfs_api::{Code, Conflict, VerbResult, Watched};
use ckptfs_store::ids::Address;

/// Interval of comparisons while a file may be written to without a request.
const LOOK_UNSEEN: Duration = Duration::from_secs(1);
/// Time without changes until an empty answer: the client may no longer have a reader.
const QUIET: Duration = Duration::from_secs(5);

/// Values that change with each tree, for this one and its branches: the end of the journal, and
/// the number of changes begun.
type ActivityStamps = Vec<(String, Address, u64)>;

fn pulses(engine: &Engine) -> ActivityStamps {
    let pulse = |name: &str, engine: &Engine| {
        let journal = engine.timeline().store().journal.position();
        (name.to_owned(), journal, engine.live.locks.changes())
    };
    let mut pulses = vec![pulse("", engine)];
    let branches = engine.branches.all();
    pulses.extend(
        branches
            .iter()
            .map(|branch| pulse(&branch.name, &branch.engine)),
    );
    pulses
}

/// Returns whether a process may write to a file without a request.
fn is_written_unseen(engine: &Engine) -> bool {
    let branches = engine.branches.all();
    let all = branches.iter().map(|branch| &*branch.engine);
    all.chain([engine])
        .any(|engine| !engine.live.hot.is_empty())
}

/// Returns whether a tree has changed since the last comparison, or may have.
fn is_news(engine: &Engine, last: Option<&(ActivityStamps, Instant)>) -> bool {
    last.is_none_or(|(before, at)| {
        *before != pulses(engine) || (at.elapsed() >= LOOK_UNSEEN && is_written_unseen(engine))
    })
}

/// Returns the hash that identifies the conflicts.
fn seal(conflicts: &[Conflict]) -> VerbResult<String> {
    let text =
        serde_json::to_vec(conflicts).map_err(|why| error(Code::Internal, why.to_string()))?;
    Ok(blake3::hash(&text).to_hex().to_string())
}

/// Waits until the conflicts differ from `seen`.
///
/// # Errors
/// Errors of comparing the trees; `too-many-connections`; `not-mounted`: the tree is no longer
/// served; `cancelled`: the client is gone.
pub(super) fn wait(
    engine: &Engine,
    requester: &Requester,
    seen: Option<String>,
) -> VerbResult<Watched> {
    let watchers = &engine.branches.watchers;
    let _one = watchers.enter()?;
    let began = Instant::now();
    let mut last: Option<(ActivityStamps, Instant)> = None;
    // A client that was just answered waits like any other between two comparisons.
    let mut at = seen.as_ref().map(|_| began);
    loop {
        requester.still_wants()?;
        if watchers.has_ended() {
            return Err(not_mounted("the tree is no longer mounted"));
        }
        let rested = at.is_none_or(|at| at.elapsed() >= watchers.rest());
        if rested && watchers.is_settled() && is_news(engine, last.as_ref()) {
            settle(engine);
            let (asked, now) = (Instant::now(), pulses(engine));
            let touches = TreeChanges::of(engine)?;
            let conflicts = Overlaps::of(&touches).told(&touches);
            watchers.took(asked.elapsed());
            let sealed = seal(&conflicts)?;
            // A branch that is ending still exists.
            if seen.as_ref() != Some(&sealed) && watchers.is_settled() {
                return Ok(Watched {
                    seen: sealed,
                    conflicts: Some(conflicts),
                });
            }
            at = Some(Instant::now());
            last = Some((now, Instant::now()));
        }
        if let (Some(seen), true) = (&seen, began.elapsed() >= QUIET) {
            return Ok(Watched {
                seen: seen.clone(),
                conflicts: None,
            });
        }
        std::thread::sleep(LOOK);
    }
}
