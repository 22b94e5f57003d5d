//! What comes of the three, and what it takes.

use std::collections::{BTreeSet, HashSet};
use std::io::Write;
use std::sync::Arc;

use super::answers::{Merge, MergeAnswer, MergeConflict, MergePolicy, MergeVersion};
use super::changes::changes;
use super::planning::{along, leave_out_git, told};
use crate::engine::Engine;
use crate::engine::api::{Change, Code, TreePath, VerbError, VerbResult};
use crate::engine::branches::Branch;
use crate::engine::control::{SNAPDIR_NAME, STORE_NAME};
use crate::engine::error;
use crate::engine::restore::plan::Plan;
use crate::engine::restore::prepare::Ready;
use crate::engine::restore::want::{Opened, Want};
use crate::history::present::Trail;
use crate::history::touched::Touched;
use crate::history::view::{Source as Held, View};
use crate::live::STAGED_PREFIX;
use crate::store::ids::{CheckpointId, Slot};
use crate::store::record::AttrState;
use crate::sys::{self, Errno, Open, SysResult, Time, Xattrs};
use crate::tree::Tree;
use crate::tree::merge::outcome::{Outcome, Source};
use crate::tree::merge::text::Labels;
use crate::tree::merge::{Answer, Answers, Clash, How, Policy, merge};

/// Waits until no process keeps a file locked.
pub(super) type AwaitFree<'w> = &'w dyn Fn(Slot) -> SysResult<()>;

/// The three trees, and what is asked for.
pub(super) struct Three<'a> {
    pub(super) engine: &'a Engine,
    pub(super) base: View<'a>,
    pub(super) ours: View<'a>,
    pub(super) theirs: View<'a>,
    /// `theirs` is this branch.
    pub(super) branch: Option<&'a Branch>,
    /// The checkpoint of the base.
    pub(super) since: CheckpointId,
    pub(super) asked: &'a Merge,
}

/// What is to be done.
pub(super) struct Merging<'t> {
    outcome: Outcome<'t, View<'t>>,
    three: &'t Three<'t>,
    plan: Plan,
    touched: HashSet<Slot>,
    /// The time of what has lines of both.
    now: Time,
    pub(super) changes: Vec<Change>,
}

impl Three<'_> {
    /// Merges, along what was recorded on either side.
    pub(super) fn prepare(&self, await_free: AwaitFree<'_>) -> VerbResult<Merging<'_>> {
        let failed = |errno| self.engine.checkpoints.failed(super::FAILED, errno);
        let (here, there) = self.touched().map_err(failed)?;
        let recorded: Vec<&Touched> = [&here].into_iter().chain(&there).collect();
        let mut along = along(&recorded);
        let states = [&self.base, &self.ours, &self.theirs];
        leave_out_git(&mut along, states).map_err(failed)?;
        let read = here
            .data
            .iter()
            .chain(there.iter().flat_map(|there| &there.data));
        let read: HashSet<Slot> = read.copied().collect();
        read.iter()
            .try_for_each(|slot| await_free(*slot))
            .map_err(failed)?;
        let paths = self.paths()?;
        let answers = self.answers()?;
        let base = format!("checkpoint {}", self.since);
        let how = How {
            along: Some(&along),
            paths: &paths,
            policy: self.policy(),
            answers: Some(&answers),
            labels: Labels {
                ours: "live",
                base: &base,
                theirs: &self.asked.what,
            },
            since: [
                Some(self.since),
                Some(self.branch.map_or(self.since, |branch| branch.since)),
            ],
            reuses: [!self.engine.branches().is_of_one(), self.branch.is_none()],
        };
        let outcome = merge(&self.base, &self.ours, &self.theirs, &how).map_err(failed)?;
        let answered = outcome.answered();
        if let Some(path) = answers.keys().find(|path| !answered.contains(*path)) {
            return Err(outdated(path));
        }
        let plan = Plan {
            target: self.since,
            whole: false,
            tree: outcome.plan().map_err(failed)?,
            times: self.times(),
            unknown: BTreeSet::new(),
            lost: HashSet::new(),
        };
        let mut merging = Merging {
            outcome,
            three: self,
            plan,
            touched: read,
            now: sys::now(),
            changes: Vec::new(),
        };
        merging.changes = changes(&merging.plan, &merging.outcome, &self.ours).map_err(failed)?;
        Ok(merging)
    }

    /// What was recorded here since the base, and in a branch; without one all is recorded here.
    fn touched(&self) -> SysResult<(Touched, Option<Touched>)> {
        let states = &self.engine.states;
        match (self.branch, self.theirs.state().checkpoint()) {
            (Some(branch), upto) => {
                let here = states.touched(self.since, None)?;
                let there = branch.engine.states.touched(branch.since, upto)?;
                Ok((here, Some(there)))
            }
            (None, Some(at)) => Ok((states.touched(self.since.min(at), None)?, None)),
            (None, None) => Ok((states.touched(self.since, None)?, None)),
        }
    }

    fn policy(&self) -> Policy<'_> {
        match self.asked.policy {
            None => Policy::Name,
            Some(MergePolicy::Ours) => Policy::Ours,
            Some(MergePolicy::Theirs) => Policy::Theirs,
            Some(MergePolicy::Markers) => Policy::Markers,
            Some(MergePolicy::KeepBoth) => Policy::KeepBoth(self.asked.what.as_bytes()),
        }
    }

    /// What is to come of files that clash.
    fn answers(&self) -> VerbResult<Answers> {
        let hash = |text: &String| {
            blake3::Hash::from_hex(text)
                .map_err(|_| error::error(Code::Protocol, "an answer is of no hash"))
        };
        let answer = |answer: &MergeAnswer| {
            let [base, ours, theirs] = &answer.of;
            let of = [hash(base)?, hash(ours)?, hash(theirs)?];
            let text = answer.content.0.clone();
            Ok((answer.path.0.clone(), Answer { of, text }))
        };
        self.asked.answers.iter().map(answer).collect()
    }

    /// Paths without `.` and doubled slashes, each of which is in one of the three. The root stands
    /// for everything.
    fn paths(&self) -> VerbResult<Vec<Vec<u8>>> {
        let mut cleaned = Vec::new();
        for path in &self.asked.paths {
            let names = path.0.split(|byte| *byte == b'/');
            let names: Vec<&[u8]> = names
                .filter(|name| !name.is_empty() && *name != b".")
                .collect();
            let Some(first) = names.first() else {
                return Ok(Vec::new());
            };
            let clean = names.join(&b'/');
            let is_there = |view: &View<'_>| matches!(view.walk(&clean), Ok(Some(_)));
            let own = *first == STORE_NAME || *first == SNAPDIR_NAME;
            let views = [&self.base, &self.ours, &self.theirs];
            if own || names.contains(&b"..".as_slice()) || !views.into_iter().any(is_there) {
                return Err(error::unknown_path(&path.0, self.since));
            }
            cleaned.push(clean);
        }
        Ok(cleaned)
    }
}

/// What was said of a file is of something else than it holds now.
fn outdated(path: &[u8]) -> VerbError {
    error::hinted(
        Code::Outdated,
        format!(
            "nothing was changed: {:?} was changed here or there after it was merged by the tool",
            String::from_utf8_lossy(path)
        ),
        "merge again",
    )
}

impl Merging<'_> {
    /// The versions of files whose content clashes and of which nothing was said, behind `after` in
    /// the order of paths, as many as have `bytes_max` bytes, and one.
    pub(super) fn versions(
        &self,
        after: Option<&TreePath>,
        bytes_max: usize,
    ) -> SysResult<Vec<MergeVersion>> {
        let (mut all, mut bytes) = (Vec::new(), 0_usize);
        for conflict in self.outcome.conflicts() {
            let is_behind = after.is_none_or(|after| conflict.path > after.0);
            if conflict.clash != Clash::Content || conflict.settled || !is_behind {
                continue;
            }
            if let Some(versions) = self.outcome.versions(conflict)? {
                bytes += versions.iter().map(Vec::len).sum::<usize>();
                all.push(MergeVersion {
                    path: TreePath(conflict.path.clone()),
                    versions: versions.map(TreePath),
                });
            }
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(all)
    }

    pub(super) fn conflicts(&self) -> Vec<MergeConflict> {
        self.outcome.conflicts().iter().map(told).collect()
    }

    /// Something clashes, and nothing was said of it.
    pub(super) fn is_refused(&self) -> bool {
        self.outcome
            .conflicts()
            .iter()
            .any(|conflict| !conflict.settled)
    }

    /// A file that has no name, with these bytes.
    fn file_of(&self, slot: Slot, bytes: &[u8]) -> SysResult<std::fs::File> {
        let staging = &**self.three.engine.live.staging();
        let name = format!("{STAGED_PREFIX}text-{}", slot.0).into_bytes();
        let make = || sys::create_file_at(staging, &name, Open::READ_WRITE, 0o600);
        let mut file = match make() {
            Err(Errno::EEXIST) => {
                sys::unlink_at(staging, &name)?;
                make()?
            }
            made => made?,
        };
        sys::unlink_at(staging, &name)?;
        file.write_all(bytes)?;
        Ok(file)
    }
}

impl Ready for Merging<'_> {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn want(&self) -> &dyn Want {
        self
    }

    fn touched(&self) -> &HashSet<Slot> {
        &self.touched
    }
}

impl Want for Merging<'_> {
    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        let mut attr = self.outcome.attr(node)?;
        if let Source::Text(_) = self.outcome.source(node) {
            attr.stat.mtime = self.now;
        }
        Ok(attr)
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        self.outcome.xattrs(node)
    }

    fn open(&self, node: &Arc<Trail>, frozen: bool) -> SysResult<Option<Opened>> {
        match self.outcome.source(node) {
            Source::Text(bytes) => Ok(Some(Opened {
                file: Some(self.file_of(node.slot, bytes)?),
                still: true,
            })),
            Source::Ours(way) => Want::open(&self.three.ours, &way, frozen),
            Source::Theirs(way) => {
                let (from, file) = self.three.theirs.open(&way)?;
                let still = from != Held::Live;
                // The live tree here is frozen, and not what a branch has.
                let waits = !still && self.three.branch.is_none() && !frozen;
                Ok((!waits).then_some(Opened { file, still }))
            }
        }
    }

    fn was_so(&self, node: &Arc<Trail>, opened: &Opened) -> SysResult<bool> {
        match self.outcome.source(node) {
            Source::Theirs(way) if !opened.still => {
                self.three.theirs.still_live(&way, opened.file.as_ref())
            }
            _ => Ok(true),
        }
    }

    fn here(&self, node: &Arc<Trail>) -> Arc<Trail> {
        self.outcome.here(node)
    }
}
