//! Dropping a branch, and bringing it back: renames, whatever is in it.

use super::list::changes;
use super::open::{mount, open_branch, open_dir};
use super::verbs::{BranchInfo, DropBranch, DroppedBranch};
use super::{Ending, internal, no_branch, registry_failed};
use crate::engine::api::{TreePath, VerbResult};
use crate::engine::error::{Code, hinted};
use crate::engine::word::word;
use crate::engine::{Engine, Keep};
use crate::store::StoreError;
use crate::store::layout::Layout;
use crate::store::layout::branches::{BranchEntry, branches_of, parent_and_name};
use crate::sys::Errno;

/// Paths that are told of a branch that is dropped.
const TOLD_MAX: usize = 20;

pub(super) fn drop_branch(engine: &Engine, asked: &DropBranch) -> VerbResult<DroppedBranch> {
    let DropBranch {
        name,
        force,
        dry_run,
    } = asked;
    let _claim = engine.branches.claim(name)?;
    let entry = engine.registered(name)?;
    let open = engine.branches.get(name).ok();
    let mut changed: Vec<TreePath> = Vec::new();
    let mut info = BranchInfo {
        mounted: open.is_some(),
        ..BranchInfo::of(&entry)
    };
    if let Some(branch) = &open {
        let all = changes(branch)?;
        info.changed = Some(all.len() as u64);
        changed.extend(all.into_iter().map(|change| change.path).take(TOLD_MAX));
        check_childless(name, &branch.engine.child_names()?)?;
    }
    let report = |branch| DroppedBranch {
        branch,
        changed,
        dry_run: *dry_run,
    };
    if *dry_run {
        return Ok(report(info));
    }
    // What is thrown away is not kept from what happens while nothing is mounted.
    if let Some(branch) = open {
        branch.engine.keep_at_end(Some(Keep::None));
    }
    if info.mounted {
        let how = if *force {
            Ending::Forced
        } else {
            Ending::Unused
        };
        engine.branches.host()?.end(name, how)?;
    }
    throw(engine, &entry)?;
    Ok(report(BranchInfo {
        mounted: false,
        dropped: true,
        ..info
    }))
}

/// Moves the directory of a branch that is not mounted into the trash. One that is not there any
/// more is only forgotten.
fn throw(engine: &Engine, entry: &BranchEntry) -> VerbResult<()> {
    let layout = &engine.timeline().store().layout;
    let root = match open_branch(engine, entry) {
        Err(error)
            if [Code::NotFound, Code::NotADirectory, Code::BadBranch].contains(&error.code) =>
        {
            return layout
                .unregister_branch(&entry.name)
                .map_err(registry_failed);
        }
        root => root?,
    };
    let (there, _) = branches_of(&root).map_err(registry_failed)?;
    let names: Vec<String> = there.entries.into_iter().map(|entry| entry.name).collect();
    check_childless(&entry.name, &names)?;
    let (parent, name) =
        parent_and_name(&entry.path).ok_or_else(|| internal("a branch is at the root"))?;
    layout
        .drop_branch(entry, open_dir(parent)?, name)
        .map_err(|cause| match cause.errno() {
            Errno::EXDEV => hinted(
                Code::OtherFilesystem,
                format!("{} cannot be moved into the trash", entry.path.display()),
                "it is on another filesystem, or in another project of a quota: move it back",
            ),
            _ => registry_failed(cause),
        })
}

fn check_childless(name: &str, children: &[String]) -> VerbResult<()> {
    let Some(first) = children.first() else {
        return Ok(());
    };
    Err(hinted(
        Code::Held,
        format!(
            "the branch {name} has branches of its own: {}",
            children.join(", ")
        ),
        format!(
            "drop these first: ckptfs branch drop {}, in {}",
            word(first),
            word(name)
        ),
    ))
}

impl Engine {
    /// The names of the branches that are registered.
    fn child_names(&self) -> VerbResult<Vec<String>> {
        let layout = &self.timeline().store().layout;
        let registered = layout.branches().map_err(registry_failed)?;
        Ok(registered
            .entries
            .into_iter()
            .map(|entry| entry.name)
            .collect())
    }
}

/// Frees all that was dropped before `before_ns`, for good: nobody brings it back.
///
/// # Errors
/// The trash cannot be read or written.
pub(in crate::engine) fn empty_trash(layout: &Layout, before_ns: i64) -> VerbResult<()> {
    let dropped = layout.dropped_branches().map_err(registry_failed)?;
    for entry in dropped.entries {
        if layout.dropped_ns(&entry) <= before_ns {
            layout.free_branch(&entry).map_err(registry_failed)?;
        }
    }
    layout.remove_gone().map_err(registry_failed)
}

pub(super) fn revive(engine: &Engine, name: &str) -> VerbResult<BranchInfo> {
    let _claim = engine.branches.claim(name)?;
    let layout = &engine.timeline().store().layout;
    let dropped = layout.dropped_branches().map_err(registry_failed)?.entries;
    let known: Vec<String> = dropped.iter().map(|entry| entry.name.clone()).collect();
    let last = dropped
        .into_iter()
        .filter(|entry| entry.name == name)
        .max_by_key(|entry| entry.made_ns);
    let entry = last.ok_or_else(|| no_branch(name, &known))?;
    if layout.branch(name).map_err(registry_failed)?.is_some() {
        return Err(hinted(
            Code::BranchExists,
            format!("there is another branch {name} by now"),
            format!("drop that one first: ckptfs branch drop {}", word(name)),
        ));
    }
    let (parent, file) =
        parent_and_name(&entry.path).ok_or_else(|| internal("a branch is at the root"))?;
    layout
        .revive_branch(&entry, open_dir(parent)?, file)
        .map_err(|cause| already_there(&entry, cause))?;
    mount(engine, &entry)?;
    Ok(BranchInfo {
        mounted: true,
        ..BranchInfo::of(&entry)
    })
}

fn already_there(entry: &BranchEntry, cause: StoreError) -> crate::engine::api::VerbError {
    match cause.errno() {
        Errno::EEXIST => hinted(
            Code::NotEmpty,
            format!("there is something at {} by now", entry.path.display()),
            format!(
                "move it away first: mv {} ELSEWHERE",
                word(entry.path.display())
            ),
        ),
        _ => registry_failed(cause),
    }
}
