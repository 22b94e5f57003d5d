//! `ckptfs prompt`.

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use ckptfs_api::{PromptQuery, PromptStatus, VerbResult};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::locate;
use ckptfs_ui::output::{Color, Out};

/// Limit of the wait for the daemon.
const LIMIT: Duration = Duration::from_millis(200);

/// Print the checkpoint that the tree comes from, and * if something has changed, for a shell's
/// prompt
///
/// Prints nothing if no tree is mounted, or if its daemon does not answer at once. Exit status is
/// always 0. For bash: PS1='$(ckptfs prompt) \w \$ '
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Reports whether the command line is only `prompt`.
pub fn is_plain() -> bool {
    std::env::args_os().skip(1).eq(["prompt"])
}

/// Prints the prompt without parsing the whole command line, which would take longer than the
/// request.
pub fn main() -> ExitCode {
    let mut context = Context {
        dir: None,
        out: Out::new(false, Color::Auto),
    };
    // A shell ignores the failure of its prompt.
    let _ = run(Args {}, &mut context).and_then(|()| Ok(context.out.flush()?));
    ExitCode::SUCCESS
}

pub fn run(_: Args, context: &mut Context) -> Outcome {
    let dir = context.dir().map(ToOwned::to_owned);
    let (tell, told) = mpsc::channel();
    let ask = move || {
        let glance = || -> VerbResult<Option<PromptStatus>> {
            let found = locate::served_at_once(&locate::start(dir.as_deref())?)?;
            found
                .map(|mut served| served.client.ask(PromptQuery))
                .transpose()
        };
        // The receiver may have timed out.
        let _ = tell.send(glance());
    };
    // A daemon that hangs must not block the shell: the thread ends with this process.
    let asked = std::thread::Builder::new().spawn(ask);
    let glanced = asked.ok().and_then(|_| told.recv_timeout(LIMIT).ok());
    let Some(Ok(Some(glanced))) = glanced else {
        return Ok(());
    };
    context
        .out
        .answer(&glanced, |out| out.line(&shown(&glanced)))
}

fn shown(glanced: &PromptStatus) -> String {
    let base = glanced.base.map_or("-".to_owned(), |base| base.to_string());
    let mark = if glanced.changed { "*" } else { "" };
    format!("{base}{mark}")
}
