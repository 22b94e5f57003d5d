//! Reading and replacing files in places where other users may have put anything.
//!
//! A path is resolved once, and then opened from a directory that no other user can replace,
//! without following a link ([`open_below`]). From the check to the write only that descriptor is
//! used: if a directory of the path is replaced in between, this has no effect, or the call fails.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::agents::Scope;
use ckptfs_api::{Code, VerbResult};
use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind, RenameMode, SysResult};
use ckptfs_transfer::dirs::open_below;
use ckptfs_ui::error::{ErrorContext, error, hinted, io_error};

/// Limit of the size of settings.
pub const BYTES_MAX: u64 = 4 << 20;
/// Suffix of the copy of a changed file.
const BACKUP: &str = ".before-ckptfs";
/// Suffix of a file that is not complete.
const NEW: &str = ".ckptfs-new";
/// Mode bits by which other users may write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A file, or the place of a missing one.
pub struct SettingsFile {
    /// Its path, without links.
    path: PathBuf,
    /// Its content; `None`: it does not exist.
    pub text: Option<String>,
    mode: u32,
    /// Its directory, or the nearest existing one above.
    dir: OwnedFd,
    /// The missing directories between that and the file.
    missing: Vec<OsString>,
    base: Base,
}

/// The directory where paths begin.
struct Base {
    path: PathBuf,
    fd: OwnedFd,
}

impl Base {
    /// Opens the directory of this scope. In a home of the caller links may lead anywhere, because
    /// only the caller can have made them; elsewhere they must not lead out.
    fn of(scope: &Scope) -> VerbResult<Base> {
        let root = scope.root().canonicalize().on(scope.root().display())?;
        let slash = sys::open_root(Path::new("/")).on("/")?;
        let rest = root.as_os_str().as_bytes();
        let fd = open_below(&slash, rest.get(1..).unwrap_or_default(), OpenKind::Dir)
            .on(root.display())?;
        let stat = sys::stat_fd(&fd).on(root.display())?;
        let own = stat.uid == sys::ids().0 && stat.mode & WRITABLE_BY_OTHERS == 0;
        Ok(match scope {
            Scope::User(_) if own => Base {
                path: "/".into(),
                fd: slash,
            },
            _ => Base { path: root, fd },
        })
    }

    /// Opens a path that contains no links.
    fn open(&self, real: &Path, kind: OpenKind) -> SysResult<OwnedFd> {
        let below = real.strip_prefix(&self.path).map_err(|_| Errno::EXDEV)?;
        open_below(&self.fd, below.as_os_str().as_bytes(), kind)
    }

    /// Opens the nearest existing directory at or above `dir`; returns it with the missing names.
    fn nearest(&self, dir: &Path) -> SysResult<(OwnedFd, Vec<OsString>)> {
        let (mut at, mut missing) = (dir, Vec::new());
        loop {
            match self.open(at, OpenKind::Dir) {
                Err(Errno::ENOENT) => {
                    missing.extend(at.file_name().map(OsString::from));
                    at = at.parent().ok_or(Errno::ENOENT)?;
                }
                opened => {
                    missing.reverse();
                    return Ok((opened?, missing));
                }
            }
        }
    }
}

/// Checks and reads a file of the scope. Links are followed to files of this user, and outside of
/// this user's own home only within the scope.
///
/// # Errors
/// `bad-value` if it is not a file, another user's, elsewhere, longer than [`BYTES_MAX`] or not
/// UTF-8. Those of open(2).
pub fn look(path: &Path, scope: &Scope) -> VerbResult<SettingsFile> {
    let base = Base::of(scope)?;
    let real = behind_links(path)?;
    if !real.starts_with(&base.path) {
        let why = match scope {
            Scope::Project(_) => "a symbolic link leads out of the project",
            Scope::User(_) => "a symbolic link leads out of a home that is not yours",
        };
        return Err(refused(path, why));
    }
    let (Some(above), Some(name)) = (real.parent(), real.file_name()) else {
        return Err(refused(path, "it is not a regular file"));
    };
    let (dir, missing) = base.nearest(above).on(path.display())?;
    let held = match sys::open_path_at(&dir, name.as_bytes()) {
        _ if !missing.is_empty() => None,
        Err(Errno::ENOENT) => None,
        held => Some(held.on(path.display())?),
    };
    let (mut text, mut mode) = (None, 0o644);
    if let Some(held) = held {
        let found = sys::stat_fd(&held).on(path.display())?;
        // Before it is opened, because a pipe would never end.
        if found.kind != Kind::File {
            return Err(refused(path, "it is not a regular file"));
        }
        if !sys::is_trusted(found.uid) {
            return Err(refused(path, "it belongs to another user"));
        }
        text = Some(read(path, &held)?);
        mode = found.mode & 0o777;
    }
    Ok(SettingsFile {
        path: real,
        text,
        mode,
        dir,
        missing,
        base,
    })
}

/// Reads a file.
fn read(path: &Path, held: &OwnedFd) -> VerbResult<String> {
    let mut bytes = Vec::new();
    sys::reopen(held, Access::READ)
        .on(path.display())?
        .take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .on(path.display())?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(refused(path, "it is longer than 4 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| refused(path, "it is not UTF-8"))
}

fn refused(path: &Path, why: &str) -> ckptfs_api::VerbError {
    hinted(
        Code::BadValue,
        format!("{} was left alone: {why}", path.display()),
        "nothing was changed; move it out of the way, or add the hooks by hand (see docs/agents.md)",
    )
}

/// Returns the path without links; of a missing file, the existing part of the path is resolved.
fn behind_links(path: &Path) -> VerbResult<PathBuf> {
    let mut missing = Vec::new();
    let mut at = path.to_owned();
    loop {
        match at.canonicalize() {
            Ok(mut real) => {
                real.extend(missing.iter().rev());
                return Ok(real);
            }
            // Creating the file would follow a dangling link.
            Err(_) if at.symlink_metadata().is_ok() => {
                return Err(refused(path, "a symbolic link in its path is dangling"));
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                let (Some(name), Some(parent)) = (at.file_name(), at.parent()) else {
                    return Err(io_error(path.display(), cause));
                };
                missing.push(name.to_owned());
                at = parent.to_owned();
            }
            Err(cause) => return Err(io_error(path.display(), cause)),
        }
    }
}

impl SettingsFile {
    /// Replaces the content by a rename, and keeps a copy of the old content if `keep` is set.
    /// Returns the path of the copy, if one was made.
    ///
    /// # Errors
    /// Those of creating a file. The file is then unchanged.
    pub fn replace(&self, text: &str, keep: bool) -> VerbResult<Option<PathBuf>> {
        let Some(name) = self.path.file_name() else {
            return Err(error(Code::BadValue, "a file has no name"));
        };
        let made = self.make_missing().on(self.path.display())?;
        let dir = made.as_ref().unwrap_or(&self.dir);
        let named = |end: &str| {
            let mut name = name.to_owned();
            name.push(end);
            name
        };
        let (backup, new) = (named(BACKUP), named(NEW));
        let write = |name: &OsString, text: &str| {
            write_new(dir, name.as_bytes(), new.as_bytes(), text, self.mode)
                .on(self.path.with_file_name(name).display())
        };
        let before = self.text.as_ref().filter(|_| keep);
        if let Some(before) = before {
            write(&backup, before)?;
        }
        write(&name.to_owned(), text)?;
        Ok(before.map(|_| self.path.with_file_name(backup)))
    }

    /// Creates the missing directories; returns the last of them, if any.
    fn make_missing(&self) -> SysResult<Option<OwnedFd>> {
        let mut made: Option<OwnedFd> = None;
        for name in &self.missing {
            let dir = made.as_ref().unwrap_or(&self.dir);
            match sys::mkdir_at(dir, name.as_bytes(), 0o777) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
            let next = sys::open_dir_at(dir, name.as_bytes())?;
            made = Some(next);
        }
        Ok(made)
    }

    /// Removes the file, and the directories above it that become empty, up to `root`.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn remove(&self, root: &Path) -> VerbResult<()> {
        let name = self.path.file_name().unwrap_or_default();
        sys::unlink_at(&self.dir, name.as_bytes()).on(self.path.display())?;
        let root = root.canonicalize().on(root.display())?;
        let above = self.path.ancestors().skip(1);
        for dir in above.take_while(|dir| *dir != root && dir.starts_with(&root)) {
            let (Some(up), Some(name)) = (dir.parent(), dir.file_name()) else {
                break;
            };
            let up = self.base.open(up, OpenKind::Dir);
            // A directory that is not empty stays.
            if up
                .and_then(|up| sys::rmdir_at(up, name.as_bytes()))
                .is_err()
            {
                break;
            }
        }
        Ok(())
    }
}

/// Writes a new file, and renames it to its final name.
fn write_new(dir: &OwnedFd, name: &[u8], new: &[u8], text: &str, mode: u32) -> io::Result<()> {
    // A process that was killed may have left one.
    let _ = sys::unlink_at(dir, new);
    let written = (|| {
        let mut file: File = sys::create_file_at(dir, new, Access::READ_WRITE, 0o600)?;
        sys::set_file_mode(&file, mode)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        Ok(sys::rename_at(dir, new, dir, name, RenameMode::Replace)?)
    })();
    if written.is_err() {
        let _ = sys::unlink_at(dir, new);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory of the path is replaced by a link between the check and the write.
    #[test]
    fn what_is_exchanged_after_the_look_leads_nowhere() {
        let dir = tempfile::tempdir().expect("a directory");
        let (project, outside) = (dir.path().join("p"), dir.path().join("outside"));
        for made in [&project.join(".claude/skills"), &outside.join("skills")] {
            fs::create_dir_all(made).expect("mkdir");
        }
        let files = ["settings.json", "skills/SKILL.md"];
        let put = |below: &Path| {
            let write = |file| fs::write(below.join(file), "as it was").expect("a file");
            files.iter().for_each(write);
        };
        put(&project.join(".claude"));
        put(&outside);
        let scope = Scope::Project(project.clone());
        let look_at =
            |file: &&str| look(&project.join(".claude").join(file), &scope).expect("seen");
        let (changed, removed) = (files.each_ref().map(look_at), files.each_ref().map(look_at));
        fs::rename(project.join(".claude"), project.join("old")).expect("rename");
        symlink(&outside, project.join(".claude")).expect("a link");
        for place in &changed {
            place
                .replace("changed", true)
                .expect("the directory is held");
        }
        let text = |path: PathBuf| fs::read_to_string(path).expect("a file");
        assert_eq!(text(project.join("old/settings.json")), "changed");
        for place in &removed {
            place.remove(&project).expect("removed");
        }
        for file in files {
            assert_eq!(text(outside.join(file)), "as it was");
            assert!(!project.join("old").join(file).exists());
        }
        let left = |path: PathBuf| fs::read_dir(path).expect("a directory").count();
        assert_eq!(
            (left(outside.clone()), left(outside.join("skills"))),
            (2, 1)
        );
    }

    /// The same with a directory that did not exist yet.
    #[test]
    fn what_is_made_after_the_look_leads_nowhere() {
        let dir = tempfile::tempdir().expect("a directory");
        let (project, outside) = (dir.path().join("p"), dir.path().join("outside"));
        for made in [&project, &outside] {
            fs::create_dir(made).expect("mkdir");
        }
        let path = project.join(".claude/skills/SKILL.md");
        let place = look(&path, &Scope::Project(project.clone())).expect("seen");
        symlink(&outside, project.join(".claude")).expect("a link");
        assert!(place.replace("text", true).is_err());
        assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 0);
    }
}
