//! A branch as a working tree of the parent's repository, as created by `git worktree add`
//! (git-worktree(1), gitrepository-layout(5)).
//!
//! The registration is a few small files in the repository's `worktrees/NAME`, and a file `.git` in
//! the branch that leads there. The command writes them, as the user, or as the owner of `.git` if
//! the user is root. No daemon enters a repository, and git is not run, so that nothing from a
//! repository is executed.
//!
//! The entry is made first, with a lock against `git worktree prune`, because the branch must have
//! its `.git` from the beginning. When the branch exists, the entry gets HEAD and index of the
//! base. Nothing is durable on return, as in git.

mod repository;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use ckptfs_api::{Code, VerbResult};
use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind, RenameMode, Stat, SysResult};
use ckptfs_transfer::dirs::remove_tree;
use ckptfs_ui::error::{ErrorContext, hinted};
pub use repository::DOT_GIT;
use repository::{HEADS, Head, Repository, WORKTREES};

/// Limit of the names that are tried for an entry, NAME, NAME1 and so on, as in git.
const NAMES_MAX: u32 = 1000;
/// Modes as in git: the process's umask applies.
const FILE_MODE: u32 = 0o666;
const DIR_MODE: u32 = 0o777;
/// Directory in the repository for the entries of branches in the trash, which git does not read.
const DROPPED: &str = "ckptfs-dropped";
/// The file of an entry that stops `git worktree prune`, and its content while it is our lock.
const LOCK: &str = "locked";
const LOCK_TEXT: &[u8] = b"ckptfs is making this branch\n";
/// The list of files, and their attributes.
const INDEX: &[u8] = b"index";
/// Prefix of the parts of a split index (`core.splitIndex`).
const SHARED_INDEX: &[u8] = b"sharedindex.";

/// An entry for a branch that is about to be made. Removed on drop, unless
/// [`WorktreeEntry::finish`] succeeded.
#[derive(Debug)]
pub struct WorktreeEntry {
    repository: Repository,
    /// Name of the entry.
    entry_name: String,
    entry: OwnedFd,
    /// Future path of `.git` of the branch.
    link: PathBuf,
    /// Name of the branch.
    name: String,
    /// The repository is in the project's own tree, so that the view of the base contains it.
    inside: bool,
    /// Result of [`WorktreeEntry::copy_ahead`], if it was called.
    ahead: Option<SysResult<Option<Stat>>>,
    finished: bool,
}

/// State of a branch in git.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct GitState {
    /// The git branch that is checked out; `None`: HEAD is a commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Reason for a detached HEAD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// State in git of a branch that is gone.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Forgotten {
    /// Content of HEAD: `ref: refs/heads/NAME`, or a commit that may have no other reference.
    pub head: String,
    /// A user has locked the entry (`git worktree lock`): it stays registered.
    pub locked: bool,
}

/// Makes an entry in the repository of the tree at `project` for the branch `name`, which will be
/// at `branch`. `None` if the tree, or the view of the base if that exists already, has no
/// repository.
///
/// # Errors
/// `not-a-directory`, `no-permission`, `newer-format`: the branch cannot be registered, with the
/// reason; those of writing.
pub fn begin(
    project: &Path,
    view: Option<&Path>,
    branch: &Path,
    name: &str,
) -> VerbResult<Option<WorktreeEntry>> {
    let Some(repository) = repository::find(project)? else {
        return Ok(None);
    };
    if view.is_some_and(|view| std::fs::symlink_metadata(view.join(DOT_GIT)).is_err()) {
        return Ok(None);
    }
    repository.check_format()?;
    let at = repository.common.path.join(WORKTREES);
    let link = branch.join(DOT_GIT);
    let owner = repository.owner;
    let made = sys::act_as(owner, || {
        make_entry(&repository.common.dir, name, &link).on(at.display())
    });
    let (entry_name, entry) = made.on(at.display())??;
    let inside = repository.own.path == project.join(DOT_GIT)
        && repository.own.path == repository.common.path;
    Ok(Some(WorktreeEntry {
        repository,
        entry_name,
        entry,
        link,
        name: name.to_owned(),
        inside,
        ahead: None,
        finished: false,
    }))
}

fn make_entry(common: &OwnedFd, name: &str, link: &Path) -> SysResult<(String, OwnedFd)> {
    let all = open_or_make(common, WORKTREES)?;
    let name = entry_stem(name);
    let make = |name: &[u8]| sys::mkdir_at(&all, name, DIR_MODE);
    let chosen =
        String::from_utf8(first_free(name.as_bytes(), make)?).map_err(|_| Errno::EINVAL)?;
    let entry = sys::open_dir_at(&all, chosen.as_bytes())?;
    let mut leads = link.as_os_str().as_bytes().to_vec();
    leads.push(b'\n');
    let put = put(&entry, LOCK, LOCK_TEXT)
        .and_then(|()| put(&entry, "commondir", b"../..\n"))
        .and_then(|()| put(&entry, "gitdir", &leads));
    match put {
        Ok(()) => Ok((chosen, entry)),
        Err(errno) => {
            // The first error is the one to report.
            let _ = remove_tree(&all, chosen.as_bytes());
            Err(errno)
        }
    }
}

impl WorktreeEntry {
    /// Creates the file `.git` in the directory `dir` of the future branch.
    ///
    /// # Errors
    /// `io`, for example if it exists already.
    pub fn link(self, dir: &Path) -> VerbResult<WorktreeEntry> {
        let (uid, gid) = self.repository.owner;
        let on = dir.join(DOT_GIT);
        let made = sys::open_root(dir).and_then(|dir| {
            let mut file = sys::create_file_at(&dir, DOT_GIT.as_bytes(), Access::WRITE, FILE_MODE)?;
            file.write_all(&self.dot_git())?;
            if sys::ids().0 == uid {
                return Ok(());
            }
            sys::set_file_owner(&file, uid, gid)
        });
        made.on(on.display()).map(|()| self)
    }

    /// Copies the present index while the branch is made. Nearly always it is that of the base,
    /// which [`WorktreeEntry::finish`] checks.
    pub fn copy_ahead(&mut self) {
        let Repository { own, owner, .. } = &self.repository;
        let copied = sys::act_as(*owner, || copy(&own.dir, INDEX, &self.entry));
        self.ahead = Some(copied.and_then(|copied| copied));
    }

    /// Returns the content of the file `.git` of the branch.
    pub fn dot_git(&self) -> Vec<u8> {
        let entry = self
            .repository
            .common
            .path
            .join(WORKTREES)
            .join(&self.entry_name);
        link_text(&entry)
    }

    /// Completes the entry of an existing branch, of which `view` shows the base: writes HEAD and
    /// index of the base, and creates the git branch if missing.
    ///
    /// # Errors
    /// Those of reading and writing; the entry is then gone. `busy`: the repository has no commit
    /// yet, and the name is taken.
    pub fn finish(mut self, view: &Path) -> VerbResult<GitState> {
        let at = self.repository.common.path.clone();
        let attached = sys::act_as(self.repository.owner, || self.fill(view)).on(at.display())??;
        self.finished = true;
        Ok(attached)
    }

    fn fill(&self, view: &Path) -> VerbResult<GitState> {
        let Repository { own, common, .. } = &self.repository;
        let shown = self
            .inside
            .then(|| sys::open_root(&view.join(DOT_GIT)))
            .transpose()
            .on(view.join(DOT_GIT).display())?;
        let source = shown.as_ref().unwrap_or(&own.dir);
        let references = shown.as_ref().unwrap_or(&common.dir);
        let head = repository::head(source, references).on(own.path.join("HEAD").display())?;
        self.forget_older()?;
        let attached = self.choose(&head)?;
        let text = match (&attached.branch, &head) {
            (None, Head::At(commit)) => format!("{commit}\n").into_bytes(),
            _ => repository::head_of(&format!("{HEADS}{}", self.name)),
        };
        let on = |name: &str| self.link.with_file_name(name).display().to_string();
        put(&self.entry, "HEAD", &text).on(on("HEAD"))?;
        self.copy_index(source)
            .on(own.path.join("index").display())?;
        if let Some(settings) = self.repository.own_settings()? {
            put(&self.entry, "config.worktree", &settings).on(on("config.worktree"))?;
        }
        sys::unlink_at(&self.entry, LOCK.as_bytes()).on(on(LOCK))?;
        Ok(attached)
    }

    /// Removes the entries of an older branch at the same path.
    fn forget_older(&self) -> VerbResult<()> {
        let all = sys::open_dir_at(&self.repository.common.dir, WORKTREES.as_bytes());
        let all = all.on(self.repository.common.path.display())?;
        let stem = entry_stem(&self.name);
        for (name, entry) in self.repository.entries(WORKTREES, &stem)? {
            if !name.starts_with(stem.as_bytes()) {
                break;
            }
            if name != self.entry_name.as_bytes() && leads_to(&entry, &self.link) {
                // Otherwise it would only be listed twice.
                let _ = remove_tree(&all, &name);
            }
        }
        Ok(())
    }

    /// Returns the git branch to check out, created if missing.
    fn choose(&self, head: &Head) -> VerbResult<GitState> {
        let common = &self.repository.common;
        let full = format!("{HEADS}{}", self.name);
        let there = match is_branch_name(&self.name) {
            true => self.repository.commit_of(&full)?,
            false => None,
        };
        let taken = self.repository.is_checked_out(&full, there.is_some())?;
        let detached = |why: &str| {
            Ok(GitState {
                branch: None,
                note: Some(format!(
                    "the branch has a detached HEAD: the git branch `{}` {why}",
                    self.name
                )),
            })
        };
        let attached = Ok(GitState {
            branch: Some(self.name.clone()),
            note: None,
        });
        match (head, there) {
            (Head::At(_), _) if !is_branch_name(&self.name) => {
                detached("would not have a valid name")
            }
            (Head::Unborn, None) if !taken && is_branch_name(&self.name) => attached,
            (Head::Unborn, _) => Err(hinted(
                Code::Busy,
                format!(
                    "the branch is not set up in git: there is no commit yet, and `{}` cannot be the name of a new git branch",
                    self.name
                ),
                "make a commit first, or choose another name",
            )),
            (Head::At(_), _) if taken => detached("is checked out elsewhere"),
            (Head::At(commit), Some(there)) if *commit == there => attached,
            (Head::At(_), Some(_)) => detached("already exists, with other commits"),
            (Head::At(commit), None) => {
                let on = common.path.join(&full);
                if repository::is_in_the_way(&common.dir, &full).on(on.display())? {
                    return detached("has branches below it");
                }
                make_reference(&common.dir, &self.name, commit).on(on.display())?;
                attached
            }
        }
    }

    /// Copies the index of the base, which is valid for every file, because inode numbers and times
    /// are equal.
    fn copy_index(&self, source: &OwnedFd) -> SysResult<()> {
        let there = sys::stat_at(source, INDEX).ok();
        let is_it = |copied: &Stat| {
            let of = |stat: &Stat| (stat.size, stat.mtime, stat.ctime);
            there.as_ref().is_some_and(|there| of(there) == of(copied))
        };
        match &self.ahead {
            Some(Ok(Some(copied))) if is_it(copied) => {}
            ahead => {
                if ahead.is_some() {
                    remove(&self.entry, INDEX)?;
                }
                copy(source, INDEX, &self.entry)?;
            }
        }
        for found in sys::list_dir(source)? {
            if found.name.starts_with(SHARED_INDEX) {
                copy(source, &found.name, &self.entry)?;
            }
        }
        // The paths that the working tree contains.
        if let Ok(info) = sys::open_dir_at(source, b"info")
            && sys::stat_at(&info, b"sparse-checkout").is_ok()
        {
            sys::mkdir_at(&self.entry, b"info", DIR_MODE)?;
            copy(
                &info,
                b"sparse-checkout",
                &sys::open_dir_at(&self.entry, b"info")?,
            )?;
        }
        Ok(())
    }
}

impl Drop for WorktreeEntry {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // An entry that stays is removed when a branch is made at the same path again.
        let _ = sys::act_as(self.repository.owner, || {
            let all = sys::open_dir_at(&self.repository.common.dir, WORKTREES.as_bytes())?;
            remove_tree(&all, self.entry_name.as_bytes())
        });
    }
}

/// Hides the entry of the branch `name`, which was at `branch`, in the repository of the tree at
/// `project`; to git it is as after `git worktree prune`. No git branch is removed. [`recall`]
/// brings it back while the branch is in the trash. Hidden entries of branches that are not at a
/// path of `trash`, which is called if there are any, are freed. `None`: the repository had no
/// entry.
///
/// # Errors
/// Those of reading and writing, and of `trash`.
pub fn forget(
    project: &Path,
    branch: &Path,
    name: &str,
    trash: impl FnOnce() -> VerbResult<Vec<PathBuf>>,
) -> VerbResult<Option<Forgotten>> {
    let Some(repository) = repository::find(project)? else {
        return Ok(None);
    };
    let (link, common) = (branch.join(DOT_GIT), &repository.common);
    let at = common.path.join(WORKTREES);
    let mut entries = repository.entries(WORKTREES, &entry_stem(name))?;
    let Some((name, entry)) = entries.find(|(_, entry)| leads_to(entry, &link)) else {
        return Ok(None);
    };
    let head = repository::head_text(&entry).unwrap_or_default();
    let lock = repository::line(&entry, LOCK).on(at.display())?;
    let locked = lock.is_some_and(|text| text != LOCK_TEXT.trim_ascii_end());
    let dropped = repository.names(DROPPED)?;
    let freed = match dropped.is_empty() {
        true => Vec::new(),
        false => no_more_in(&repository, &trash()?)?,
    };
    sys::act_as(repository.owner, || {
        let there = open_or_make(&common.dir, DROPPED)?;
        for old in &freed {
            remove_tree(&there, old)?;
        }
        if locked {
            return Ok(());
        }
        let last = dropped.iter().filter_map(|name| number(name)).max();
        let mut new = format!("{}-", last.unwrap_or(0).saturating_add(1)).into_bytes();
        new.extend_from_slice(&name);
        let from = sys::open_dir_at(&common.dir, WORKTREES.as_bytes())?;
        sys::rename_at(&from, &name, &there, &new, RenameMode::NoReplace)
    })
    .and_then(|moved| moved)
    .on(at.display())?;
    Ok(Some(Forgotten { head, locked }))
}

/// Returns the hidden entries of branches that were not at a path of `trash`.
fn no_more_in(repository: &Repository, trash: &[PathBuf]) -> VerbResult<Vec<Vec<u8>>> {
    let kept = |entry: &OwnedFd| {
        trash
            .iter()
            .any(|path| leads_to(entry, &path.join(DOT_GIT)))
    };
    let dropped = repository.entries(DROPPED, "")?;
    Ok(dropped
        .filter(|(_, entry)| !kept(entry))
        .map(|(name, _)| name)
        .collect())
}

/// Restores the entry that [`forget`] hid last in the repository of the tree at `project`, of a
/// branch that is at `branch` again, and mounted; returns whether one existed.
///
/// # Errors
/// Those of reading and writing.
pub fn recall(project: &Path, branch: &Path) -> VerbResult<bool> {
    let Some(repository) = repository::find(project)? else {
        return Ok(false);
    };
    let (link, common) = (branch.join(DOT_GIT), &repository.common);
    let last = repository
        .entries(DROPPED, "")?
        .filter(|(_, entry)| leads_to(entry, &link))
        .max_by_key(|(name, _)| number(name));
    let Some((old, _)) = last else {
        return Ok(false);
    };
    let name = old.splitn(2, |byte| *byte == b'-').nth(1).unwrap_or(&old);
    sys::act_as(repository.owner, || {
        let from = sys::open_dir_at(&common.dir, DROPPED.as_bytes())?;
        let to = open_or_make(&common.dir, WORKTREES)?;
        let put = |name: &[u8]| sys::rename_at(&from, &old, &to, name, RenameMode::NoReplace);
        let taken = first_free(name, put)?;
        if taken != name {
            let entry = common.path.join(WORKTREES);
            let text = link_text(&entry.join(std::ffi::OsStr::from_bytes(&taken)));
            let root = sys::open_root(branch)?;
            sys::replace_file(&root, DOT_GIT, &text)?;
        }
        Ok(true)
    })
    .and_then(|recalled: SysResult<bool>| recalled)
    .on(common.path.display())
}

/// Returns the number at the start of the name of a hidden entry: later entries have greater ones.
fn number(name: &[u8]) -> Option<u64> {
    let digits = name.split(|byte| *byte == b'-').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns the target of `.git` of the branch at `branch`, relative to the directory `dot_git`;
/// `None` if it leads elsewhere, or nowhere.
pub fn leads_below(branch: &Path, dot_git: &Path) -> Option<PathBuf> {
    let root = sys::open_root(branch).ok()?;
    let to = repository::leads(&repository::line(&root, DOT_GIT).ok()??)?;
    to.strip_prefix(dot_git).ok().map(Path::to_owned)
}

/// Returns the content of a file `.git` that leads to `entry`.
pub fn link_text(entry: &Path) -> Vec<u8> {
    let mut text = repository::LEADS_TO.as_bytes().to_vec();
    text.extend_from_slice(entry.as_os_str().as_bytes());
    text.push(b'\n');
    text
}

fn open_or_make(common: &OwnedFd, name: &str) -> SysResult<OwnedFd> {
    match sys::mkdir_at(common, name.as_bytes(), DIR_MODE) {
        Ok(()) | Err(Errno::EEXIST) => sys::open_dir_at(common, name.as_bytes()),
        Err(errno) => Err(errno),
    }
}

/// Returns the first of NAME, NAME1 and so on that is free for `put`.
fn first_free(name: &[u8], put: impl Fn(&[u8]) -> SysResult<()>) -> SysResult<Vec<u8>> {
    let mut chosen = name.to_vec();
    for number in 1..=NAMES_MAX {
        match put(&chosen) {
            Err(Errno::EEXIST | Errno::ENOTEMPTY) => {}
            put => return put.map(|()| chosen),
        }
        chosen = [name, number.to_string().as_bytes()].concat();
    }
    Err(Errno::EEXIST)
}

/// Reports whether an entry belongs to the working tree whose `.git` is at `link`.
fn leads_to(entry: &OwnedFd, link: &Path) -> bool {
    let leads = repository::line(entry, "gitdir").ok().flatten();
    leads.is_some_and(|leads| leads == link.as_os_str().as_bytes())
}

/// Returns the prefix of an entry's name for a branch: as in git, it must be a valid name of a git
/// branch.
fn entry_stem(name: &str) -> String {
    match is_branch_name(name) {
        true => name.to_owned(),
        false => name.replace('.', "-"),
    }
}

/// Reports whether the name of a branch is valid for a git branch (git-check-ref-format(1)).
fn is_branch_name(name: &str) -> bool {
    let ends = name.ends_with('.') || name.ends_with(".lock");
    !(name.is_empty() || name == "HEAD" || name.contains("..") || ends)
}

/// Creates a new git branch, in git's order: a lock, its content, the name.
fn make_reference(common: &OwnedFd, name: &str, commit: &str) -> SysResult<()> {
    let heads = sys::open_beneath(
        common,
        HEADS.trim_end_matches('/').as_bytes(),
        OpenKind::Dir,
    )?;
    let lock = format!("{name}.lock");
    put(&heads, &lock, format!("{commit}\n").as_bytes())?;
    // A branch that another process has made since is not replaced.
    let (lock, name) = (lock.as_bytes(), name.as_bytes());
    let made = match sys::rename_at(&heads, lock, &heads, name, RenameMode::NoReplace) {
        Ok(()) => return Ok(()),
        Err(Errno::EINVAL) => sys::link_at(&heads, lock, &heads, name),
        Err(errno) => Err(errno),
    };
    made.and(sys::unlink_at(&heads, lock))
}

fn remove(dir: &OwnedFd, name: &[u8]) -> SysResult<()> {
    match sys::unlink_at(dir, name) {
        Err(Errno::ENOENT) => Ok(()),
        removed => removed,
    }
}

/// Writes a new file.
fn put(dir: impl AsFd, name: &str, bytes: &[u8]) -> SysResult<()> {
    let mut file = sys::create_file_at(dir, name.as_bytes(), Access::WRITE, FILE_MODE)?;
    Ok(file.write_all(bytes)?)
}

/// Copies a file, if it exists, with its times, because git considers files as new as its index to
/// be changed. Returns its attributes during the copy.
///
/// # Errors
/// EBUSY: it changed during the copy.
fn copy(from: impl AsFd, name: &[u8], to: impl AsFd) -> SysResult<Option<Stat>> {
    let source = match sys::open_file_at(&from, name, Access::READ) {
        Err(Errno::ENOENT) => return Ok(None),
        source => source?,
    };
    let stat = sys::stat_fd(&source)?;
    if stat.kind != Kind::File {
        return Err(Errno::EINVAL);
    }
    let copied: File = sys::create_file_at(to, name, Access::READ_WRITE, FILE_MODE)?;
    sys::copy_data(&source, &copied, stat.size)?;
    // git replaces the file by another, which does not change this one.
    let after = sys::stat_fd(&source)?;
    if (after.size, after.mtime) != (stat.size, stat.mtime) {
        return Err(Errno::EBUSY);
    }
    sys::set_file_times(&copied, stat.atime, stat.mtime)?;
    Ok(Some(stat))
}

#[cfg(test)]
mod tests;
