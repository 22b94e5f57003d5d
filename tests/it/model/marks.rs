//! Marks of the tripwire: checkpoints that the daemon makes before something is removed. They are
//! hidden until a burst is confirmed, and freed if none follows.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ckptfs::api::{Query, ShowCheckpoint, StateName};

use super::control::said;
use super::ops::Verb;
use super::tree::Tree;
use super::world::{Snap, World};

/// Longer than it takes to free a mark.
const FREED: Duration = Duration::from_secs(60);

/// A mark may be made before it.
pub(super) fn destroys(verb: Verb) -> bool {
    verb.is_by_path() || verb == Verb::HandleTruncate
}

impl World {
    /// Remembers the marks that were made, which show the tree as it was before the operation.
    /// `None`: what they show is not known.
    pub(super) fn note_marks(&mut self, before: Option<Tree>) -> Result<(), String> {
        // Hidden ones first: one that is confirmed in between is listed twice, not missed.
        let mut listed = BTreeSet::new();
        for hidden in [true, false] {
            let query = Query {
                hidden,
                ..Query::default()
            };
            let answer = self.client()?.ask(query);
            let infos = answer.map_err(|error| said("log", &error))?;
            let marks = infos.iter().filter(|info| info.reason.is_mark());
            listed.extend(marks.map(|info| info.id.0));
        }
        listed.retain(|id| !self.snaps.iter().any(|snap| snap.id == *id));
        self.marks.retain(|mark| listed.contains(&mark.id));
        let newest = self.mark_newest;
        for id in listed.into_iter().filter(|id| *id > newest) {
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

    /// Waits until the marks that were seen are freed.
    pub(super) fn await_unmarked(&mut self) -> Result<(), String> {
        let began = Instant::now();
        loop {
            self.note_marks(None)?;
            if self.marks.is_empty() {
                return Ok(());
            }
            if began.elapsed() > FREED {
                return Err("a mark is not freed".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The views of all marks that are confirmed.
    pub(super) fn check_marks(&mut self) -> Result<(), String> {
        for mut mark in std::mem::take(&mut self.marks) {
            let state = StateName(mark.id.to_string());
            if self.client()?.ask(ShowCheckpoint { state }).is_ok() {
                self.check_view(&mut mark)?;
            }
            self.marks.push(mark);
        }
        Ok(())
    }
}
