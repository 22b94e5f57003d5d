//! `ckptfs-browse`: a full-screen browser of the history, which `ckptfs browse` runs.
//!
//! Reads use the same code as the other verbs ([`history`]). Modifications run `ckptfs` with the
//! verb that a user would type ([`cli_command`]), so both behave identically, and display its
//! output.

mod app;
mod cli_command;
mod draw;
mod history;
mod keys;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::app::App;
use self::history::History;
use ckptfs_api::{Code, VerbResult, hinted};
use ckptfs_ui::error::{Failure, Outcome};
use ckptfs_ui::locate;
use ckptfs_ui::output::{Color, Out};
use ckptfs_ui::tree_path::in_tree;

/// The selection is read after this time without a key press, so scrolling does not wait for reads.
const REST: Duration = Duration::from_millis(40);
/// The newest checkpoint is requested again after this time without a key press.
const REFRESH: Duration = Duration::from_secs(2);

/// Browse checkpoints; `ckptfs browse` runs this program
#[derive(Debug, Parser)]
#[command(name = "ckptfs-browse", version)]
struct Args {
    /// The program that executes other verbs
    #[arg(long, value_name = "FILE", default_value = "ckptfs")]
    program: PathBuf,
    /// Run as if started in DIR
    #[arg(short = 'C', value_name = "DIR")]
    change_dir: Option<PathBuf>,
    /// Print an error as JSON
    #[arg(long)]
    json: bool,
    /// Show the versions of this file or directory first; relative to the working directory
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let out = Out::new(args.json, Color::Auto);
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&out),
    }
}

fn run(args: Args) -> Outcome {
    let served = locate::served(args.change_dir.as_deref())?;
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
    let mut app = App::new(History::new(served), args.program, path)?;
    let mut terminal = ratatui::try_init().map_err(Failure::Output)?;
    let ended = browse(&mut app, &mut terminal);
    ratatui::restore();
    ended.map_err(Failure::Output)
}

/// Runs the event loop until the user quits.
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
