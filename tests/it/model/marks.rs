//! Tripwire marks: checkpoints that the daemon makes before a removal. They are hidden until a
//! burst is confirmed, and freed if none follows.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::control::said;
use super::ops::Verb;
use super::tree::Tree;
use super::world::{ModelCheckpoint, ModelRun};
use ckptfs_api::{Query, ShowCheckpoint, StateName};

/// Timeout for the freeing of marks.
const FREED: Duration = Duration::from_secs(60);

/// Reports whether a mark may be made before the operation.
pub(super) fn destroys(verb: Verb) -> bool {
    verb.is_by_path() || verb == Verb::HandleTruncate
}

impl ModelRun {
    /// Records new marks, which show the tree `before` the operation; with `None` their content is
    /// unknown.
    pub(super) fn note_marks(&mut self, before: Option<Tree>) -> Result<(), String> {
        // Hidden ones first: a mark confirmed in between is listed twice rather than missed.
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
            self.marks.push(ModelCheckpoint {
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

    /// Waits until all recorded marks are freed.
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

    /// Checks the views of all confirmed marks.
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
