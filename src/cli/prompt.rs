//! `ckptfs prompt`.

use std::sync::mpsc;
use std::time::Duration;

use super::context::Context;
use super::error::Outcome;
use super::locate;
use crate::engine::api::{Glance, Glanced, VerbResult};

/// Nobody waits longer for a prompt.
const LIMIT: Duration = Duration::from_millis(200);

/// Print the checkpoint that the tree comes from, and * if something has changed: for a shell's prompt
///
/// Prints nothing where no tree is mounted, or where its daemon does not answer at once. Exit status
/// is always 0. For bash: PS1='$(ckptfs prompt) \w \$ '
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(_: Args, context: &mut Context) -> Outcome {
    let dir = context.dir().map(ToOwned::to_owned);
    let (tell, told) = mpsc::channel();
    let ask = move || {
        let glance = || -> VerbResult<Option<Glanced>> {
            let found = locate::served_at_once(&locate::start(dir.as_deref())?)?;
            found
                .map(|mut served| served.client.ask(Glance))
                .transpose()
        };
        // Who waits no more has gone on.
        let _ = tell.send(glance());
    };
    // A daemon that hangs must not hang the shell: its thread ends with this process.
    let asked = std::thread::Builder::new().spawn(ask);
    let glanced = asked.ok().and_then(|_| told.recv_timeout(LIMIT).ok());
    let Some(Ok(Some(glanced))) = glanced else {
        return Ok(());
    };
    context
        .out
        .answer(&glanced, |out| out.line(&shown(&glanced)))
}

fn shown(glanced: &Glanced) -> String {
    let base = glanced.base.map_or("-".to_owned(), |base| base.to_string());
    let mark = if glanced.changed { "*" } else { "" };
    format!("{base}{mark}")
}
