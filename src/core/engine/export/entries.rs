//! Produces the entries of an export, from the live tree if an inode has no record, otherwise from
//! history; and proves that they were correct.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{ExportExtent, ExportJob, ExportWork, Exporter, LinkedName, PartBuilder, SentEntry};
use crate::history::diff::join;
use crate::history::dropped::DROPPED;
use crate::history::present::{LiveTree, Trail};
use crate::history::state::TreeState;
use crate::history::view::{ContentLocation, KnownListing};
use ckptfs_api::{ExportData, ExportEntry, TreePath};
use ckptfs_store::ids::Name;
use ckptfs_store::record::Child;
use ckptfs_sys::{self as sys, Access, Errno, Kind, SysResult, Time};

impl Exporter<'_> {
    /// Confirms copied parts. Returns the entries that changed while they were copied, each with
    /// its path.
    pub(super) fn confirm(&self, job: &ExportJob, done: &[u64]) -> Vec<(TreePath, ExportWork)> {
        let given: Vec<SentEntry> = {
            let mut progress = job.progress.lock();
            done.iter()
                .filter_map(|part| progress.given.remove(part))
                .flatten()
                .collect()
        };
        // Must be read before the files are checked: the copies precede any later change.
        let quiet = self.timeline().epochs.recordings() == job.recordings;
        let changed = given
            .into_iter()
            .filter(|given| !self.is_proven(job, given, quiet).unwrap_or(false));
        let again = |SentEntry {
                         path, child, trail, ..
                     }| {
            (
                TreePath(path.clone()),
                ExportWork::One {
                    path,
                    child,
                    trail,
                    how: ExportExtent::Whole,
                    again: true,
                },
            )
        };
        changed.map(again).collect()
    }

    /// Returns whether data read from the live tree was still that of the checkpoint when it was
    /// copied.
    fn is_proven(&self, job: &ExportJob, given: &SentEntry, quiet: bool) -> SysResult<bool> {
        if let Some((file, ctime)) = &given.file
            && sys::stat_fd(&**file)?.ctime != *ctime
        {
            return Ok(false);
        }
        if quiet {
            return Ok(true);
        }
        let (timeline, slot) = (self.timeline(), given.child.slot);
        if given.child.kind == Kind::File && timeline.lookup.data_at(slot, job.at)?.is_some() {
            return Ok(false);
        }
        Ok(!given.unrecorded
            || (timeline.lookup.attr_at(slot, job.at)?.is_none()
                && timeline.lookup.xattrs_at(slot, job.at)?.is_none()))
    }

    /// Adds an item of work to a part; returns the resulting work, the next item last.
    pub(super) fn tell(
        &self,
        job: &ExportJob,
        work: ExportWork,
        building: &mut PartBuilder,
    ) -> Vec<ExportWork> {
        match work {
            ExportWork::One {
                path,
                child,
                trail,
                how,
                again,
            } => {
                self.tell_one(job, path, child, &trail, &how, again, building);
                Vec::new()
            }
            ExportWork::List {
                path,
                trail,
                was_here,
            } => self.tell_dir(job, path, trail, was_here, building),
            ExportWork::Rest {
                path,
                trail,
                was_here,
                names,
            } => self.tell_rest(job, path, trail, was_here, names, building),
        }
    }

    fn tell_dir(
        &self,
        job: &ExportJob,
        path: Vec<u8>,
        trail: Arc<Trail>,
        was_here: bool,
        building: &mut PartBuilder,
    ) -> Vec<ExportWork> {
        let first = job.progress.lock().listed.insert(trail.slot);
        let known = if first {
            self.list_at(job, &trail)
        } else {
            Err(Errno::EIO)
        };
        let known = match known {
            Ok(known) => known,
            Err(errno) => {
                building.refuse(path, errno);
                return Vec::new();
            }
        };
        let child = Child {
            slot: trail.slot,
            kind: Kind::Dir,
        };
        self.tell_one(
            job,
            path.clone(),
            child,
            &trail,
            &ExportExtent::Whole,
            false,
            building,
        );
        for name in &known.unknown {
            building.refuse(join(&path, name), Errno::EIO);
        }
        if known.partial {
            building.refuse(path.clone(), Errno::EIO);
        }
        vec![ExportWork::Rest {
            path,
            trail,
            was_here,
            names: known.names.into_iter(),
        }]
    }

    /// Adds the entries of a directory as far as they fit; the others are next, before its
    /// subdirectories.
    fn tell_rest(
        &self,
        job: &ExportJob,
        path: Vec<u8>,
        trail: Arc<Trail>,
        was_here: bool,
        mut names: std::vec::IntoIter<(Name, Child)>,
        building: &mut PartBuilder,
    ) -> Vec<ExportWork> {
        let dir = self.engine.live.inodes.dir(&trail).ok();
        let mut below = Vec::new();
        while !building.is_full() {
            let Some((name, child)) = names.next() else {
                break;
            };
            let was_here = was_here && self.was_here(job, &trail, &name, child);
            let (path, trail) = (join(&path, &name), trail.step(&name, child.slot));
            if child.kind == Kind::Dir {
                below.push(ExportWork::List {
                    path,
                    trail,
                    was_here,
                });
                if job.in_order {
                    break;
                }
                continue;
            }
            let how = job.how(child, was_here);
            let live = dir
                .as_deref()
                .and_then(|dir| self.exported_live(job, dir, &path, child, &trail, &how));
            let nlink = match live {
                Some((entry, ..)) if job.from.is_some() && entry.is_linked() => entry.nlink,
                Some((entry, file, given)) => {
                    building.add(entry, file, Some(given));
                    continue;
                }
                None => match self.links_of(job, child, &trail) {
                    Some(nlink) => nlink,
                    None => {
                        self.tell_one(job, path, child, &trail, &how, false, building);
                        continue;
                    }
                },
            };
            building.linked.push(LinkedName {
                path,
                child,
                trail,
                nlink,
            });
        }
        if names.len() > 0 {
            let rest = ExportWork::Rest {
                path,
                trail,
                was_here,
                names,
            };
            // The last one is next.
            let at = if job.in_order { 0 } else { below.len() };
            below.insert(at, rest);
        }
        below
    }

    /// Returns whether the inode had this path in the state whose files are not sent again.
    fn was_here(&self, job: &ExportJob, dir: &Arc<Trail>, name: &Name, child: Child) -> bool {
        let Some((since, touched)) = &job.since else {
            return false;
        };
        let is_touched = |names: &BTreeSet<Name>| names.contains(name);
        let view = |at| self.engine.states.view(TreeState::At(at));
        let is_here = !touched.names.get(&dir.slot).is_some_and(is_touched)
            || view(*since)
                .child(dir, name)
                .is_ok_and(|was| was == Some(child));
        let is_one = || {
            let way = dir.step(name, child.slot);
            touched.is_one((&view(*since), &way), (&view(job.at), &way))
        };
        is_here && (child.kind != Kind::Dir || is_one())
    }

    /// Returns the link count of an inode, if it has several names and their order matters.
    fn links_of(&self, job: &ExportJob, child: Child, trail: &Arc<Trail>) -> Option<u32> {
        if job.from.is_none() || job.kept.contains_key(&child.slot) {
            return None;
        }
        self.engine
            .states
            .view(TreeState::At(job.at))
            .attr(trail)
            .ok()
            .map(|attr| attr.stat.nlink)
            .filter(|nlink| *nlink > 1)
    }

    /// Returns whether the last change was after the checkpoint and has no record: it bypassed the
    /// mount, or was just made.
    fn looks_changed(&self, job: &ExportJob, ctime: Time) -> bool {
        self.timeline().absences.changed_unseen(ctime, job.at)
            || self.timeline().absences.changed_in_absence(ctime, job.at)
    }

    /// Lists a directory, as far as its names are known.
    pub(super) fn list_at(&self, job: &ExportJob, dir: &Arc<Trail>) -> SysResult<KnownListing> {
        if job.is_untouched(dir.slot) && !job.touched.names.contains_key(&dir.slot) {
            let ctime = self
                .engine
                .live
                .inodes
                .dir(dir)
                .and_then(|fd| sys::stat_fd(&fd))
                .map(|stat| stat.ctime);
            if ctime.is_ok_and(|ctime| !self.looks_changed(job, ctime))
                && let Ok(mut names) = self.engine.live.inodes.list(dir)
                && self.timeline().epochs.recordings() == job.recordings
            {
                names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
                return Ok(KnownListing {
                    names,
                    ..KnownListing::default()
                });
            }
        }
        self.engine
            .states
            .view(TreeState::At(job.at))
            .list_known(dir)
    }

    /// Returns an inode without records, other than a directory, from the live tree; `None`:
    /// history must be consulted.
    fn exported_live(
        &self,
        job: &ExportJob,
        dir: &OwnedFd,
        path: &[u8],
        child: Child,
        trail: &Arc<Trail>,
        how: &ExportExtent,
    ) -> Option<(ExportEntry, Option<Arc<File>>, SentEntry)> {
        if !job.is_untouched(child.slot) || job.kept.contains_key(&child.slot) {
            return None;
        }
        let name = trail.name.as_bytes();
        let (stat, target, xattrs, file) =
            if child.kind == Kind::File && *how == ExportExtent::Whole {
                let file = sys::open_file_at(dir, name, Access::READ).ok()?;
                (
                    sys::stat_fd(&file).ok()?,
                    None,
                    sys::file_xattrs(&file).ok()?,
                    Some(file),
                )
            } else {
                let fd = sys::open_path_at(dir, name).ok()?;
                let target = if child.kind == Kind::Symlink {
                    Some(sys::readlink_fd(&fd).ok()?)
                } else {
                    None
                };
                (
                    sys::stat_fd(&fd).ok()?,
                    target,
                    sys::all_xattrs(&fd).ok()?,
                    None,
                )
            };
        if self.engine.live.inodes.slot_of(&stat) != Ok(child.slot)
            || stat.kind != child.kind
            || self.looks_changed(job, stat.ctime)
        {
            return None;
        }
        let mut entry = ExportEntry::new(path.to_vec(), &stat, child.slot.0, target, xattrs);
        let file = file.map(Arc::new);
        let kept = file.as_ref().map(|file| (Arc::clone(file), stat.ctime));
        let sent = file.filter(|_| stat.size > 0);
        entry.data = match how {
            ExportExtent::Kept => ExportData::Kept,
            _ if sent.is_some() => ExportData::File,
            _ => ExportData::None,
        };
        let given = SentEntry {
            path: path.to_vec(),
            child,
            trail: Arc::clone(trail),
            file: kept,
            unrecorded: true,
        };
        Some((entry, sent, given))
    }

    /// Adds one inode from history.
    #[allow(clippy::too_many_arguments)]
    fn tell_one(
        &self,
        job: &ExportJob,
        path: Vec<u8>,
        child: Child,
        trail: &Arc<Trail>,
        how: &ExportExtent,
        again: bool,
        building: &mut PartBuilder,
    ) {
        match self.exported_past(job, &path, child, trail, how) {
            Ok((mut entry, file, given)) => {
                entry.again = again;
                building.add(entry, file, given);
            }
            Err(errno) => {
                // The content in a copy of another state is not that of this one.
                if errno == DROPPED && job.from.is_some() {
                    building.removed.push(path.clone());
                }
                // Its contents may be exported nevertheless, and need a parent.
                if child.kind == Kind::Dir
                    && let Ok(attr) = self.engine.states.view(TreeState::At(job.at)).attr(trail)
                {
                    building.add(
                        ExportEntry::new(path.clone(), &attr.stat, child.slot.0, None, Vec::new()),
                        None,
                        None,
                    );
                }
                building.refuse(path, errno);
            }
        }
    }

    fn exported_past(
        &self,
        job: &ExportJob,
        path: &[u8],
        child: Child,
        trail: &Arc<Trail>,
        how: &ExportExtent,
    ) -> SysResult<(ExportEntry, Option<Arc<File>>, Option<SentEntry>)> {
        let view = self.engine.states.view(TreeState::At(job.at));
        let attr = view.attr(trail)?;
        let mut entry = ExportEntry::new(
            path.to_vec(),
            &attr.stat,
            child.slot.0,
            attr.target,
            view.xattrs(trail)?,
        );
        match how {
            ExportExtent::Kept => entry.data = ExportData::Kept,
            ExportExtent::Link(to) => entry.data = ExportData::Link(TreePath(to.clone())),
            ExportExtent::Whole if job.kept.contains_key(&child.slot) => {
                let to = job.kept.get(&child.slot).cloned().unwrap_or_default();
                entry.data = ExportData::Link(TreePath(to));
            }
            ExportExtent::Whole if child.kind == Kind::File => {
                let (source, file) = view.open(trail)?;
                let Some(file) = file.map(Arc::new) else {
                    return Ok((entry, None, None));
                };
                let mut given = None;
                if source == ContentLocation::Live {
                    let ctime = sys::stat_fd(&*file)?.ctime;
                    // The file may have changed between open and fstat.
                    if !view.still_live(trail, Some(&file))? {
                        return self.exported_past(job, path, child, trail, how);
                    }
                    let file = Some((Arc::clone(&file), ctime));
                    given = Some(SentEntry {
                        path: path.to_vec(),
                        child,
                        trail: Arc::clone(trail),
                        file,
                        unrecorded: false,
                    });
                }
                entry.data = ExportData::File;
                return Ok((entry, Some(file), given));
            }
            ExportExtent::Whole => {}
        }
        Ok((entry, None, None))
    }
}
