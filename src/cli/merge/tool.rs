//! External merge tools for files with content conflicts, called like a merge driver of git
//! (gitattributes(5), "Defining a custom merge driver").
//!
//! The tool runs as a child of this process, not of the daemon, as the requesting user, on copies
//! in a private directory. The request to the daemon contains the hashes of the three versions and
//! the tool's result. The daemon rejects a result for other versions.
//!
//! The command is a shell command, as in git's configuration. The values of `%P` etc. are passed as
//! positional parameters (`"$1"`) and never become part of the command, because file names are
//! untrusted.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use ckptfs_api::{
    CheckpointId, Client, Code, Merge, MergeAnswer, MergeVersion, MergeVersions, TreePath,
    VerbError, VerbResult,
};
use ckptfs_core::tree::merge::text;
use ckptfs_ui::error::{ErrorContext, error, hinted};
use ckptfs_ui::interrupt::Interrupt;

const SHELL: &str = "/bin/sh";
/// The letters after `%`, in the order of the arguments: base, ours, theirs, marker length, path,
/// and the labels of the three versions.
const LETTERS: &[u8] = b"OABLPSXY";
/// Exit statuses from 1 to this one report remaining conflicts. A greater one, or a signal, reports
/// a failure.
const CLASHES_MAX: i32 = 127;
/// Maximum number of attempts to create a directory.
const TRIES: u32 = 100;
/// Maximum length of a file name extension, from which programs recognize a language.
const EXTENSION_MAX: usize = 16;

/// The tool and the constant arguments.
pub struct MergeTool<'a> {
    command: OsString,
    /// The merged branch or checkpoint, and the merge base.
    what: &'a str,
    base: CheckpointId,
    cwd: &'a Path,
}

/// A private directory, removed on drop.
struct PrivateDir(PathBuf);

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // Best effort: what remains was left by the tool.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl PrivateDir {
    fn make() -> VerbResult<PrivateDir> {
        let temporary = std::env::temp_dir();
        let mut made = Err(io::ErrorKind::AlreadyExists.into());
        for number in 0..TRIES {
            let path = temporary.join(format!("ckptfs-merge-{}-{number}", std::process::id()));
            made = DirBuilder::new().mode(0o700).create(&path);
            match &made {
                Ok(()) => return Ok(PrivateDir(path)),
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
                Err(_) => break,
            }
        }
        made.map(|()| PrivateDir(PathBuf::new()))
            .on("a directory for the tool")
    }
}

/// Returns all files that a tool can merge.
///
/// # Errors
/// Those of the merge.
pub fn versions(client: &mut Client, merge: &Merge) -> VerbResult<Vec<MergeVersion>> {
    let mut all: Vec<MergeVersion> = Vec::new();
    loop {
        let more = client.ask(MergeVersions {
            merge: merge.clone(),
            after: all.last().map(|version| version.path.clone()),
        })?;
        if more.is_empty() {
            return Ok(all);
        }
        all.extend(more);
    }
}

/// Translates the command for the shell.
fn script(command: &OsStr) -> OsString {
    let (mut script, mut bytes) = (Vec::new(), command.as_bytes().iter().copied());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            script.push(byte);
            continue;
        }
        let letter = bytes.next();
        let place = LETTERS.iter().position(|known| Some(*known) == letter);
        match (place, letter) {
            (Some(place), _) => script.extend_from_slice(format!("\"${}\"", place + 1).as_bytes()),
            (None, Some(b'%')) => script.push(b'%'),
            (None, other) => script.extend([b'%'].into_iter().chain(other)),
        }
    }
    OsString::from_vec(script)
}

/// Returns the extension of a file name with its dot; empty unless it is short and alphanumeric.
fn extension(path: &TreePath) -> String {
    let extension = Path::new(OsStr::from_bytes(&path.0)).extension();
    let extension = extension.and_then(OsStr::to_str).unwrap_or_default();
    let plain = extension.len() <= EXTENSION_MAX
        && extension.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match extension {
        "" => String::new(),
        _ if plain => format!(".{extension}"),
        _ => String::new(),
    }
}

fn hash(text: &[u8]) -> String {
    blake3::hash(text).to_hex().to_string()
}

impl<'a> MergeTool<'a> {
    /// # Errors
    /// `usage`: the command does not contain the file for its result.
    pub fn new(
        command: &OsStr,
        what: &'a str,
        base: CheckpointId,
        cwd: &'a Path,
    ) -> VerbResult<MergeTool<'a>> {
        if !command
            .as_bytes()
            .windows(2)
            .any(|letters| letters == b"%A")
        {
            return Err(hinted(
                Code::Usage,
                "the --tool command does not contain %A, the file that it reads and writes its result to",
                "as for git's merge drivers: --tool 'git merge-file %A %O %B' or --tool 'mergiraf merge --git %O %A %B -p %P -l %L'",
            ));
        }
        Ok(MergeTool {
            command: script(command),
            what,
            base,
            cwd,
        })
    }

    /// Runs the tool on one file; `None`: conflicts remain.
    ///
    /// # Errors
    /// `tool-failed`: it cannot be started, was killed by a signal, reported a failure, or left no
    /// regular file; `too-large`.
    pub fn merge(
        &self,
        version: &MergeVersion,
        interrupt: &Interrupt,
    ) -> VerbResult<Option<MergeAnswer>> {
        let dir = PrivateDir::make()?;
        let extension = extension(&version.path);
        let place = |name: &str| dir.0.join(format!("{name}{extension}"));
        let places = [place("base"), place("ours"), place("theirs")];
        for (place, text) in places.iter().zip(&version.versions) {
            fs::write(place, &text.0).on("a copy for the tool")?;
        }
        let texts = version.versions.each_ref().map(|text| text.0.as_slice());
        let mut command = Command::new(SHELL);
        command
            .arg("-c")
            .arg(&self.command)
            .arg("ckptfs")
            .args(&places)
            .arg(text::marker_length(texts).to_string())
            .arg(OsStr::from_bytes(&version.path.0))
            .args([&format!("checkpoint {}", self.base), "live", self.what])
            .current_dir(self.cwd);
        // stdout carries the verb's output.
        let stderr = io::stderr().as_fd().try_clone_to_owned().on("stderr")?;
        command.stdout(Stdio::from(stderr));
        let ended = interrupt.run(&mut command);
        let failed = |why: &str| tool_failed(&version.path, why);
        let ended = ended.map_err(|cause| failed(&cause.to_string()))?;
        if !is_merged(ended).map_err(|why| failed(&why))? {
            return Ok(None);
        }
        let [_, ours, _] = &places;
        Ok(Some(MergeAnswer {
            path: version.path.clone(),
            of: texts.map(hash),
            content: TreePath(result(ours).map_err(|why| failed(&why))?),
        }))
    }
}

fn tool_failed(path: &TreePath, why: &str) -> VerbError {
    let path = String::from_utf8_lossy(&path.0);
    error(
        Code::ToolFailed,
        format!("nothing was changed: the tool failed on {path:?}: {why}"),
    )
}

/// Returns whether the tool merged everything, or the reason of its failure.
fn is_merged(ended: ExitStatus) -> Result<bool, String> {
    match ended.code() {
        Some(0) => Ok(true),
        Some(1..=CLASHES_MAX) => Ok(false),
        _ => Err(ended.to_string()),
    }
}

/// Returns the result of the tool.
fn result(place: &Path) -> Result<Vec<u8>, String> {
    let cannot = |cause: io::Error| format!("its result cannot be read: {cause}");
    // No race: only this user can modify the private directory.
    if !fs::symlink_metadata(place).map_err(cannot)?.is_file() {
        return Err("its result is not a regular file".to_owned());
    }
    let mut content = Vec::new();
    let file = File::open(place).map_err(cannot)?;
    let read = file.take(text::BYTES_MAX + 1).read_to_end(&mut content);
    read.map_err(cannot)?;
    if content.len() as u64 > text::BYTES_MAX {
        return Err(format!(
            "its result has more than {} bytes",
            text::BYTES_MAX
        ));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file name never becomes part of the command, however the command quotes it.
    #[test]
    fn what_is_put_in_is_an_argument() {
        let told = |command: &str| script(OsStr::new(command)).into_string().unwrap();
        assert_eq!(
            told("m %O %A %B -l %L -p %P 100%% %q %"),
            r#"m "$1" "$2" "$3" -l "$4" -p "$5" 100% %q %"#
        );
        let hostile = "$(touch /tmp/x)`id`'; \"exit 3";
        for quoted in ["%P", "\"%P\"", "'%P'"] {
            let mut command = Command::new(SHELL);
            let said = format!("printf %%s {quoted}");
            command
                .arg("-c")
                .arg(told(&said))
                .args(["ckptfs", "", "", "", "", hostile]);
            let output = command.output().expect("a shell");
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{quoted}: {output:?}"
            );
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            if quoted == "%P" {
                assert_eq!(said, hostile);
            }
        }
        assert_eq!(extension(&TreePath(b"a/b.rs".to_vec())), ".rs");
        for path in [&b"a"[..], b".git", b"a.\xff", b"a.b;c", b"a.$(x)"] {
            assert_eq!(extension(&TreePath(path.to_vec())), "", "{path:?}");
        }
    }
}
