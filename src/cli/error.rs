//! How a verb fails, and how that is told.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use super::output::Out;
use crate::engine::api::{Code, VerbError};
pub use crate::volumes::error::{On, error, hinted, io_error, plain};

/// Exit status of a verb that has found damage.
const DAMAGE_STATUS: u8 = 4;

/// Exit status of a wrong command line, as clap has it.
const USAGE_STATUS: u8 = 2;

/// Exit status of a verb whose status is that of a command, when it could not do its own part; as
/// of env(1) and timeout(1).
pub const UNABLE_STATUS: u8 = 125;

/// What a verb gives: nothing, for it has printed what it had to say.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Why a verb did not do what was asked.
#[derive(Debug)]
pub enum Failure {
    /// Something to tell the user.
    Verb(VerbError),
    /// stdout cannot be written.
    Output(io::Error),
    /// All is said already; the answer is no.
    No,
    /// All is said already; the history is damaged.
    Damage,
    /// All is said already; a command ended so.
    Status(u8),
    /// A verb whose status is that of a command could not do its own part.
    Unable(VerbError),
}

impl From<VerbError> for Failure {
    fn from(error: VerbError) -> Failure {
        Failure::Verb(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

impl Failure {
    /// Tells the user on stderr, and gives the exit status.
    pub fn report(&self, out: &Out) -> ExitCode {
        match self {
            Failure::Verb(error) => {
                tell(error, out);
                if error.code == Code::Usage {
                    return ExitCode::from(USAGE_STATUS);
                }
            }
            // The reader has seen enough: `ckptfs log | head -1`.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return ExitCode::SUCCESS;
            }
            Failure::Output(error) => tell(
                &io_error(
                    "standard output",
                    io::Error::new(error.kind(), error.to_string()),
                ),
                out,
            ),
            Failure::No => {}
            Failure::Damage => return ExitCode::from(DAMAGE_STATUS),
            Failure::Status(status) => return ExitCode::from(*status),
            Failure::Unable(error) => {
                tell(error, out);
                return ExitCode::from(UNABLE_STATUS);
            }
        }
        ExitCode::FAILURE
    }
}

fn tell(error: &VerbError, out: &Out) {
    #[derive(Serialize)]
    struct Line<'a> {
        error: &'a VerbError,
    }
    let mut stderr = io::stderr().lock();
    // There is nobody left to tell that stderr is closed.
    let _ = if out.json {
        serde_json::to_writer(&mut stderr, &Line { error })
            .map_err(io::Error::from)
            .and_then(|()| stderr.write_all(b"\n"))
    } else {
        let message = out.talk_text(&error.message);
        let told = writeln!(stderr, "{} {message}", out.talk_label("Error:"));
        match &error.hint {
            Some(hint) => told.and_then(|()| {
                writeln!(
                    stderr,
                    "{} {}",
                    out.talk_label("Hint:"),
                    out.talk_text(hint)
                )
            }),
            None => told,
        }
    };
}
