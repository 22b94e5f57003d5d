//! What can be asked of branches.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Brancher, create, list, open, trash};
use crate::engine::Engine;
use crate::engine::api::{Change, StateName, TreePath, VerbResult, host_path};
use crate::engine::merge::{Kin, MergeBase, changed_by};
use crate::engine::offline::Offline;
use crate::engine::requester::Requester;
use crate::engine::verb::Verb;
use crate::store::ids::CheckpointId;
use crate::store::layout::branches::BranchEntry;
use crate::store::layout::merges::MergeInto;
use crate::store::record::Reason;

/// Makes a branch and mounts it. When it is answered the branch survives `kill -9` and a power cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateBranch {
    /// What it is to be called: 1 to 64 letters, digits, `_`, `.` and `-`.
    pub name: String,
    /// The checkpoint that it begins as; absent: one that is made now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<StateName>,
    /// Its directory: absolute, without links, empty, of whoever asks.
    #[serde(with = "host_path")]
    pub path: PathBuf,
    /// But for a file `.git`: the branch begins with it in the place of what the base has there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub git: bool,
    /// Only tell whether it could be made; the directory need not be there.
    #[serde(default)]
    pub dry_run: bool,
}

/// A branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchInfo {
    /// What it is called.
    pub name: String,
    /// Where it is.
    #[serde(with = "host_path")]
    pub path: PathBuf,
    /// The checkpoint of the parent that it began as; absent: one that would be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<CheckpointId>,
    /// What it and its parent have in common, if that is not the base any more: it was updated, or
    /// merged. Known of one that is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge_base: Option<MergeBase>,
    /// The checkpoint of its own that is as the base is; absent if it is not made yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<CheckpointId>,
    /// When it was made: RFC 3339, UTC.
    pub created: String,
    /// It is mounted.
    pub mounted: bool,
    /// It was dropped, and can be brought back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dropped: bool,
    /// Paths that it has changed since, directories apart that others came to or went from; absent
    /// if it is not mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<u64>,
    /// Paths that a merge of it would change here, or that clash: what it has done and nobody has
    /// merged. Absent if that was not asked for, or is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmerged: Option<u64>,
    /// Bytes that its own files and its history take, as du(1) counts them: what it shares with its
    /// parent counts too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Why it is not as it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// It was only asked whether it could be made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

impl BranchInfo {
    pub(super) fn of(entry: &BranchEntry) -> BranchInfo {
        let created = jiff::Timestamp::from_nanosecond(i128::from(entry.made_ns))
            .map(|time| time.to_string())
            .unwrap_or_default();
        BranchInfo {
            name: entry.name.clone(),
            path: entry.path.clone(),
            base: Some(entry.base),
            merge_base: None,
            since: entry.made.then_some(entry.since),
            created,
            mounted: false,
            dropped: false,
            changed: None,
            unmerged: None,
            bytes: None,
            trouble: None,
            dry_run: false,
        }
    }
}

impl Verb for CreateBranch {
    type Answer = BranchInfo;

    fn only_asks(&self) -> bool {
        self.dry_run
    }

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<BranchInfo> {
        let created = create::create(engine, requester, &self, Reason::Asked);
        engine.snapdir.snapdir_changed();
        created
    }
}

/// Every branch, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListBranches {
    /// Those in the trash, and no others.
    #[serde(default)]
    pub dropped: bool,
    /// Count what each has changed, and what it takes.
    #[serde(default)]
    pub counted: bool,
    /// Tell how many paths of each nobody has merged.
    #[serde(default)]
    pub unmerged: bool,
}

impl Verb for ListBranches {
    type Answer = Vec<BranchInfo>;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<BranchInfo>> {
        list::list(engine, &self)
    }

    fn read(self, store: &Offline) -> VerbResult<Vec<BranchInfo>> {
        list::list_offline(store.root(), self.dropped)
    }
}

/// What a branch has changed since it and its parent were one, sorted by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffBranch {
    /// Which.
    pub name: String,
}

impl Verb for DiffBranch {
    type Answer = Vec<Change>;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<Change>> {
        let branch = Brancher::new(engine).mounted(&self.name)?;
        let kin = Kin {
            parent: engine,
            branch: &branch,
        };
        changed_by(kin, MergeInto::Branch)
    }
}

/// Mounts a branch whose mount has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountBranch {
    /// Which.
    pub name: String,
}

impl Verb for MountBranch {
    type Answer = BranchInfo;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<BranchInfo> {
        let _claim = engine.branches.claim(&self.name)?;
        let entry = Brancher::new(engine).registered(&self.name)?;
        open::mount(engine, &entry)?;
        Ok(BranchInfo {
            mounted: true,
            ..BranchInfo::of(&entry)
        })
    }
}

/// Unmounts a branch and moves it to the trash, from where it can be brought back until `gc`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropBranch {
    /// Which.
    pub name: String,
    /// Although somebody has something of it open.
    #[serde(default)]
    pub force: bool,
    /// Only tell what would go.
    #[serde(default)]
    pub dry_run: bool,
}

/// What went with a branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedBranch {
    /// The branch.
    pub branch: BranchInfo,
    /// The first of the paths that it had changed.
    pub changed: Vec<TreePath>,
    /// The first of the paths that a merge would have brought: what it had done and nobody had
    /// merged.
    #[serde(default)]
    pub unmerged: Vec<TreePath>,
    /// It was only asked.
    pub dry_run: bool,
}

impl Verb for DropBranch {
    type Answer = DroppedBranch;

    fn only_asks(&self) -> bool {
        self.dry_run
    }

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<DroppedBranch> {
        trash::drop_branch(engine, requester.by(), &self)
    }
}

/// Frees branches of this name that were dropped, for good: none comes back, their bases are held no
/// more, and their files are removed when this returns. None is as good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeBranch {
    /// Which.
    pub name: String,
}

impl Verb for FreeBranch {
    type Answer = ();

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<()> {
        trash::free(engine, &self.name)
    }
}

/// Brings a dropped branch back to where it was, and mounts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReviveBranch {
    /// Which: of several of that name the one that was made last.
    pub name: String,
}

impl Verb for ReviveBranch {
    type Answer = BranchInfo;

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<BranchInfo> {
        trash::revive(engine, requester.by(), &self.name)
    }
}
