//! How work on the pool fails, as an orchestrator is told.

use tonic::{Code, Status};

use crate::engine::api::VerbError;

impl From<VerbError> for Status {
    fn from(error: VerbError) -> Status {
        let code = match error.code.as_str() {
            "no-such-volume" | "unknown-checkpoint" | "not-found" => Code::NotFound,
            "bad-name" | "bad-option" | "unknown-option" | "bad-path" => Code::InvalidArgument,
            "volume-exists" | "snapshot-exists" => Code::AlreadyExists,
            "in-use" | "pinned" | "other-mount" => Code::FailedPrecondition,
            "no-space" => Code::ResourceExhausted,
            // The same call again does it, or finds it done.
            "busy" | "daemon-busy" => Code::Aborted,
            _ => Code::Internal,
        };
        let message = match &error.hint {
            Some(hint) => format!("{} ({hint})", error.message),
            None => error.message,
        };
        Status::new(code, message)
    }
}

/// What is wrong with a request.
pub fn invalid(message: impl Into<String>) -> Status {
    Status::invalid_argument(message)
}

/// A part of a request that must be given.
pub fn required<'a>(what: &str, value: &'a str) -> Result<&'a str, Status> {
    if value.is_empty() {
        Err(invalid(format!("{what} is missing")))
    } else {
        Ok(value)
    }
}
