//! `ckptfs help more`: the verbs that `ckptfs --help` only names.

use super::Context;
use ckptfs_ui::error::Outcome;

/// Output of `ckptfs help more`.
pub const VERBS: &str = "The verbs that `ckptfs --help` only names:
  bisect      Find the first checkpoint in which a test fails
  completion  Print a shell's completions
  config      Show and change the configuration
  doctor      Show what this machine and a directory support
  du          Show what space each checkpoint takes
  fork        Make an independent writable tree from a checkpoint
  mcp         Serve the verbs as tools for an agent (Model Context Protocol)
  ops         List the operations on the history: what `undo` undoes
  prompt      Print a few bytes for a shell's prompt
  redo        Redo what was undone last
  serve       Serve container volumes to Docker, Podman or Kubernetes
";

/// The purpose of the verbs that `ckptfs --help` only names
#[derive(Debug, clap::Args)]
#[command(long_about = VERBS, help_template = "{about}")]
pub struct Args {}

pub fn run(_: Args, context: &mut Context) -> Outcome {
    Ok(context.out.bytes(VERBS.as_bytes())?)
}
