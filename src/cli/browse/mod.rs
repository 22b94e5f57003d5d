//! `ckptfs browse`: the history on the whole terminal.
//!
//! What is shown is read as every other verb reads it ([`history`]); what is done is done by running
//! this program with the verb that a person would have typed ([`deed`]), so the two cannot differ,
//! and what it says is shown.

mod app;
mod deed;
mod draw;
mod history;
mod keys;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::app::App;
use self::history::History;
use super::context::Context;
use super::error::{Failure, Outcome, hinted};
use super::locate;
use super::tree_path::in_tree;
use crate::engine::api::{Code, VerbResult};

/// What is selected is read once no key was typed for so long: nobody waits for what they pass by.
const REST: Duration = Duration::from_millis(40);
/// The newest checkpoints are asked for again after so long without a key.
const REFRESH: Duration = Duration::from_secs(2);

/// Look through the history: checkpoints, what each changed, files as they were; and go back
///
/// `?` shows the keys.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Begin with the versions of this file or directory; relative to the working directory
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let served = locate::served(context.dir())?;
    let path = args
        .path
        .map(|path| in_tree(&served.root, &served.cwd, &path))
        .transpose()?;
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(hinted(
            Code::Usage,
            "browse needs a terminal",
            "ckptfs log, diff and show print the same",
        )
        .into());
    }
    let mut app = App::new(History::new(served), path)?;
    let mut terminal = ratatui::try_init().map_err(Failure::Output)?;
    let ended = browse(&mut app, &mut terminal);
    ratatui::restore();
    ended.map_err(Failure::Output)
}

/// Until somebody quits.
fn browse(app: &mut App, terminal: &mut ratatui::DefaultTerminal) -> io::Result<()> {
    while !app.quits {
        terminal.draw(|frame| draw::draw(app, frame))?;
        let rest = if app.is_stale() { REST } else { REFRESH };
        if !event::poll(rest)? {
            app.read();
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                let told: VerbResult<()> = keys::press(app, key);
                app.tell(told);
            }
            _ => {}
        }
    }
    Ok(())
}
