//! `ckptfs completion`, and what a shell asks while somebody types.
//!
//! The shell runs `ckptfs` with [`VARIABLE`] set and the words that were typed; `clap_complete`
//! knows the verbs and flags, and [`candidates`] what only a tree can tell: checkpoints, tags,
//! branches, and paths of the past.

mod candidates;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap_complete::env::{Bash, Elvish, EnvCompleter, Fish, Powershell, Shells};
use clap_complete::{CompleteEnv, Shell};

use super::Context;
use super::error::{Outcome, io_error};

/// Set by a shell that asks, to its name.
const VARIABLE: &str = "CKPTFS_COMPLETE";
const PROGRAM: &str = "ckptfs";

/// Print a shell's completions: `source <(ckptfs completion bash)`
///
/// Completes verbs and flags, and the checkpoints, tags, branches and past paths of the tree that
/// contains the working directory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// The shells, two of them with scripts of our own.
const SHELLS: Shells<'static> = Shells(&[&BASH, &Elvish, &Fish, &Powershell, &ZSH]);

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut script = Vec::new();
    if let Some(shell) = SHELLS.completer(&args.shell.to_string()) {
        shell
            .write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)
            .map_err(|cause| io_error("the completions", cause))?;
    }
    Ok(context.out.bytes(&script)?)
}

/// Answers a shell that asks; whether one did. Nothing was printed before.
pub fn answered() -> bool {
    if std::env::var_os(VARIABLE).is_none() {
        return false;
    }
    let asked = CompleteEnv::with_factory(candidates::command_line)
        .var(VARIABLE)
        .bin(PROGRAM)
        .completer(PROGRAM)
        .shells(SHELLS)
        .try_complete(std::env::args_os(), std::env::current_dir().ok().as_deref());
    // A shell that is told nothing completes nothing.
    asked.unwrap_or(true)
}

/// Bash, which takes `ID:PATH` for three words, and has a name inserted as it is given.
const BASH: Own = Own {
    name: "bash",
    script: include_bytes!("completion.bash"),
    answers: &Bash,
};

/// Zsh, where a word that goes on (`ID:`, `DIR/`) is to have no space behind it. A line each: the
/// value, and behind a tab what it is.
const ZSH: Own = Own {
    name: "zsh",
    script: include_bytes!("completion.zsh"),
    answers: &Fish,
};

/// A shell with a script of our own.
struct Own {
    name: &'static str,
    script: &'static [u8],
    /// The shell whose form the answers have.
    answers: &'static dyn EnvCompleter,
}

impl EnvCompleter for Own {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is(&self, name: &str) -> bool {
        name == self.name
    }

    fn write_registration(
        &self,
        _: &str,
        _: &str,
        _: &str,
        _: &str,
        to: &mut dyn Write,
    ) -> io::Result<()> {
        to.write_all(self.script)
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        words: Vec<OsString>,
        dir: Option<&Path>,
        to: &mut dyn Write,
    ) -> io::Result<()> {
        self.answers.write_complete(command, words, dir, to)
    }
}
