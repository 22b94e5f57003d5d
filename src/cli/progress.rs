//! A sign of life while the daemon works.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::output::Out;

/// What takes less long is over before anybody has looked.
const QUIET: Duration = Duration::from_millis(250);

/// How often the sign moves.
const TICK: Duration = Duration::from_millis(100);

/// Turns on a terminal's stderr, from [`QUIET`] after its start until it is stopped.
#[derive(Debug)]
pub struct Spinner {
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Spinner {
    /// Starts to wait; shows nothing without a terminal.
    pub fn start(out: &Out, what: &'static str) -> Spinner {
        if !out.talks_to_terminal() {
            return Spinner { running: None };
        }
        let (stop, stopped) = channel();
        let show = move || {
            if stopped.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
                let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}").unwrap_or_else(|_| ProgressStyle::default_spinner());
                let bar = ProgressBar::new_spinner().with_style(style).with_message(what).with_elapsed(QUIET);
                bar.enable_steady_tick(TICK);
                // Whatever comes, it is over.
                let _ = stopped.recv();
                bar.finish_and_clear();
            }
        };
        Spinner { running: std::thread::Builder::new().spawn(show).ok().map(|thread| (stop, thread)) }
    }

    /// Clears the line.
    pub fn stop(self) {
        if let Some((stop, thread)) = self.running {
            drop(stop);
            // A panic there has told the user what it had to.
            let _ = thread.join();
        }
    }
}
