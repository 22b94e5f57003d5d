//! What is done: a verb of this program, as it would be typed.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::super::error::On;
use super::super::output::escape;
use crate::engine::api::{TreePath, VerbResult};
use crate::engine::word::word;

/// A command line behind `ckptfs`.
#[derive(Clone, Debug)]
pub struct Deed(Vec<OsString>);

impl Deed {
    pub fn new<const N: usize>(words: [&str; N]) -> Deed {
        Deed(words.iter().map(OsString::from).collect())
    }

    /// With paths of the tree at its end.
    pub fn with_path(mut self, path: Option<&TreePath>) -> Deed {
        if let Some(path) = path {
            self.0.push("--".into());
            self.0.push(OsString::from_vec(path.0.clone()));
        }
        self
    }

    /// What would be done, and nothing is.
    pub fn dry(&self) -> Deed {
        let mut words = self.0.clone();
        words.insert(1.min(words.len()), "--dry-run".into());
        Deed(words)
    }

    /// As a person would type it.
    pub fn shown(&self) -> String {
        let words = self
            .0
            .iter()
            .map(|part| word(part.to_string_lossy()).to_string());
        format!("ckptfs {}", words.collect::<Vec<_>>().join(" "))
    }

    /// Does it in the tree at `root`. Says whether it succeeded, and what it said.
    ///
    /// # Errors
    /// This program cannot be run.
    pub fn run(&self, root: &Path) -> VerbResult<(bool, Vec<String>)> {
        let program = std::env::current_exe().on("this program")?;
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
