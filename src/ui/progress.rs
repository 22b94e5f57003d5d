//! Spinners and progress bars for operations of the daemon.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Out;

/// A shorter operation shows nothing.
const QUIET: Duration = Duration::from_millis(250);

/// Period of the animation.
const TICK: Duration = Duration::from_millis(100);

/// A spinner on a terminal's stderr, from [`QUIET`] after its start until it is stopped.
#[derive(Debug)]
pub struct Spinner {
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Spinner {
    /// Starts a spinner; shows nothing without a terminal.
    pub fn start(out: &Out, what: &'static str) -> Spinner {
        if !out.talks_to_terminal() {
            return Spinner { running: None };
        }
        let (stop, stopped) = channel();
        let show = move || {
            if stopped.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
                let bar = ProgressBar::new_spinner()
                    .with_style(style("{spinner} {msg} {elapsed}"))
                    .with_message(what)
                    .with_elapsed(QUIET);
                bar.enable_steady_tick(TICK);
                // Any result means the end.
                let _ = stopped.recv();
                bar.finish_and_clear();
            }
        };
        Spinner {
            running: std::thread::Builder::new()
                .spawn(show)
                .ok()
                .map(|thread| (stop, thread)),
        }
    }

    /// Clears the line.
    pub fn stop(self) {
        if let Some((stop, thread)) = self.running {
            drop(stop);
            // A panic of the thread is already reported.
            let _ = thread.join();
        }
    }
}

/// A progress bar on a terminal's stderr, from [`QUIET`] after its start until it is stopped; with
/// an unknown total, a counter.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    started: Instant,
    /// Template for a known total.
    whole: &'static str,
}

/// Values of [`Bar::whole`].
const BYTES: &str = "{spinner} {msg} [{wide_bar}] {bytes} of {total_bytes} {eta}";
const THINGS: &str = "{spinner} {msg} [{wide_bar}] {pos} of {len} {eta}";
const FILES: &str = "{spinner} {msg} [{wide_bar}] {pos} of {len} {per_sec} {eta}";
/// Template for an unknown total.
const COUNT: &str = "{spinner} {msg} {pos} {elapsed}";

impl Bar {
    /// Starts a bar; shows nothing without a terminal. `bytes`: the unit is bytes.
    pub fn start(out: &Out, what: &'static str, bytes: bool) -> Bar {
        Bar::of(out, what, if bytes { BYTES } else { THINGS })
    }

    /// Like [`Bar::start`], for files, with their number per second.
    pub fn files(out: &Out, what: &'static str) -> Bar {
        Bar::of(out, what, FILES)
    }

    fn of(out: &Out, what: &'static str, whole: &'static str) -> Bar {
        let bar = if out.talks_to_terminal() {
            ProgressBar::no_length()
        } else {
            ProgressBar::hidden()
        };
        Bar {
            bar: bar.with_style(style(COUNT)).with_message(what),
            started: Instant::now(),
            whole,
        }
    }

    /// Sets the position and the total; 0: unknown.
    pub fn at(&self, done: u64, total: u64) {
        if self.started.elapsed() >= QUIET {
            if total > 0 && self.bar.length() != Some(total) {
                self.bar.set_style(style(self.whole));
                self.bar.set_length(total);
            }
            self.bar.set_position(done);
        }
    }

    /// Clears the line.
    pub fn stop(self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
