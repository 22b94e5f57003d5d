//! Marks of the tripwire: checkpoints that the daemon makes before something is removed, and takes
//! back when no burst followed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ckptfs::api::{Query, ShowCheckpoint, StateName};

use super::control::said;
use super::ops::Verb;
use super::tree::Tree;
use super::world::{Snap, World};

/// Longer than it takes to take a mark back.
const TAKEN_BACK: Duration = Duration::from_secs(60);

/// A mark may be made before it.
pub(super) fn destroys(verb: Verb) -> bool {
    verb.is_by_path() || verb == Verb::HandleTruncate
}

impl World {
    /// Remembers the marks that were made, which show the tree as it was before the operation.
    /// `None`: what they show is not known.
    pub(super) fn note_marks(&mut self, before: Option<Tree>) -> Result<(), String> {
        let listed = self
            .client()?
            .ask(Query::default())
            .map_err(|error| said("log", &error))?;
        let known = |id: u64| self.snaps.iter().any(|snap| snap.id == id);
        let listed: Vec<u64> = listed
            .iter()
            .filter(|info| info.reason.is_auto() && info.reason.is_guard_or_mark())
            .filter(|info| !known(info.id.0))
            .map(|info| info.id.0)
            .collect();
        self.marks.retain(|mark| listed.contains(&mark.id));
        let mut made: Vec<u64> = listed
            .into_iter()
            .filter(|id| *id > self.mark_newest)
            .collect();
        made.sort_unstable();
        for id in made {
            self.mark_newest = id;
            self.counts.marks += 1;
            let Some(tree) = before.clone().filter(|_| self.loose().is_empty()) else {
                continue;
            };
            self.marks.push(Snap {
                id,
                asked: false,
                auto: false,
                tree,
                tag: None,
                inos: HashMap::new(),
                synced: false,
                made: Instant::now(),
            });
        }
        Ok(())
    }

    /// Waits until the marks that were seen are taken back.
    pub(super) fn await_unmarked(&mut self) -> Result<(), String> {
        let began = Instant::now();
        loop {
            self.note_marks(None)?;
            if self.marks.is_empty() {
                return Ok(());
            }
            if began.elapsed() > TAKEN_BACK {
                return Err("a mark is not taken back".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The views of all marks that are there.
    pub(super) fn check_marks(&mut self) -> Result<(), String> {
        for mut mark in std::mem::take(&mut self.marks) {
            let compared = self.check_view(&mut mark);
            let state = StateName(mark.id.to_string());
            // It may be taken back at any moment.
            if self.client()?.ask(ShowCheckpoint { state }).is_ok() {
                compared?;
                self.marks.push(mark);
            }
        }
        Ok(())
    }
}
