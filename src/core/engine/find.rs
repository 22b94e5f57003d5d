//! Search for checkpoints and versions; tags.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::checkpoint::Checkpoints;
use super::checkpoint::check_tag;
use super::diff_counts::DiffCountCache;
use super::diff_counts::Pair;
use super::error;
use crate::engine::checkpoint_info::checkpoint_info;
use crate::history::select::parse_time;
use crate::history::state::TreeState;
use crate::history::versions::{Version, VersionChange, VersionQuery};
use ckptfs_api::{
    Actor, ChangeKind, CheckpointId, CheckpointInfo, Query, Retag, StateName, TreePath, VerbResult,
    VersionInfo, VersionKind,
};
use ckptfs_store::journal::codec::TAGS_MAX;
use ckptfs_store::operation::{OperationEffect, TagChange};
use ckptfs_store::record::{CheckpointState, Record};
use ckptfs_sys::{Errno, Kind, SysResult};

/// Time per reply spent on counting differences between checkpoints.
const COUNT_MAX: Duration = Duration::from_millis(200);

/// A parsed query.
pub(super) struct QueryMatcher<'a> {
    query: &'a Query,
    note: Option<String>,
    since_ns: i128,
    until_ns: i128,
}

impl<'a> QueryMatcher<'a> {
    /// # Errors
    /// `bad-time`.
    pub(super) fn new(query: &'a Query) -> VerbResult<QueryMatcher<'a>> {
        let time = |text: &Option<String>, otherwise| match text {
            Some(text) => parse_time(text)
                .map(jiff::Timestamp::as_nanosecond)
                .map_err(error::bad_time),
            None => Ok(otherwise),
        };
        let note = query.note.as_ref().map(|note| note.to_lowercase());
        Ok(QueryMatcher {
            query,
            note,
            since_ns: time(&query.since, i128::MIN)?,
            until_ns: time(&query.until, i128::MAX)?,
        })
    }

    /// Returns whether a checkpoint's record meets all conditions.
    pub(super) fn takes(&self, checkpoint: &CheckpointState) -> bool {
        let created = i128::from(checkpoint.state_ns());
        let has_label = |(key, value): &(String, String)| {
            checkpoint
                .note
                .lines()
                .any(|line| label(line) == Some((key, value)))
        };
        (self.since_ns..=self.until_ns).contains(&created)
            && self
                .query
                .before
                .is_none_or(|before| checkpoint.id < before)
            && (!self.query.pinned || checkpoint.pinned.is_some())
            && self
                .query
                .uid
                .is_none_or(|uid| checkpoint.by.as_ref().is_some_and(|by| by.uid == uid))
            && self
                .query
                .tag
                .as_ref()
                .is_none_or(|wanted| checkpoint.tags.iter().any(|tag| is_like(tag, wanted)))
            && self
                .note
                .as_ref()
                .is_none_or(|wanted| checkpoint.note.to_lowercase().contains(wanted))
            && self.query.labels.iter().all(has_label)
    }
}

/// Parses a line of a note as a label, `KEY: VALUE`.
fn label(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    let is_key = !key.is_empty()
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    is_key.then_some((key, value.trim()))
}

/// Matches `text` against a pattern with `*`. The cost is linear for each `*`.
fn is_like(text: &str, pattern: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return text == pattern;
    };
    let Some(mut text) = text.strip_prefix(head) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match text.split_once(part) {
            Some((_, after)) => text = after,
            None => return false,
        }
    }
    text.ends_with(last)
}

/// Finds checkpoints and versions of paths.
pub(super) struct Search {
    pub(super) checkpoints: Arc<Checkpoints>,
    counted: DiffCountCache,
}

impl Search {
    pub(super) fn new(checkpoints: Arc<Checkpoints>) -> Search {
        Search {
            checkpoints,
            counted: DiffCountCache::default(),
        }
    }

    pub(super) fn find_checkpoints(&self, query: &Query) -> VerbResult<Vec<CheckpointInfo>> {
        let mut found = self.found(query)?;
        let began = Instant::now();
        for one in found
            .iter_mut()
            .filter(|_| query.counted)
            .take_while(|_| began.elapsed() < COUNT_MAX)
        {
            one.changes = one
                .parent
                .and_then(|parent| self.count_changes((one.id, parent)));
        }
        Ok(found)
    }

    /// Returns the number of paths that differ from the second checkpoint to the first; `None` if
    /// they cannot be compared.
    fn count_changes(&self, pair: Pair) -> Option<u64> {
        let losses = self.timeline().losses.count();
        if let Some(known) = self.counted.get(pair, losses) {
            return Some(known);
        }
        let changes = self
            .checkpoints
            .states
            .compare(TreeState::At(pair.1), TreeState::At(pair.0), b"")
            .ok()?;
        let count = changes.len() as u64;
        // Unreadable paths may be readable the next time.
        if changes
            .iter()
            .all(|change| change.change != ChangeKind::Unknown)
        {
            self.counted.put(pair, losses, count);
        }
        Some(count)
    }

    fn found(&self, query: &Query) -> VerbResult<Vec<CheckpointInfo>> {
        let (matcher, catalogue) = (QueryMatcher::new(query)?, &self.timeline().catalogue);
        let limit = query.limit.unwrap_or(usize::MAX);
        let told = |found: &mut dyn Iterator<Item = CheckpointState>| {
            found
                .filter(|kept| matcher.takes(kept))
                .take(limit)
                .map(|kept| checkpoint_info(&kept))
                .collect()
        };
        let numbered = |id: CheckpointId| catalogue.checkpoint(id);
        if query.hidden {
            return Ok(told(&mut catalogue.hidden().into_iter().rev()));
        }
        if let Some(path) = &query.path {
            let versions = self.versions_of(path)?;
            let touched = versions.iter().rev();
            let ids = touched.filter_map(|version| version.state.checkpoint());
            return Ok(told(&mut ids.filter_map(numbered)));
        }
        // A tag belongs to one checkpoint.
        if let Some(tag) = query.tag.as_ref().filter(|tag| !tag.contains('*')) {
            return Ok(told(
                &mut catalogue.tagged(tag).and_then(numbered).into_iter(),
            ));
        }
        // Usually fewer tags than checkpoints exist, and they are stored contiguously.
        if let Some(pattern) = &query.tag {
            let like = catalogue.tags().into_iter();
            let like = like.filter(|(tag, _)| is_like(tag, pattern));
            let ids: BTreeSet<CheckpointId> = like.map(|(_, id)| id).collect();
            return Ok(told(&mut ids.into_iter().rev().filter_map(numbered)));
        }
        let newest = catalogue.newest_before(query.before, limit, |kept| matcher.takes(kept));
        Ok(newest.iter().map(checkpoint_info).collect())
    }

    pub(super) fn version_infos(&self, path: &TreePath) -> VerbResult<Vec<VersionInfo>> {
        self.checkpoints.settle();
        let found = self.versions_of(path)?;
        if found.is_empty() {
            return Err(error::never_there(&path.0));
        }
        Ok(found
            .into_iter()
            .rev()
            .map(|version| self.version_info(version))
            .collect())
    }

    fn versions_of(&self, path: &TreePath) -> VerbResult<Vec<Version>> {
        let kept: Vec<CheckpointId> = self.timeline().catalogue.checkpoint_ids();
        let below = |from: TreeState, to: TreeState| -> SysResult<bool> {
            Ok(!self
                .checkpoints
                .states
                .compare(from, to, &path.0)?
                .is_empty())
        };
        let asked = VersionQuery {
            timeline: self.timeline(),
            path: &path.0,
            kept: &kept,
            view: |state| self.checkpoints.states.view(state),
            below,
        };
        asked
            .versions()
            .map_err(error::failed("the versions cannot be listed"))
    }

    fn version_info(&self, version: Version) -> VersionInfo {
        let id = version.state.checkpoint();
        let checkpoint = id.and_then(|id| self.timeline().catalogue.checkpoint(id));
        let stat = version.attr.map(|attr| attr.stat);
        let modified = stat.and_then(|stat| {
            jiff::Timestamp::new(stat.mtime.sec, stat.mtime.nsec.cast_signed()).ok()
        });
        VersionInfo {
            checkpoint: checkpoint.as_ref().map(checkpoint_info),
            change: match version.became {
                VersionChange::Added => VersionKind::Added,
                VersionChange::Modified => VersionKind::Modified,
                VersionChange::Deleted => VersionKind::Deleted,
                VersionChange::TypeChanged => VersionKind::TypeChanged,
                VersionChange::Unknown => VersionKind::Unknown,
            },
            kind: stat.map(|stat| stat.kind),
            size: stat
                .filter(|stat| stat.kind == Kind::File)
                .map(|stat| stat.size),
            modified: modified.map(|time| time.to_string()),
        }
    }
}

impl Checkpoints {
    pub(super) fn retag_checkpoint(
        &self,
        by: &Actor,
        state: &StateName,
        retag: &Retag,
    ) -> VerbResult<CheckpointInfo> {
        let _one_at_a_time = self.checkpointing.lock();
        let checkpoint = self.states.checkpoint(state)?;
        let id = checkpoint.id;
        let mut tags = checkpoint.tags.clone();
        for tag in &retag.remove {
            let before = tags.len();
            tags.retain(|other| other != tag);
            if tags.len() == before {
                return Err(error::not_its_tag(tag, id, &checkpoint.tags));
            }
        }
        for tag in &retag.add {
            check_tag(tag)?;
            match self.timeline().catalogue.tagged(tag) {
                Some(other) if other != id && !retag.force => {
                    return Err(error::tag_taken(tag, other));
                }
                _ => tags.push(tag.clone()),
            }
        }
        tags.sort();
        tags.dedup();
        if tags.len() > TAGS_MAX {
            return Err(error::too_many_tags(tags.len()));
        }
        if tags != checkpoint.tags {
            self.give_tags(by, id, tags)?;
        }
        let after = self.timeline().catalogue.checkpoint(id);
        Ok(checkpoint_info(&after.unwrap_or(checkpoint)))
    }

    /// Sets the tags of a checkpoint, and removes them from all others.
    fn give_tags(&self, by: &Actor, id: CheckpointId, tags: Vec<String>) -> VerbResult<()> {
        let losing = |other: &CheckpointState| {
            other.id != id && other.tags.iter().any(|tag| tags.contains(tag))
        };
        let losers = self.timeline().catalogue.newest(usize::MAX, losing);
        let without = |other: CheckpointState| {
            let (id, mut left) = (other.id, other.checkpoint.tags);
            left.retain(|tag| !tags.contains(tag));
            (id, left)
        };
        let mut given: Vec<(CheckpointId, Vec<String>)> = losers.into_iter().map(without).collect();
        given.push((id, tags));
        self.set_tags(by, None, given)
            .map_err(error::failed("the tags were not changed"))
    }

    /// Sets the tags of kept checkpoints as one operation. The caller holds `checkpointing`.
    pub(super) fn set_tags(
        &self,
        by: &Actor,
        undoes: Option<u64>,
        given: Vec<(CheckpointId, Vec<String>)>,
    ) -> SysResult<()> {
        let (mut changes, mut records) = (Vec::new(), Vec::new());
        for (id, tags) in given {
            let before = self.timeline().catalogue.checkpoint(id);
            let before = before.ok_or(Errno::ENOENT)?.checkpoint.tags;
            let not_in = |these: &[String], others: &[String]| {
                these
                    .iter()
                    .filter(|tag| !others.contains(tag))
                    .cloned()
                    .collect()
            };
            changes.push(TagChange {
                id,
                lost: not_in(&before, &tags),
                got: not_in(&tags, &before),
            });
            records.push(Record::Tags { id, tags });
        }
        self.timeline()
            .operations
            .operate(by, undoes, OperationEffect::Tagged { changes }, records)
    }
}

/// Searches the checkpoints of an unmounted store; `checkpoints` are oldest first.
///
/// # Errors
/// `bad-time`; `not-mounted` for conditions that need a daemon.
pub(super) fn find_offline(
    checkpoints: &[CheckpointState],
    query: &Query,
) -> VerbResult<Vec<CheckpointInfo>> {
    if query.path.is_some() {
        return Err(error::not_mounted(
            "which checkpoints changed a path is only known while the directory is mounted",
        ));
    }
    let matcher = QueryMatcher::new(query)?;
    let found = checkpoints
        .iter()
        .rev()
        .filter(|checkpoint| matcher.takes(checkpoint))
        .take(query.limit.unwrap_or(usize::MAX));
    Ok(found.map(checkpoint_info).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        let like = ["v1", "v*", "*1", "*", "v*1", "v1*", "*v1*"];
        assert!(like.iter().all(|pattern| is_like("v1", pattern)));
        let other = ["v", "v2", "w*", "*2", "v*v1", "v1*1", ""];
        assert!(!other.iter().any(|pattern| is_like("v1", pattern)));
        assert!(is_like("a-b-c-d", "a*b*d") && !is_like("a-b-c-d", "a*c*b*d"));
    }

    #[test]
    fn labels_are_lines_of_their_own() {
        assert_eq!(label("session: 7f: x "), Some(("session", "7f: x")));
        assert_eq!(
            (label("not a key: x"), label(": x"), label("x")),
            (None, None, None)
        );
    }
}
