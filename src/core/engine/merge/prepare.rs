//! The three-way merge: its result and the plan that produces it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use super::MergeKind;
use super::changes::changes;
use super::failure_message;
use super::merge_base::BranchPair;
use super::planning::{along, leave_out_git, outdated, told};
use crate::engine::Engine;
use crate::engine::error;
use crate::engine::request::NodeId;
use crate::engine::restore::Restorer;
use crate::engine::restore::desired::{DesiredContent, DesiredInodes};
use crate::engine::restore::plan::RestorePlan;
use crate::engine::restore::prepare::PreparedOp;
use crate::engine::restore::stat_cache::StatCache;
use crate::engine::restore::threads;
use crate::history::present::Trail;
use crate::history::state::TreeState;
use crate::history::touched::Touched;
use crate::history::view::{ContentLocation as Held, View};
use crate::live::STAGED_PREFIX;
use crate::tree::Tree;
use crate::tree::merge::inode_classes::InodeClasses;
use crate::tree::merge::outcome::{MergeOutcome, MergedContent};
use crate::tree::merge::text::Labels;
use crate::tree::merge::{
    Answers, ClashKind, Conflict, ConflictPolicy, MergeOptions, Names, Resolution, merge_since,
};
use crate::tree::plan::InodeAction;
use ckptfs_api::{
    Change, CheckpointId, Code, Merge, MergeAnswer, MergeBase, MergeConflict, MergePolicy,
    MergeVersion, Times, TreePath, VerbResult,
};
use ckptfs_store::ids::Slot;
use ckptfs_store::layout::merges::{InodeBirth, MergeInto};
use ckptfs_store::record::AttrState;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Access, Errno, Kind, SysResult, Time, Xattrs};

/// The label of the parent when it is merged into a branch.
pub(super) const PARENT: &str = "parent";

/// Waits until no process holds a lock on a file.
pub(super) type AwaitFree<'w> = &'w dyn Fn(Slot) -> SysResult<()>;

/// Caches over the live trees of both sides.
pub(super) struct StatCaches<'a>(Vec<(&'a Engine, StatCache<'a>)>);

impl<'a> StatCaches<'a> {
    pub(super) fn new(engines: impl IntoIterator<Item = &'a Engine>) -> StatCaches<'a> {
        let eye = |engine: &'a Engine| (engine, StatCache::new(&engine.live));
        StatCaches(engines.into_iter().map(eye).collect())
    }

    pub(super) fn of(kin: BranchPair<'a>) -> StatCaches<'a> {
        StatCaches::new([kin.parent, &*kin.branch.engine])
    }

    fn view(&'a self, engine: &'a Engine, state: TreeState) -> View<'a> {
        let eye = self.0.iter().find(|(of, _)| std::ptr::eq(*of, engine));
        match eye {
            Some((_, glance)) => View::new(engine.timeline(), glance, state),
            None => engine.states.view(state),
        }
    }
}

/// The inputs of the merge: three states and the request.
pub(super) struct MergeInput<'a> {
    pub(super) engine: &'a Engine,
    /// The checkpoint that the branch began as, if the base is later. Directories created since are
    /// compared completely, because the names in a new directory have no records.
    origin: Option<View<'a>>,
    base: View<'a>,
    ours: View<'a>,
    theirs: View<'a>,
    /// The records of the live tree, and those of the other tree, if there is one.
    here: RecordRange<'a>,
    there: Option<RecordRange<'a>>,
    /// For each side: the base is a state of it, so its records since then cover all its changes.
    knows: [bool; 2],
    same: InodeClasses,
    labels: [String; 3],
    into: MergeInto,
    asked: &'a Merge,
    eyes: &'a StatCaches<'a>,
}

/// The records in the history of a tree after a checkpoint, up to another or until now.
#[derive(Clone, Copy)]
struct RecordRange<'a> {
    engine: &'a Engine,
    /// The state of this tree that equals the beginning of the branch.
    since: CheckpointId,
    /// Differences from the base were recorded after this checkpoint.
    after: CheckpointId,
    upto: Option<CheckpointId>,
}

impl RecordRange<'_> {
    fn touched(&self) -> SysResult<Touched> {
        self.engine.states.touched(self.after, self.upto)
    }
}

/// The result of the merge.
pub(super) struct PreparedMerge<'t> {
    outcome: MergeOutcome<'t, View<'t>>,
    three: &'t MergeInput<'t>,
    plan: RestorePlan,
    touched: HashSet<Slot>,
    /// The mtime of files with lines of both sides.
    now: Time,
    pub(super) changes: Vec<Change>,
    /// New inodes, and the inodes that each replaces.
    stands_for: HashMap<Slot, Vec<InodeBirth>>,
    /// Pairs of a created inode and the one that it corresponds to.
    made: Mutex<Vec<[InodeBirth; 2]>>,
}

/// Returns the engines of both sides, the changed one first.
fn sides<'a>(kin: BranchPair<'a>, into: MergeInto) -> [(&'a Engine, CheckpointId); 2] {
    let parent = (kin.parent, kin.branch.base);
    let branch = (&*kin.branch.engine, kin.branch.since);
    match into {
        MergeInto::Parent => [parent, branch],
        MergeInto::Branch => [branch, parent],
    }
}

impl<'a> MergeInput<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        asked: &'a Merge,
        course: &MergeKind<'a>,
        eyes: &'a StatCaches<'a>,
    ) -> VerbResult<MergeInput<'a>> {
        let view = |state| eyes.view(engine, state);
        match course {
            MergeKind::Line { base, at } => Ok(MergeInput {
                engine,
                origin: None,
                base: view(TreeState::At(*base)),
                ours: view(TreeState::Live),
                theirs: view(TreeState::At(*at)),
                here: RecordRange {
                    engine,
                    since: *base.min(at),
                    after: *base.min(at),
                    upto: None,
                },
                there: None,
                knows: [false; 2],
                same: InodeClasses::default(),
                labels: [
                    "live".to_owned(),
                    format!("checkpoint {base}"),
                    asked.what.clone(),
                ],
                into: MergeInto::Parent,
                asked,
                eyes,
            }),
            MergeKind::Kin {
                kin,
                into,
                base,
                theirs,
            } => MergeInput::between(
                (*kin, *into),
                *base,
                (TreeState::Live, *theirs),
                (asked, eyes),
            ),
        }
    }

    /// Returns the inputs for a branch and its parent in these states, the changed side first.
    pub(super) fn between(
        (kin, into): (BranchPair<'a>, MergeInto),
        base: MergeBase,
        (ours, theirs): (TreeState, TreeState),
        (asked, eyes): (&'a Merge, &'a StatCaches<'a>),
    ) -> VerbResult<MergeInput<'a>> {
        let [(here, since_here), (there, since_there)] = sides(kin, into);
        let home = if base.of_branch {
            &*kin.branch.engine
        } else {
            kin.parent
        };
        let (of_parent, of_branch) = match into {
            MergeInto::Parent => (ours, theirs),
            MergeInto::Branch => (theirs, ours),
        };
        let [parent, branch] = kin.recorded_since(base, (of_parent, of_branch))?;
        let (after_here, after_there) = match into {
            MergeInto::Parent => (parent, branch),
            MergeInto::Branch => (branch, parent),
        };
        let origin = TreeState::At(kin.branch.base);
        let theirs_are = match into {
            MergeInto::Parent => kin.branch.name.clone(),
            MergeInto::Branch => PARENT.to_owned(),
        };
        Ok(MergeInput {
            engine: here,
            origin: (!kin.is_first(base)).then(|| eyes.view(kin.parent, origin)),
            base: eyes.view(home, TreeState::At(base.checkpoint)),
            ours: eyes.view(here, ours),
            theirs: eyes.view(there, theirs),
            here: RecordRange {
                engine: here,
                since: since_here,
                after: after_here,
                upto: ours.checkpoint(),
            },
            there: Some(RecordRange {
                engine: there,
                since: since_there,
                after: after_there,
                upto: theirs.checkpoint(),
            }),
            knows: [here, there].map(|one| kin.is_first(base) || std::ptr::eq(home, one)),
            same: kin.same()?,
            labels: [
                "live".to_owned(),
                format!("checkpoint {}", base.checkpoint),
                theirs_are,
            ],
            into,
            asked,
            eyes,
        })
    }

    /// Merges along the records of both sides.
    pub(super) fn prepare(&self, await_free: AwaitFree<'_>) -> VerbResult<PreparedMerge<'_>> {
        let failed = |errno| {
            self.engine
                .checkpoints
                .failed(failure_message(self.into), errno)
        };
        self.eyes
            .0
            .iter()
            .for_each(|(_, glance)| glance.look_anew());
        let here = self.here.touched().map_err(failed)?;
        let there = self.there.map(|there| there.touched());
        let there = there.transpose().map_err(failed)?;
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
        let answers = self.answers()?;
        let outcome = self.outcome((&here, there.as_ref()), &along, &answers)?;
        let answered = outcome.answered();
        if let Some(path) = answers.keys().find(|path| !answered.contains(*path)) {
            return Err(outdated(path));
        }
        let plan = RestorePlan {
            target: self.here.since,
            whole: false,
            tree: outcome.plan().map_err(failed)?,
            times: self.times(),
            unknown: BTreeSet::new(),
            lost: HashSet::new(),
        };
        let mut merging = PreparedMerge {
            outcome,
            three: self,
            plan,
            touched: read,
            now: sys::now(),
            changes: Vec::new(),
            stands_for: HashMap::new(),
            made: Mutex::default(),
        };
        merging.stands_for = merging.made_anew().map_err(failed)?;
        merging.changes = changes(&merging.plan, &merging.outcome, &self.ours).map_err(failed)?;
        Ok(merging)
    }

    /// Merges the three states at the names that may differ.
    fn outcome(
        &self,
        (here, there): (&Touched, Option<&Touched>),
        along: &Names,
        answers: &Answers,
    ) -> VerbResult<MergeOutcome<'_, View<'_>>> {
        let failed = |errno| {
            self.engine
                .checkpoints
                .failed(failure_message(self.into), errno)
        };
        let paths = self.paths()?;
        let xattrs = [here].into_iter().chain(there);
        let xattrs: HashSet<Slot> = xattrs
            .flat_map(|touched| &touched.xattrs)
            .copied()
            .collect();
        let [ours, base, theirs] = &self.labels;
        let how = MergeOptions {
            along: Some(along),
            paths: &paths,
            policy: self.policy(),
            answers: Some(answers),
            labels: Labels { ours, base, theirs },
            since: [
                Some(self.here.since),
                Some(self.there.map_or(self.here.since, |there| there.since)),
            ],
            same: Some(&self.same),
            times: self.times() == Times::Kept,
            changed: [
                Some(&here.nodes).filter(|_| self.knows[0]),
                there.map(|there| &there.nodes).filter(|_| self.knows[1]),
            ],
            xattrs: Some(&xattrs),
        };
        let origin = self.origin.as_ref();
        let merge = || merge_since(origin, &self.base, &self.ours, &self.theirs, &how);
        let outcome = match there.filter(|_| self.is_to_come()) {
            Some(there) => threads::both("writeback", || self.write_back(there), merge)
                .map(|((), outcome)| outcome),
            None => merge(),
        };
        outcome.map_err(failed)
    }

    /// Returns whether a checkpoint is merged and this is no dry run.
    fn is_to_come(&self) -> bool {
        self.theirs.state() != TreeState::Live && !self.asked.dry_run
    }

    /// Starts the writeback of files of the other side that are cloned soon: FICLONE waits for it.
    fn write_back(&self, there: &Touched) -> SysResult<()> {
        let engine = self.there.map_or(self.engine, |there| there.engine);
        let begin = |slot: &Slot| engine.live.inodes.begin_writeback(*slot);
        there.data.iter().for_each(begin);
        Ok(())
    }

    pub(super) fn times(&self) -> Times {
        self.asked.times.unwrap_or(Times::Now)
    }

    fn policy(&self) -> ConflictPolicy<'_> {
        match self.asked.policy {
            None => ConflictPolicy::Name,
            Some(MergePolicy::Ours) => ConflictPolicy::Ours,
            Some(MergePolicy::Theirs) => ConflictPolicy::Theirs,
            Some(MergePolicy::Markers) => ConflictPolicy::Markers,
            Some(MergePolicy::KeepBoth) => {
                let [_, _, theirs] = &self.labels;
                ConflictPolicy::KeepBoth(theirs.as_bytes())
            }
        }
    }

    /// Returns the merged content that the request contains.
    fn answers(&self) -> VerbResult<Answers> {
        let hash = |text: &String| {
            blake3::Hash::from_hex(text)
                .map_err(|_| error::error(Code::Protocol, "an answer is of no hash"))
        };
        let answer = |answer: &MergeAnswer| {
            let [base, ours, theirs] = &answer.of;
            let of = [hash(base)?, hash(ours)?, hash(theirs)?];
            let text = answer.content.0.clone();
            Ok((answer.path.0.clone(), Resolution { of, text }))
        };
        self.asked.answers.iter().map(answer).collect()
    }

    /// Normalizes paths (`.`, doubled slashes) and checks that each exists in one of the three
    /// states. Returns an empty list for the root, which means everything.
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
            let own = self.engine.serving.is_reserved(NodeId(Slot::ROOT.0), first);
            let views = [&self.base, &self.ours, &self.theirs];
            if own || names.contains(&b"..".as_slice()) || !views.into_iter().any(is_there) {
                return Err(error::unknown_path(&path.0, self.here.since));
            }
            cleaned.push(clean);
        }
        Ok(cleaned)
    }
}

impl PreparedMerge<'_> {
    /// Returns the versions of files with unresolved content conflicts after path `after`, in path
    /// order, until their size reaches `bytes_max`.
    pub(super) fn versions(
        &self,
        after: Option<&TreePath>,
        bytes_max: usize,
    ) -> SysResult<Vec<MergeVersion>> {
        let (mut all, mut bytes) = (Vec::new(), 0_usize);
        for conflict in self.outcome.conflicts() {
            let is_behind = after.is_none_or(|after| conflict.path > after.0);
            if conflict.clash != ClashKind::Content || conflict.settled || !is_behind {
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

    /// Returns the inodes to create, and those that each replaces. Queried before anything changes.
    fn made_anew(&self) -> SysResult<HashMap<Slot, Vec<InodeBirth>>> {
        let mut anew = HashMap::new();
        if self.three.there.is_none() {
            return Ok(anew);
        }
        let plan = &self.plan.tree;
        let files = plan.wanted().filter_map(|(_, _, child, _, _)| {
            let is_new = matches!(
                plan.contents.get(&child.slot),
                Some(InodeAction::New) | None
            );
            (is_new && child.kind != Kind::Dir).then_some(child.slot)
        });
        let dirs = plan.dirs.iter().filter(|dir| dir.live.is_none());
        for slot in files.chain(dirs.map(|dir| dir.want.slot)) {
            anew.insert(slot, self.outcome.stands_for(slot)?);
        }
        Ok(anew)
    }

    /// Returns pairs of a created inode and one that it corresponds to.
    pub(super) fn pairs(&self) -> Vec<[InodeBirth; 2]> {
        self.made.lock().clone()
    }

    pub(super) fn clashes(&self) -> &[Conflict] {
        self.outcome.conflicts()
    }

    pub(super) fn conflicts(&self) -> Vec<MergeConflict> {
        let asked = self.three.asked;
        let marks = asked.policy == Some(MergePolicy::Markers);
        let answered = |path: &TreePath| asked.answers.iter().any(|answer| answer.path == *path);
        let mut conflicts: Vec<MergeConflict> = self.clashes().iter().map(told).collect();
        for conflict in conflicts.iter_mut().filter(|_| marks) {
            conflict.marked = conflict.settled && !answered(&conflict.path);
        }
        conflicts
    }

    /// Rejects a merge that would change append-only or immutable files, unless it is refused
    /// anyway.
    ///
    /// # Errors
    /// As [`Restorer::refuse_protected`].
    pub(super) fn refuse_protected(self) -> VerbResult<Self> {
        if !self.is_refused() {
            let (three, plan) = (self.three, &self.plan);
            Restorer::new(three.engine)
                .refuse_protected(failure_message(three.into), (plan, &self, &three.ours))?;
        }
        Ok(self)
    }

    /// Returns whether a conflict is unresolved.
    pub(super) fn is_refused(&self) -> bool {
        self.outcome
            .conflicts()
            .iter()
            .any(|conflict| !conflict.settled)
    }

    /// Creates an unlinked file with these bytes.
    fn file_of(&self, slot: Slot, bytes: &[u8]) -> SysResult<std::fs::File> {
        let staging = &**self.three.engine.live.staging();
        let name = format!("{STAGED_PREFIX}text-{}", slot.0).into_bytes();
        let make = || sys::create_file_at(staging, &name, Access::READ_WRITE, 0o600);
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

impl PreparedOp for PreparedMerge<'_> {
    fn plan(&self) -> &RestorePlan {
        &self.plan
    }

    fn want(&self) -> &dyn DesiredInodes {
        self
    }

    fn touched(&self) -> &HashSet<Slot> {
        &self.touched
    }

    fn is_given_up(&self) -> bool {
        self.is_refused()
    }

    /// A file may contain lines of the live tree.
    fn is_fixed(&self) -> bool {
        false
    }
}

impl DesiredInodes for PreparedMerge<'_> {
    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        let mut attr = self.outcome.attr(node)?;
        if let MergedContent::Text(_) = self.outcome.source(node) {
            attr.stat.mtime = self.now;
        }
        Ok(attr)
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        self.outcome.xattrs(node)
    }

    fn open(&self, node: &Arc<Trail>, frozen: bool) -> SysResult<Option<DesiredContent>> {
        match self.outcome.source(node) {
            MergedContent::Text(bytes) => Ok(Some(DesiredContent {
                file: Some(self.file_of(node.slot, bytes)?),
                still: true,
            })),
            MergedContent::Ours(way) => DesiredInodes::open(&self.three.ours, &way, frozen),
            MergedContent::Theirs(way) => {
                let (from, file) = self.three.theirs.open(&way)?;
                let still = from != Held::Live;
                // The live tree is frozen, but the branch is not.
                let waits = !still && self.three.there.is_none() && !frozen;
                Ok((!waits).then_some(DesiredContent { file, still }))
            }
        }
    }

    fn made(&self, wanted: Slot, born: &dyn Fn() -> SysResult<InodeBirth>) -> SysResult<()> {
        let Some(stands_for) = self.stands_for.get(&wanted) else {
            return Ok(());
        };
        let born = born()?;
        let pairs = stands_for.iter().map(|other| [born, *other]);
        self.made.lock().extend(pairs);
        Ok(())
    }

    fn was_so(&self, node: &Arc<Trail>, opened: &DesiredContent) -> SysResult<bool> {
        match self.outcome.source(node) {
            MergedContent::Theirs(way) if !opened.still => {
                self.three.theirs.still_live(&way, opened.file.as_ref())
            }
            _ => Ok(true),
        }
    }

    fn here(&self, node: &Arc<Trail>) -> Arc<Trail> {
        self.outcome.here(node)
    }
}
