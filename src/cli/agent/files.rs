//! Reading and replacing files in places where others may have put anything.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::super::error::{On, error, hinted, io_error};
use super::table::Scope;
use crate::engine::api::{Code, VerbResult};
use crate::sys;

/// Settings are not longer.
pub const BYTES_MAX: u64 = 4 << 20;
/// What the copy of a file that is changed is called, behind the file's own name.
const BACKUP: &str = ".before-ckptfs";

/// A file, or the place of one.
pub struct Place {
    /// Where it is, behind all links.
    pub path: PathBuf,
    /// What it holds; `None`: it is not there.
    pub text: Option<String>,
    mode: u32,
}

/// Looks at a file of the scope. Links are followed as far as they lead to something of this
/// user's, and in a project as far as that is in the project.
///
/// # Errors
/// `bad-value`: it is no file, somebody else's, elsewhere, too long or not UTF-8. Those of open(2).
pub fn look(path: &Path, scope: &Scope) -> VerbResult<Place> {
    let real = behind_links(path)?;
    if let Scope::Project(root) = scope {
        let root = root.canonicalize().on(root.display())?;
        if !real.starts_with(&root) {
            return Err(refused(path, "a symbolic link leads out of the project"));
        }
    }
    let found = match real.symlink_metadata() {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            return Ok(Place {
                path: real,
                text: None,
                mode: 0o644,
            });
        }
        found => found.on(path.display())?,
    };
    // Before it is opened: a pipe would never end.
    if !found.is_file() {
        return Err(refused(path, "it is not a regular file"));
    }
    if !sys::is_trusted(found.uid()) {
        return Err(refused(path, "it belongs to another user"));
    }
    let mut bytes = Vec::new();
    File::open(&real)
        .on(path.display())?
        .take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .on(path.display())?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(refused(path, "it is longer than 4 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| refused(path, "it is not UTF-8"))?;
    Ok(Place {
        path: real,
        text: Some(text),
        mode: found.mode() & 0o777,
    })
}

fn refused(path: &Path, why: &str) -> crate::engine::api::VerbError {
    hinted(
        Code::BadValue,
        format!("{} was left alone: {why}", path.display()),
        "nothing was changed; move it out of the way, or add the hooks by hand (see docs/agents.md)",
    )
}

/// The path behind all links, also of a file that is not there: then what is there of the way to
/// it.
fn behind_links(path: &Path) -> VerbResult<PathBuf> {
    let mut missing = Vec::new();
    let mut at = path.to_owned();
    loop {
        match at.canonicalize() {
            Ok(mut real) => {
                real.extend(missing.iter().rev());
                return Ok(real);
            }
            // A link that leads nowhere would be followed by whoever makes the file.
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

impl Place {
    /// Replaces what it holds, all at once, and keeps what it held beside it if `keep` is said. The
    /// copy's path, if one was made.
    ///
    /// # Errors
    /// Those of making a file. The file itself is whole then, as it was.
    pub fn replace(&self, text: &str, keep: bool) -> VerbResult<Option<PathBuf>> {
        let (Some(dir), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Err(error(Code::BadValue, "a file has no name"));
        };
        fs::create_dir_all(dir).on(dir.display())?;
        let beside = |end: &str| {
            let mut name = name.to_owned();
            name.push(end);
            dir.join(name)
        };
        let backup = beside(BACKUP);
        let before = self.text.as_ref().filter(|_| keep);
        if let Some(before) = before {
            write_new(&backup, &beside(".ckptfs-new"), before, self.mode)?;
        }
        write_new(&self.path, &beside(".ckptfs-new"), text, self.mode)?;
        Ok(before.map(|_| backup))
    }

    /// Removes it, and the directories above it that have nothing else in them, up to `root`.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn remove(&self, root: &Path) -> VerbResult<()> {
        fs::remove_file(&self.path).on(self.path.display())?;
        let root = root.canonicalize().on(root.display())?;
        let above = self.path.ancestors().skip(1);
        for dir in above.take_while(|dir| *dir != root && dir.starts_with(&root)) {
            // One that has something in it stays.
            if fs::remove_dir(dir).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Writes a file that was not there, and renames it to where it is to be.
fn write_new(path: &Path, new: &Path, text: &str, mode: u32) -> VerbResult<()> {
    // What is left of a process that was killed.
    let _ = fs::remove_file(new);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(new)
        .and_then(|mut file: File| {
            file.set_permissions(Permissions::from_mode(mode))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(new, path));
    if written.is_err() {
        let _ = fs::remove_file(new);
    }
    written.on(path.display())
}
