//! All versions of one path, from the records of the keys that resolve it: O(versions), independent
//! of the number of checkpoints.
//!
//! After one checkpoint, the next at which the path can differ follows the earliest later record of
//! a key used to resolve it. These keys are the names on the path, the attributes and content of
//! the inode, and for a directory its place, which any change below records. Checkpoints in between
//! are skipped.

use std::sync::Arc;

use super::dropped::DROPPED;
use super::present::Trail;
use super::same::{attributes_differ, same_content};
use super::state::TreeState;
use super::timeline::Timeline;
use super::view::View;
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_store::ids::Name;
use ckptfs_store::record::{AttrState, Child};
use ckptfs_sys::{Errno, Kind, SysResult};

/// How a version differs from the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionChange {
    /// The path was created.
    Added,
    /// Content, attributes or extended attributes changed, or another inode of the same type
    /// replaced it.
    Modified,
    /// The path was removed.
    Deleted,
    /// The file type changed.
    TypeChanged,
    /// The change is unknown: it was made without a record.
    Unknown,
}

/// A version of a path.
#[derive(Clone, Debug)]
pub struct Version {
    /// The first state with it: a checkpoint, or the live tree.
    pub state: TreeState,
    /// Its difference from the previous version.
    pub became: VersionChange,
    /// Its attributes; `None` if removed or unknown.
    pub attr: Option<AttrState>,
}

/// A path in one state.
struct PathAtState {
    state: TreeState,
    /// Its target; an error if unknown.
    found: SysResult<Option<(Child, Arc<Trail>)>>,
    /// The first epoch after the state in which it may have changed.
    next: Option<Epoch>,
}

/// Query for the versions of a path.
pub struct VersionQuery<'a, V, B> {
    /// The history.
    pub timeline: &'a Timeline,
    /// Path relative to the root, `/`-separated.
    pub path: &'a [u8],
    /// All visible checkpoints, oldest first.
    pub kept: &'a [CheckpointId],
    /// Returns the view of a state.
    pub view: V,
    /// Whether anything at or below the path, a directory, differs between two states.
    pub below: B,
}

impl<'a, V: Fn(TreeState) -> View<'a>, B: Fn(TreeState, TreeState) -> SysResult<bool>>
    VersionQuery<'a, V, B>
{
    /// Returns all versions in the checkpoints and in the live tree, oldest first. A change below a
    /// directory is a new version of the directory.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn versions(&self) -> SysResult<Vec<Version>> {
        let names: Vec<Name> = self
            .path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
            .map(Name::new)
            .collect();
        let mut versions = Vec::new();
        let mut before: Option<PathAtState> = None;
        let mut state = self
            .kept
            .first()
            .copied()
            .map_or(TreeState::Live, TreeState::At);
        loop {
            let seen = see(self.timeline, &(self.view)(state), &names)?;
            if let Some(became) = self.differs(before.as_ref(), &seen)? {
                let attr = match &seen.found {
                    Ok(Some((_, trail))) => (self.view)(state).attr(trail).ok(),
                    _ => None,
                };
                versions.push(Version {
                    state,
                    became,
                    attr,
                });
            }
            let Some(epoch) = seen.next else {
                return Ok(versions);
            };
            state = match self
                .kept
                .get(self.kept.partition_point(|id| id.epoch() < epoch))
            {
                Some(id) => TreeState::At(*id),
                None => TreeState::Live,
            };
            before = Some(seen);
        }
    }

    /// Returns the difference between a state and the previous version; `None` if equal.
    fn differs(
        &self,
        before: Option<&PathAtState>,
        now: &PathAtState,
    ) -> SysResult<Option<VersionChange>> {
        let there = |seen: &PathAtState| seen.found.as_ref().ok().cloned().flatten();
        let known = |seen: &PathAtState| seen.found.is_ok();
        if !known(now) {
            return Ok(before.is_none_or(known).then_some(VersionChange::Unknown));
        }
        let unknown = before.is_some_and(|before| !known(before));
        Ok(match (before.and_then(there), there(now)) {
            (None, None) => unknown.then_some(VersionChange::Deleted),
            (None, Some(_)) => Some(if unknown {
                VersionChange::Modified
            } else {
                VersionChange::Added
            }),
            (Some(_), None) => Some(VersionChange::Deleted),
            (Some((old, _)), Some((new, _))) if old.kind != new.kind => {
                Some(VersionChange::TypeChanged)
            }
            (Some((old, old_trail)), Some((new, new_trail))) => {
                let (then, now) = (
                    before.map_or(TreeState::Live, |before| before.state),
                    now.state,
                );
                let changed = old.slot != new.slot
                    || if new.kind == Kind::Dir {
                        (self.below)(then, now)?
                    } else {
                        match changed(
                            &(self.view)(then),
                            &old_trail,
                            &(self.view)(now),
                            &new_trail,
                        ) {
                            // A version is lost.
                            Err(Errno::EIO) => return Ok(Some(VersionChange::Unknown)),
                            changed => changed?,
                        }
                    };
                changed.then_some(VersionChange::Modified)
            }
        })
    }
}

/// Resolves the path and notes the keys used.
fn see(timeline: &Timeline, view: &View<'_>, names: &[Name]) -> SysResult<PathAtState> {
    let state = view.state();
    let mut next: Option<Epoch> = None;
    let mut note = |epoch: Option<Epoch>| next = next.into_iter().chain(epoch).min();
    let mut at = (
        Child {
            slot: ckptfs_store::ids::Slot::ROOT,
            kind: Kind::Dir,
        },
        Trail::root(),
    );
    let mut found = Ok(true);
    for name in names {
        if let TreeState::At(id) = state {
            note(
                timeline
                    .lookup
                    .entry_at(at.1.slot, name, id)?
                    .map(|recorded| recorded.epoch),
            );
        }
        let step = if at.0.kind == Kind::Dir {
            view.step(&at.1, name)
        } else {
            Ok(None)
        };
        match step {
            Ok(Some(there)) => at = there,
            Ok(None) | Err(Errno::ENOENT | Errno::ESTALE) => found = Ok(false),
            Err(errno) => found = Err(errno),
        }
        if found != Ok(true) {
            break;
        }
    }
    if let (TreeState::At(id), Ok(true)) = (state, found) {
        let slot = at.1.slot;
        let lookup = &timeline.lookup;
        note(lookup.attr_at(slot, id)?.map(|recorded| recorded.epoch));
        note(lookup.xattrs_at(slot, id)?.map(|recorded| recorded.epoch));
        note(if at.0.kind == Kind::Dir {
            lookup.home_at(slot, id)?.map(|recorded| recorded.epoch)
        } else {
            lookup.data_at(slot, id)?.map(|recorded| recorded.epoch)
        });
        if view.attr(&at.1) == Err(Errno::EIO) {
            found = Err(Errno::EIO);
        }
    }
    Ok(PathAtState {
        state,
        found: found.map(|there| there.then_some(at)),
        next,
    })
}

fn changed(then: &View<'_>, old: &Arc<Trail>, now: &View<'_>, new: &Arc<Trail>) -> SysResult<bool> {
    let (before, after) = (then.attr(old)?, now.attr(new)?);
    if attributes_differ(&before, &after)
        || before.stat.mtime != after.stat.mtime
        || then.xattrs(old)? != now.xattrs(new)?
    {
        return Ok(true);
    }
    if after.stat.kind != Kind::File {
        return Ok(false);
    }
    match same_content((then, old), (now, new)) {
        // Its content was recorded before a possible change. Whether it changed cannot be
        // determined any more.
        Err(DROPPED) => Ok(then.source(old.slot)? != now.source(new.slot)?),
        same => Ok(!same?),
    }
}
