//! `ckptfs completion`, and the completion requests of shells.
//!
//! The shell runs `ckptfs` with [`VARIABLE`] set and the typed words as arguments. `clap_complete`
//! provides verbs and flags; [`candidates`] provides values that depend on the tree: checkpoints,
//! tags, branches, and past paths.

mod candidates;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap_complete::env::{Bash, Elvish, EnvCompleter, Fish, Powershell, Shells};
use clap_complete::{CompleteEnv, Shell};

use super::Context;
use ckptfs_ui::error::{Outcome, io_error};

/// Set by a completing shell to its name.
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

/// The supported shells; Bash and Zsh have custom scripts.
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

/// Answers the completion request of a shell. Returns whether it was one. Must run before any other
/// output.
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
    // Without an answer, the shell completes nothing.
    asked.unwrap_or(true)
}

/// Bash splits `ID:PATH` into three words, and inserts names without quoting them.
const BASH: CustomShell = CustomShell {
    name: "bash",
    script: include_bytes!("completion.bash"),
    answers: &Bash,
};

/// Zsh must not append a space to an incomplete word (`ID:`, `DIR/`). Each line is a value, a tab
/// and its description.
const ZSH: CustomShell = CustomShell {
    name: "zsh",
    script: include_bytes!("completion.zsh"),
    answers: &Fish,
};

/// A shell with a custom script.
struct CustomShell {
    name: &'static str,
    script: &'static [u8],
    /// The shell whose format the answers use.
    answers: &'static dyn EnvCompleter,
}

impl EnvCompleter for CustomShell {
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
