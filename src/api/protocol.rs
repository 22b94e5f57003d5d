//! Requests, answers, and their frames.

use crate::error::{Code, VerbError, VerbResult};
use crate::request::Request;
use crate::verb::Answer;
use std::io::{self, BufRead, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the protocol, increased when daemons and clients of different versions would
/// misinterpret each other.
pub const PROTOCOL: u32 = 2;

/// Maximum length of a request in bytes, including its newline.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// Maximum length of an answer accepted by a client, in bytes. The changes of a million paths take
/// some 200 MB.
pub const ANSWER_BYTES_MAX: usize = 1 << 30;

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome<T> {
    /// The answer of the verb.
    Ok(T),
    /// The reason of the failure.
    Error(VerbError),
}

/// The frame of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFrame {
    /// The client's [`PROTOCOL`].
    pub version: u32,
    /// The tree, as the source of its mount; a daemon that serves another tree rejects the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// The request.
    pub request: Request,
}

/// The frame of an answer.
#[derive(Serialize, Deserialize)]
struct AnswerFrame<T> {
    /// The daemon's [`PROTOCOL`].
    version: u32,
    result: Outcome<T>,
}

/// The field common to frames of all versions.
#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

impl RequestFrame {
    /// Decodes a request, or returns the error for a client of another version or an invalid frame.
    pub fn decode(frame: &[u8]) -> Result<RequestFrame, VerbError> {
        match serde_json::from_slice::<RequestFrame>(frame) {
            Ok(call) if call.version == PROTOCOL => Ok(call),
            Ok(call) => Err(version_mismatch(PROTOCOL, call.version)),
            Err(error) => match serde_json::from_slice::<AnyVersion>(frame) {
                Ok(any) if any.version != PROTOCOL => Err(version_mismatch(PROTOCOL, any.version)),
                _ => Err(protocol_error(format!(
                    "the daemon does not understand the request: {error}"
                ))),
            },
        }
    }

    /// Returns the request, if it is for this tree.
    pub fn meant_for(self, tree: &str) -> Result<Request, VerbError> {
        match self.tree {
            Some(other) if other != tree => Err(VerbError {
                code: Code::WrongTree,
                message: "the daemon that was found there serves another directory".into(),
                hint: Some(
                    "directories were moved meanwhile: try again, and name the directory with -C"
                        .into(),
                ),
            }),
            _ => Ok(self.request),
        }
    }
}

/// Decodes an answer, or returns the error for a daemon of another version.
pub fn decode_answer<T: DeserializeOwned>(frame: &[u8]) -> VerbResult<T> {
    match serde_json::from_slice::<AnswerFrame<T>>(frame) {
        // An error is passed on: a daemon of another version reports the mismatch in it.
        Ok(AnswerFrame {
            result: Outcome::Error(error),
            ..
        }) => Err(error),
        Ok(AnswerFrame {
            version: PROTOCOL,
            result: Outcome::Ok(answer),
        }) => Ok(answer),
        Ok(reply) => Err(version_mismatch(reply.version, PROTOCOL)),
        Err(error) => match serde_json::from_slice::<AnyVersion>(frame) {
            Ok(any) if any.version != PROTOCOL => Err(version_mismatch(any.version, PROTOCOL)),
            _ => Err(protocol_error(format!(
                "the daemon's answer cannot be parsed: {error}"
            ))),
        },
    }
}

/// Writes the frame of an answer: the JSON of [`AnswerFrame`], without building a long answer in
/// memory.
pub fn write_answer(mut out: impl Write, answer: Answer) -> io::Result<()> {
    write!(out, "{{\"version\":{PROTOCOL},\"result\":{{\"ok\":")?;
    answer.write(&mut out)?;
    out.write_all(b"}}\n")?;
    out.flush()
}

/// Encodes the frame of an error.
pub fn encode_error(error: VerbError) -> io::Result<Vec<u8>> {
    encode(&AnswerFrame::<()> {
        version: PROTOCOL,
        result: Outcome::Error(error),
    })
}

fn version_mismatch(daemon: u32, client: u32) -> VerbError {
    VerbError {
        code: Code::ProtocolVersion,
        message: format!(
            "the daemon of this mount speaks version {daemon} of the control protocol, and this ckptfs version {client}"
        ),
        hint: Some(
            "restart the daemon with this ckptfs: ckptfs umount DIR && ckptfs mount DIR".into(),
        ),
    }
}

fn protocol_error(message: String) -> VerbError {
    VerbError {
        code: Code::Protocol,
        message,
        hint: None,
    }
}

/// Encodes the frame of `message`, including the newline; an error if it exceeds
/// [`FRAME_BYTES_MAX`].
pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = serde_json::to_vec(message)?;
    frame.push(b'\n');
    if frame.len() > FRAME_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "a message of {} bytes exceeds the limit of {FRAME_BYTES_MAX}",
                frame.len()
            ),
        ));
    }
    Ok(frame)
}

/// Reads the next frame into `frame`, without its newline. `false`: the peer closed the connection
/// between two frames.
///
/// # Errors
/// `InvalidData` if a frame has more than `limit` bytes, including its newline; `frame` then holds
/// the first `limit` bytes.
pub fn receive_up_to(stream: impl BufRead, frame: &mut Vec<u8>, limit: usize) -> io::Result<bool> {
    frame.clear();
    stream.take(limit as u64).read_until(b'\n', frame)?;
    match frame.last() {
        Some(b'\n') => {
            frame.pop();
            Ok(true)
        }
        None => Ok(false),
        Some(_) if frame.len() >= limit => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the message exceeds the limit",
        )),
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
