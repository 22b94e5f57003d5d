//! How work on the pool fails, as an orchestrator is told.

use tonic::{Code, Status};

use crate::engine::api::{self, VerbError};

impl From<VerbError> for Status {
    fn from(error: VerbError) -> Status {
        let code = match error.code {
            api::Code::NoSuchVolume | api::Code::UnknownCheckpoint | api::Code::NotFound => {
                Code::NotFound
            }
            api::Code::BadName
            | api::Code::BadOption
            | api::Code::UnknownOption
            | api::Code::BadPath => Code::InvalidArgument,
            api::Code::VolumeExists | api::Code::SnapshotExists => Code::AlreadyExists,
            api::Code::InUse
            | api::Code::BranchInUse
            | api::Code::Held
            | api::Code::Pinned
            | api::Code::OtherMount
            | api::Code::UnknownRemote
            | api::Code::BadPassword
            | api::Code::BadConfig => Code::FailedPrecondition,
            api::Code::NoSpace => Code::ResourceExhausted,
            // The same call again does it, or finds it done.
            api::Code::Busy | api::Code::DaemonBusy => Code::Aborted,
            api::Code::RemoteFailed => Code::Unavailable,
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
