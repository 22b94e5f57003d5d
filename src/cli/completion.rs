//! `ckptfs completion`.

use clap::CommandFactory;
use clap_complete::Shell;

use super::error::Outcome;
use super::{Cli, Context};

/// Print a shell's completions: `source <(ckptfs completion bash)`
#[derive(Debug, clap::Args)]
pub struct Args {
    /// For which shell
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ckptfs", &mut script);
    Ok(context.out.bytes(&script)?)
}
