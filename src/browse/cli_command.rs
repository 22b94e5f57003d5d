//! Commands: verbs of this program, as a user would type them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Stdio};

use ckptfs_api::display::word;
use ckptfs_api::{TreePath, VerbResult};
use ckptfs_ui::error::ErrorContext;
use ckptfs_ui::output::escape;

/// The arguments of `ckptfs`.
#[derive(Clone, Debug)]
pub struct CliCommand(Vec<OsString>);

impl CliCommand {
    pub fn new<const N: usize>(words: [&str; N]) -> CliCommand {
        CliCommand(words.iter().map(OsString::from).collect())
    }

    /// Appends a path of the tree.
    pub fn with_path(mut self, path: Option<&TreePath>) -> CliCommand {
        if let Some(path) = path {
            self.0.push("--".into());
            self.0.push(OsString::from_vec(path.0.clone()));
        }
        self
    }

    /// Returns the same command with `--dry-run`.
    pub fn dry(&self) -> CliCommand {
        let mut words = self.0.clone();
        words.insert(1.min(words.len()), "--dry-run".into());
        CliCommand(words)
    }

    /// Returns the command line, quoted for a shell.
    pub fn shown(&self) -> String {
        let words = self
            .0
            .iter()
            .map(|part| word(part.to_string_lossy()).to_string());
        format!("ckptfs {}", words.collect::<Vec<_>>().join(" "))
    }

    /// Runs the command with `program` in the tree at `root`. Returns whether it succeeded, and its
    /// output.
    ///
    /// # Errors
    /// The program cannot be executed.
    pub fn run(&self, program: &Path, root: &Path) -> VerbResult<(bool, Vec<String>)> {
        let ran = Command::new(program)
            .arg("-C")
            .arg(root)
            .args(&self.0)
            .stdin(Stdio::null())
            .output()
            .on("ckptfs")?;
        let lines = [ran.stdout, ran.stderr].concat();
        let lines = lines
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        Ok((ran.status.success(), lines.map(escape).collect()))
    }
}
