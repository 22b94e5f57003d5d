//! Conversion of errors of the pool to gRPC status codes.

use tonic::{Code, Status};

use ckptfs_api::{self as api, VerbError};

/// Returns the status of a failed operation of the pool.
pub fn status_of(error: VerbError) -> Status {
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
        // A retry of the call succeeds, or finds the work done.
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

/// Returns the status of an invalid request.
pub fn invalid(message: impl Into<String>) -> Status {
    Status::invalid_argument(message)
}

/// Returns a required field of a request, or an error if it is empty.
pub fn required<'a>(what: &str, value: &'a str) -> Result<&'a str, Status> {
    if value.is_empty() {
        Err(invalid(format!("{what} is missing")))
    } else {
        Ok(value)
    }
}
