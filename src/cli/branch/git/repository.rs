//! A repository of git on disk (gitrepository-layout(5)), read without running git: nothing in a
//! repository is executed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use ckptfs_api::{Code, VerbError, VerbResult};
use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind, Stat, SysResult, host};
use ckptfs_ui::error::{ErrorContext, hinted};
use ckptfs_ui::tree_path::normal;

/// Name in the root of a working tree of the repository, or of a file that leads to it.
pub const DOT_GIT: &str = ".git";
/// Prefix of the content of a file that leads to a repository.
pub const LEADS_TO: &str = "gitdir: ";
/// Prefix of the names of branches.
pub const HEADS: &str = "refs/heads/";
/// Prefix of a symbolic reference.
const REF: &str = "ref: ";
/// Limit of a file with one line, in bytes.
const LINE_LEN_MAX: u64 = 8 << 10;
/// Limit of a configuration, in bytes.
const CONFIG_LEN_MAX: u64 = 4 << 20;
/// Limit of the file of packed references, in bytes: some millions of references.
const PACKED_LEN_MAX: u64 = 256 << 20;
/// Limit of symbolic references that lead to each other (`SYMREF_MAXDEPTH` in git's refs.h).
const SYMREF_DEPTH_MAX: usize = 5;
/// Supported extensions of the format.
const EXTENSIONS: [&str; 8] = [
    "noop",
    "noop-v1",
    "partialclone",
    "preciousobjects",
    "objectformat",
    "compatobjectformat",
    "worktreeconfig",
    "relativeworktrees",
];

/// A directory, and its path.
#[derive(Debug)]
pub struct RepoDir {
    pub path: PathBuf,
    pub dir: OwnedFd,
}

/// The repository that a working tree belongs to.
#[derive(Debug)]
pub struct Repository {
    /// The directory with HEAD and index of this working tree.
    pub own: RepoDir,
    /// The directory that all working trees of the repository share.
    pub common: RepoDir,
    /// Its owner and group.
    pub owner: (u32, u32),
}

/// Target of HEAD.
#[derive(Debug, PartialEq, Eq)]
pub enum Head {
    /// A commit, in hexadecimal.
    At(String),
    /// A branch that has no commit yet.
    Unborn,
}

/// Returns the repository of the working tree at `project`, if it has one.
///
/// # Errors
/// `not-a-directory`: `.git` is a link, or leads to nothing; `no-permission`: a part of it has
/// another owner, or the owner is another user than the caller.
pub fn find(project: &Path) -> VerbResult<Option<Repository>> {
    let at = project.join(DOT_GIT);
    let root = host::open_dir_path(project).on(project.display())?;
    let found = match sys::stat_at(&root, DOT_GIT.as_bytes()) {
        Err(Errno::ENOENT) => return Ok(None),
        found => found.on(at.display())?,
    };
    let own = match found.kind {
        Kind::Dir => at.clone(),
        Kind::File => {
            let text = line(&root, DOT_GIT).on(at.display())?.unwrap_or_default();
            let to = leads(&text).ok_or_else(|| strange(&at, "leads to no repository"))?;
            normal(&project.join(to))
        }
        _ => return Err(strange(&at, "is neither a directory nor a file")),
    };
    let own = open(own, &found)?;
    let common = match line(&own.dir, "commondir").on(own.path.display())? {
        None => RepoDir {
            path: own.path.clone(),
            dir: own.dir.try_clone().on(own.path.display())?,
        },
        Some(to) => open(normal(&own.path.join(OsString::from_vec(to))), &found)?,
    };
    let repository = Repository {
        own,
        common,
        owner: (found.uid, found.gid),
    };
    let (caller, _) = sys::ids();
    if caller != 0 && caller != found.uid {
        return Err(not_ours(&repository.common.path, found.uid));
    }
    Ok(Some(repository))
}

/// Returns the target in the text of a file `.git`.
pub fn leads(text: &[u8]) -> Option<PathBuf> {
    let to = text.strip_prefix(LEADS_TO.as_bytes())?;
    Some(OsString::from_vec(to.to_vec()).into())
}

/// Opens a directory of the owner of `.git`. A file of one user must not lead to writes into a
/// directory of another.
fn open(path: PathBuf, dot_git: &Stat) -> VerbResult<RepoDir> {
    let dir = host::open_dir_itself(&path)
        .and_then(|dir| sys::open_beneath(&dir, b".", OpenKind::Dir))
        .on(path.display())?;
    let owner = sys::stat_fd(&dir).on(path.display())?.uid;
    if owner != dot_git.uid {
        return Err(not_ours(&path, owner));
    }
    Ok(RepoDir { path, dir })
}

fn strange(at: &Path, what: &str) -> VerbError {
    hinted(
        Code::NotADirectory,
        format!("the branch is not set up in git: {} {what}", at.display()),
        "git works in the parent as before, but may not in the branch",
    )
}

fn not_ours(at: &Path, owner: u32) -> VerbError {
    hinted(
        Code::NoPermission,
        format!(
            "the branch is not set up in git: {} belongs to another user (number {owner})",
            at.display()
        ),
        "make the branch as that user",
    )
}

impl Repository {
    /// Checks that the format of the repository is supported.
    ///
    /// # Errors
    /// `newer-format`.
    pub fn check_format(&self) -> VerbResult<()> {
        let settings = self.settings(&self.common, "config")?;
        let refuse = |what: String| {
            hinted(
                Code::NewerFormat,
                format!(
                    "the branch is not set up in git: {} {what}",
                    self.common.path.display()
                ),
                "the branch has its own copy of the repository, in which git works",
            )
        };
        if let Some(format) = settings.get("extensions.refstorage")
            && format != "files"
        {
            return Err(refuse(format!("stores its references as `{format}`")));
        }
        if self.common.dir_holds("reftable") {
            return Err(refuse("stores its references as `reftable`".into()));
        }
        let unknown = settings
            .keys()
            .filter_map(|key| key.strip_prefix("extensions."))
            .find(|name| *name != "refstorage" && !EXTENSIONS.contains(name));
        match unknown {
            Some(name) => Err(refuse(format!("has the extension `{name}`"))),
            None => Ok(()),
        }
    }

    /// Returns the settings that apply only to the working tree at `own`, for a new one; `None`
    /// without such settings.
    ///
    /// # Errors
    /// `bad-config`: they contain the location of this one working tree.
    pub fn own_settings(&self) -> VerbResult<Option<Vec<u8>>> {
        let shared = self.settings(&self.common, "config")?;
        let on = shared.get("extensions.worktreeconfig");
        if on.is_none_or(|value| !["true", "yes", "on", "1"].contains(&value.as_str())) {
            return Ok(None);
        }
        let own = self.settings(&self.own, "config.worktree")?;
        if own.contains_key("core.worktree") || own.get("core.bare").is_some_and(|is| is == "true")
        {
            return Err(hinted(
                Code::BadConfig,
                format!(
                    "the branch is not set up in git: {} sets core.worktree or core.bare",
                    self.own.path.join("config.worktree").display()
                ),
                "--no-git makes the branch without git",
            ));
        }
        read(&self.own.dir, "config.worktree", CONFIG_LEN_MAX).on(self.own.path.display())
    }

    fn settings(&self, place: &RepoDir, name: &str) -> VerbResult<BTreeMap<String, String>> {
        let text = read(&place.dir, name, CONFIG_LEN_MAX).on(place.path.join(name).display())?;
        Ok(settings(&String::from_utf8_lossy(
            &text.unwrap_or_default(),
        )))
    }

    /// Returns the commit of the reference `name`, which all working trees share.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn commit_of(&self, name: &str) -> VerbResult<Option<String>> {
        commit_of(&self.common.dir, name).on(self.common.path.join(name).display())
    }

    /// Reports whether the branch `name` is checked out in a working tree. For a branch that does
    /// not exist, only the first working tree is checked.
    ///
    /// # Errors
    /// Those of reading them.
    pub fn is_checked_out(&self, name: &str, there: bool) -> VerbResult<bool> {
        let wanted = format!("{REF}{name}").into_bytes();
        let on = |dir: &OwnedFd| -> SysResult<bool> {
            Ok(line(dir, "HEAD")?.is_some_and(|head| head == wanted))
        };
        if on(&self.common.dir).on(self.common.path.display())? {
            return Ok(true);
        }
        let short = name.strip_prefix(HEADS).unwrap_or(name);
        // An entry may be removed during the check.
        Ok(there
            && self
                .entries(WORKTREES, short)?
                .any(|(_, entry)| on(&entry).unwrap_or(false)))
    }

    /// Returns the directories in a directory of the repository, such as [`WORKTREES`], with their
    /// names: those with the prefix `first` come first, and each is opened only on demand. Empty if
    /// the directory does not exist.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn entries(
        &self,
        place: &str,
        first: &str,
    ) -> VerbResult<impl Iterator<Item = (Vec<u8>, OwnedFd)> + use<>> {
        let at = self.common.path.join(place);
        let dir = match sys::open_dir_at(&self.common.dir, place.as_bytes()) {
            Err(Errno::ENOENT) => None,
            dir => Some(dir.on(at.display())?),
        };
        let listed = dir.as_ref().map(sys::list_dir).transpose();
        let listed = listed.on(at.display())?.unwrap_or_default();
        let mut names: Vec<Vec<u8>> = listed.into_iter().map(|found| found.name).collect();
        names.sort_by_key(|name| !name.starts_with(first.as_bytes()));
        Ok(names.into_iter().filter_map(move |name| {
            let opened = sys::open_dir_at(dir.as_ref()?, &name).ok()?;
            Some((name, opened))
        }))
    }

    /// Returns the names in a directory of the repository; empty if it does not exist.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn names(&self, place: &str) -> VerbResult<Vec<Vec<u8>>> {
        let listed = match sys::open_dir_at(&self.common.dir, place.as_bytes()) {
            Err(Errno::ENOENT) => return Ok(Vec::new()),
            dir => dir.and_then(sys::list_dir),
        };
        let listed = listed.on(self.common.path.join(place).display())?;
        Ok(listed.into_iter().map(|found| found.name).collect())
    }
}

/// Directory in a repository with the entries of further working trees.
pub const WORKTREES: &str = "worktrees";

impl RepoDir {
    fn dir_holds(&self, name: &str) -> bool {
        host::holds(&self.dir, name)
    }
}

/// Returns the target of HEAD in `own`; references are resolved in `common`.
///
/// # Errors
/// Those of reading; EINVAL if the content is invalid.
pub fn head(own: impl AsFd, common: impl AsFd) -> SysResult<Head> {
    let head = line(own, "HEAD")?.ok_or(Errno::ENOENT)?;
    let head = String::from_utf8(head).map_err(|_| Errno::EINVAL)?;
    match head.strip_prefix(REF) {
        None if is_commit(&head) => Ok(Head::At(head)),
        None => Err(Errno::EINVAL),
        Some(name) => Ok(commit_of(common, name.trim())?.map_or(Head::Unborn, Head::At)),
    }
}

/// Returns the content of HEAD, without the newline.
pub fn head_text(own: impl AsFd) -> Option<String> {
    String::from_utf8(line(own, "HEAD").ok()??).ok()
}

/// Returns the content of HEAD for a branch.
pub fn head_of(branch: &str) -> Vec<u8> {
    format!("{REF}{branch}\n").into_bytes()
}

fn commit_of(common: impl AsFd, name: &str) -> SysResult<Option<String>> {
    let mut name = name.to_owned();
    for _ in 0..SYMREF_DEPTH_MAX {
        if !name.starts_with("refs/") {
            return Err(Errno::EINVAL);
        }
        let loose = match line(&common, &name) {
            // A directory of that name may contain others while this one is packed.
            Err(Errno::EISDIR | Errno::ENOTDIR | Errno::EINVAL) => None,
            loose => loose?,
        };
        let Some(loose) = loose else {
            return packed(&common, &name);
        };
        let loose = String::from_utf8(loose).map_err(|_| Errno::EINVAL)?;
        match loose.strip_prefix(REF) {
            Some(next) => name = next.trim().to_owned(),
            None if is_commit(&loose) => return Ok(Some(loose)),
            None => return Err(Errno::EINVAL),
        }
    }
    Err(Errno::ELOOP)
}

fn packed(common: impl AsFd, name: &str) -> SysResult<Option<String>> {
    let Some(text) = read(common, "packed-refs", PACKED_LEN_MAX)? else {
        return Ok(None);
    };
    let found = text.split(|byte| *byte == b'\n').find_map(|line| {
        let (commit, rest) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        (rest == name && is_commit(commit)).then(|| commit.to_owned())
    });
    Ok(found)
}

/// Reports whether branches exist below `name`, packed or not: git cannot have both.
///
/// # Errors
/// Those of reading.
pub fn is_in_the_way(common: impl AsFd, name: &str) -> SysResult<bool> {
    let below = format!("{name}/");
    let packed = read(&common, "packed-refs", PACKED_LEN_MAX)?.unwrap_or_default();
    let packed = packed.split(|byte| *byte == b'\n').any(|line| {
        let name = line.splitn(2, |byte| *byte == b' ').nth(1);
        name.is_some_and(|name| name.starts_with(below.as_bytes()))
    });
    let dir = sys::open_beneath(&common, name.as_bytes(), OpenKind::Dir).is_ok();
    Ok(packed || dir)
}

fn is_commit(text: &str) -> bool {
    [40, 64].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Parses the settings of a configuration (git-config(1)); the last of each name applies:
/// `section.name`, in lower case. Subsections and included files are ignored, as in git's check of
/// the format.
pub fn settings(text: &str) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    let mut section = None;
    for line in text.lines() {
        let mut line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let Some((name, rest)) = rest.split_once(']') else {
                continue;
            };
            section = (!name.contains(['"', '.'])).then(|| name.trim().to_ascii_lowercase());
            line = rest.trim();
        }
        let Some(section) = &section else { continue };
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let (name, value) = line.split_once('=').unwrap_or((line, "true"));
        let value = value.split(['#', ';']).next().unwrap_or_default().trim();
        let name = name.trim().to_ascii_lowercase();
        settings.insert(
            format!("{section}.{name}"),
            value.trim_matches('"').to_ascii_lowercase(),
        );
    }
    settings
}

/// Returns the text of a small file, without trailing white space; `None` if it does not exist.
pub fn line(dir: impl AsFd, name: &str) -> SysResult<Option<Vec<u8>>> {
    let text = read(dir, name, LINE_LEN_MAX)?;
    Ok(text.map(|mut text| {
        while text.last().is_some_and(u8::is_ascii_whitespace) {
            text.pop();
        }
        text
    }))
}

/// Reads a file below `dir` without following a link; EFBIG if it is longer than `len_max` bytes.
fn read(dir: impl AsFd, name: &str, len_max: u64) -> SysResult<Option<Vec<u8>>> {
    let file = match sys::open_beneath(&dir, name.as_bytes(), OpenKind::File(Access::READ)) {
        Err(Errno::ENOENT) => return Ok(None),
        file => File::from(file?),
    };
    if sys::stat_fd(&file)?.kind != Kind::File {
        return Err(Errno::EINVAL);
    }
    let mut text = Vec::new();
    file.take(len_max + 1).read_to_end(&mut text)?;
    if text.len() as u64 > len_max {
        return Err(Errno::EFBIG);
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_git_reads_them() {
        let found = settings(
            "# no\n[core]\n\tbare = false ; no\n\trepositoryFormatVersion=1\n[Extensions] refStorage = \"reftable\"\n worktreeConfig\n[remote \"x\"]\n\turl = u\n",
        );
        let get = |key: &str| found.get(key).map(String::as_str);
        assert_eq!(get("core.bare"), Some("false"));
        assert_eq!(get("extensions.refstorage"), Some("reftable"));
        assert_eq!(get("extensions.worktreeconfig"), Some("true"));
        assert_eq!(found.len(), 4, "{found:?}");
    }
}
