//! A branch as a working tree of the parent's repository, as `git worktree add` would make it
//! (git-worktree(1), gitrepository-layout(5)).
//!
//! What git has to know is a handful of small files in the repository's `worktrees/NAME`, and a file
//! `.git` in the branch that leads there. They are written by the command, as the user, or as the
//! owner of `.git` if the user is root: no daemon goes into a repository, and git is not run, so
//! that nothing a repository says is executed.
//!
//! The entry comes first, with a lock that keeps `git worktree prune` away, because the branch is
//! to have its `.git` from the beginning; when the branch is there the entry gets what the base
//! had: HEAD and index. Nothing is durable when this returns: as git has it.

mod repository;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::super::error::{On, hinted};
use crate::engine::api::{Code, VerbResult};
use crate::sys::{self, Errno, Kind, Open, OpenKind, RenameMode, Stat, SysResult};
use crate::transfer::place::remove_tree;
pub use repository::DOT_GIT;
use repository::{HEADS, Head, Repository, WORKTREES};

/// Entries of the same name that are tried, NAME, NAME1 and so on, as git does it.
const NAMES_MAX: u32 = 1000;
/// As git makes files: the process's umask decides.
const FILE_MODE: u32 = 0o666;
const DIR_MODE: u32 = 0o777;
/// Where what is known of branches in the trash is kept, in the repository: git does not look there.
const DROPPED: &str = "ckptfs-dropped";
/// A file of an entry that keeps `git worktree prune` away, and what it says while it is ours.
const LOCK: &str = "locked";
const LOCK_TEXT: &[u8] = b"ckptfs is making this branch\n";
/// Which files there are, and what they were.
const INDEX: &[u8] = b"index";
/// The parts of an index that is split (`core.splitIndex`) begin so.
const SHARED_INDEX: &[u8] = b"sharedindex.";

/// An entry for a branch that is about to be made. Dropped, it is taken away again.
#[derive(Debug)]
pub struct Begun {
    repository: Repository,
    /// The name of the entry.
    entry_name: String,
    entry: OwnedFd,
    /// `.git` of the branch, where it will be.
    link: PathBuf,
    /// The name of the branch.
    name: String,
    /// The repository is in the project's own tree, so that the view of the base has it too.
    inside: bool,
    /// What became of [`Begun::copy_ahead`], if that was called.
    ahead: Option<SysResult<Option<Stat>>>,
    finished: bool,
}

/// What git knows of a branch.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Attached {
    /// The branch of git's that is checked out in it; none: HEAD is a commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Why it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What git knew of a branch that is gone.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Forgotten {
    /// What HEAD said: `ref: refs/heads/NAME`, or a commit that perhaps nothing else leads to.
    pub head: String,
    /// Somebody has locked it (`git worktree lock`): git still knows it.
    pub locked: bool,
}

/// Makes an entry in the repository of the tree that is seen at `project` for the branch `name`,
/// which will be seen at `branch`. `None` where the tree, or the view of the base if that is there
/// already, has no repository.
///
/// # Errors
/// `not-a-directory`, `no-permission`, `newer-format`: git cannot be told of it, with the reason;
/// those of writing.
pub fn begin(
    project: &Path,
    view: Option<&Path>,
    branch: &Path,
    name: &str,
) -> VerbResult<Option<Begun>> {
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
    Ok(Some(Begun {
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
            // What went wrong first is what the caller must know.
            let _ = remove_tree(&all, chosen.as_bytes());
            Err(errno)
        }
    }
}

impl Begun {
    /// Makes the file `.git` in the directory at `dir`, where the branch is to be.
    ///
    /// # Errors
    /// `io`: there is one already, among others.
    pub fn link(self, dir: &Path) -> VerbResult<Begun> {
        let (uid, gid) = self.repository.owner;
        let on = dir.join(DOT_GIT);
        let made = sys::open_root(dir).and_then(|dir| {
            let mut file = sys::create_file_at(&dir, DOT_GIT.as_bytes(), Open::WRITE, FILE_MODE)?;
            file.write_all(&self.dot_git())?;
            if sys::ids().0 == uid {
                return Ok(());
            }
            sys::set_file_owner(&file, uid, gid)
        });
        made.on(on.display()).map(|()| self)
    }

    /// Copies the index as it is now, while the branch is being made: nearly always it is that of
    /// the base, which [`Begun::finish`] looks at.
    pub fn copy_ahead(&mut self) {
        let Repository { own, owner, .. } = &self.repository;
        let copied = sys::act_as(*owner, || copy(&own.dir, INDEX, &self.entry));
        self.ahead = Some(copied.and_then(|copied| copied));
    }

    /// What the file `.git` of the branch has to say.
    pub fn dot_git(&self) -> Vec<u8> {
        let entry = self
            .repository
            .common
            .path
            .join(WORKTREES)
            .join(&self.entry_name);
        link_text(&entry)
    }

    /// The branch is there, and `view` shows its base: gives the entry HEAD and index of the base,
    /// and makes the branch of git's if there is none of this name.
    ///
    /// # Errors
    /// Those of reading and writing; the entry is gone then. `busy`: there is no commit yet, and
    /// the name is taken.
    pub fn finish(mut self, view: &Path) -> VerbResult<Attached> {
        let at = self.repository.common.path.clone();
        let attached = sys::act_as(self.repository.owner, || self.fill(view)).on(at.display())??;
        self.finished = true;
        Ok(attached)
    }

    fn fill(&self, view: &Path) -> VerbResult<Attached> {
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

    /// Takes away what an older branch in the same place has left.
    fn forget_older(&self) -> VerbResult<()> {
        let all = sys::open_dir_at(&self.repository.common.dir, WORKTREES.as_bytes());
        let all = all.on(self.repository.common.path.display())?;
        let stem = entry_stem(&self.name);
        for (name, entry) in self.repository.entries(WORKTREES, &stem)? {
            if !name.starts_with(stem.as_bytes()) {
                break;
            }
            if name != self.entry_name.as_bytes() && leads_to(&entry, &self.link) {
                // It would only be listed twice.
                let _ = remove_tree(&all, &name);
            }
        }
        Ok(())
    }

    /// The branch of git's that is to be checked out, made if it is not there.
    fn choose(&self, head: &Head) -> VerbResult<Attached> {
        let common = &self.repository.common;
        let full = format!("{HEADS}{}", self.name);
        let there = match is_branch_name(&self.name) {
            true => self.repository.commit_of(&full)?,
            false => None,
        };
        let taken = self.repository.is_checked_out(&full, there.is_some())?;
        let detached = |why: &str| {
            Ok(Attached {
                branch: None,
                note: Some(format!(
                    "the branch has a detached HEAD: the git branch `{}` {why}",
                    self.name
                )),
            })
        };
        let attached = Ok(Attached {
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

    /// The index as the base had it, which knows every file: they have the same numbers and times.
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
        // Which paths are in the working tree at all.
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

impl Drop for Begun {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // What stays is removed when a branch is made in the same place again.
        let _ = sys::act_as(self.repository.owner, || {
            let all = sys::open_dir_at(&self.repository.common.dir, WORKTREES.as_bytes())?;
            remove_tree(&all, self.entry_name.as_bytes())
        });
    }
}

/// Takes what the repository of the tree at `project` knows of the branch `name`, which was at
/// `branch`, out
/// of its sight, as `git worktree prune` would; no branch of git's goes. [`recall`] brings it back
/// as long as the branch is in the trash: of those that were not where `trash` says, which is asked
/// if something is kept, nothing is. `None` where it knew nothing.
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

/// What is kept of branches that were not at `trash`.
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

/// Gives the repository of the tree at `project` back what [`forget`] took out of its sight last of
/// a branch that is at `branch` again, and is mounted; whether there was something.
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

/// The number that what is dropped begins with: what was dropped later has a greater one.
fn number(name: &[u8]) -> Option<u64> {
    let digits = name.split(|byte| *byte == b'-').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Where `.git` of the branch at `branch` leads to below the directory `dot_git`; `None` where it
/// leads elsewhere, or nowhere.
pub fn leads_below(branch: &Path, dot_git: &Path) -> Option<PathBuf> {
    let root = sys::open_root(branch).ok()?;
    let to = repository::leads(&repository::line(&root, DOT_GIT).ok()??)?;
    to.strip_prefix(dot_git).ok().map(Path::to_owned)
}

/// What a file `.git` says that leads to `entry`.
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

/// The first of NAME, NAME1 and so on that `put` does not find taken.
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

/// Whether an entry is of the working tree whose `.git` is at `link`.
fn leads_to(entry: &OwnedFd, link: &Path) -> bool {
    let leads = repository::line(entry, "gitdir").ok().flatten();
    leads.is_some_and(|leads| leads == link.as_os_str().as_bytes())
}

/// What the name of an entry begins with, for a branch: as git has it, an entry has a name that a
/// branch of git's may have.
fn entry_stem(name: &str) -> String {
    match is_branch_name(name) {
        true => name.to_owned(),
        false => name.replace('.', "-"),
    }
}

/// Whether git takes it for a branch (git-check-ref-format(1)), of what may be a branch of ours.
fn is_branch_name(name: &str) -> bool {
    let ends = name.ends_with('.') || name.ends_with(".lock");
    !(name.is_empty() || name == "HEAD" || name.contains("..") || ends)
}

/// Makes a branch of git's that is not there, in git's order: a lock, what it says, the name.
fn make_reference(common: &OwnedFd, name: &str, commit: &str) -> SysResult<()> {
    let heads = sys::open_beneath(
        common,
        HEADS.trim_end_matches('/').as_bytes(),
        OpenKind::Dir,
    )?;
    let lock = format!("{name}.lock");
    put(&heads, &lock, format!("{commit}\n").as_bytes())?;
    // What another process has made meanwhile is not replaced.
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

/// A new file.
fn put(dir: impl AsFd, name: &str, bytes: &[u8]) -> SysResult<()> {
    let mut file = sys::create_file_at(dir, name.as_bytes(), Open::WRITE, FILE_MODE)?;
    Ok(file.write_all(bytes)?)
}

/// A copy of a file, if it is there, with its time: git takes what is as new as its index for
/// changed since. Gives what it was while it was copied.
///
/// # Errors
/// EBUSY: it has changed meanwhile.
fn copy(from: impl AsFd, name: &[u8], to: impl AsFd) -> SysResult<Option<Stat>> {
    let source = match sys::open_file_at(&from, name, Open::READ) {
        Err(Errno::ENOENT) => return Ok(None),
        source => source?,
    };
    let stat = sys::stat_fd(&source)?;
    if stat.kind != Kind::File {
        return Err(Errno::EINVAL);
    }
    let copied: File = sys::create_file_at(to, name, Open::READ_WRITE, FILE_MODE)?;
    sys::copy_data(&source, &copied, stat.size)?;
    // Git puts another file in its place, which changes nothing of this one.
    let after = sys::stat_fd(&source)?;
    if (after.size, after.mtime) != (stat.size, stat.mtime) {
        return Err(Errno::EBUSY);
    }
    sys::set_file_times(&copied, stat.atime, stat.mtime)?;
    Ok(Some(stat))
}

#[cfg(test)]
mod tests;
