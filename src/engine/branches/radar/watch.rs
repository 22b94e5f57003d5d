//! Waiting until something of it changes.
//!
//! Whoever watches asks, and is answered when there is something else than they have seen; meanwhile
//! nothing is kept for them. Several times a second it is asked of each tree whether anything was
//! recorded or changed in it, which are two numbers; only then the trees are compared. What the
//! kernel writes by itself changes neither, so as long as somebody has a file open to be written,
//! they are compared now and then. However much changes, comparing takes a part of one processor.

use std::time::{Duration, Instant};

use super::super::watchers::LOOK;
use super::answers::{Conflict, Watched};
use super::rows::Rows;
use super::touches::{Touches, settle};
use crate::engine::Engine;
use crate::engine::api::{Code, VerbResult};
use crate::engine::error::{error, not_mounted};
use crate::engine::requester::Requester;
use crate::store::ids::Address;

/// How often files are looked at that somebody may write to without our seeing it.
const LOOK_UNSEEN: Duration = Duration::from_secs(1);
/// After so long without news that is the answer: whoever asks may have nobody to tell any more.
const QUIET: Duration = Duration::from_secs(5);

/// What changes when a tree does, of this one and of each branch: where its journal ends, and how
/// many changes have begun.
type Pulses = Vec<(String, Address, u64)>;

fn pulses(engine: &Engine) -> Pulses {
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

/// Somebody may write to a file without being seen.
fn is_written_unseen(engine: &Engine) -> bool {
    let branches = engine.branches.all();
    let all = branches.iter().map(|branch| &*branch.engine);
    all.chain([engine])
        .any(|engine| !engine.live.hot.is_empty())
}

/// Something has changed since the last look, or may have.
fn is_news(engine: &Engine, last: Option<&(Pulses, Instant)>) -> bool {
    last.is_none_or(|(before, at)| {
        *before != pulses(engine) || (at.elapsed() >= LOOK_UNSEEN && is_written_unseen(engine))
    })
}

/// What stands for what was seen.
fn seal(conflicts: &[Conflict]) -> VerbResult<String> {
    let text =
        serde_json::to_vec(conflicts).map_err(|why| error(Code::Internal, why.to_string()))?;
    Ok(blake3::hash(&text).to_hex().to_string())
}

/// Waits until there is something else than `seen`.
///
/// # Errors
/// Those of comparing the trees; `too-many-connections`; `not-mounted`: the tree is served no longer;
/// `cancelled`: whoever asked is gone.
pub(super) fn wait(
    engine: &Engine,
    requester: &Requester,
    seen: Option<String>,
) -> VerbResult<Watched> {
    let watchers = &engine.branches.watchers;
    let _one = watchers.enter()?;
    let began = Instant::now();
    let mut last: Option<(Pulses, Instant)> = None;
    // Who has just been answered waits as everybody does between two looks.
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
            let touches = Touches::of(engine)?;
            let conflicts = Rows::of(&touches).told(&touches);
            watchers.took(asked.elapsed());
            let sealed = seal(&conflicts)?;
            // What ends meanwhile is not gone.
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
