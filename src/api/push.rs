//! Records of pushes to remotes.

use serde::{Deserialize, Serialize};

use crate::verb::Verb;
/// Records the end or failure of a push.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotePush {
    /// Name of the remote.
    pub remote: String,
    /// The error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Verb for NotePush {
    type Answer = ();
}

/// First part of the reason of such a pin.
pub const PUSHED_TO: &str = "pushed to ";

/// Last part of the reason of such a pin.
pub const BEGINS_HERE: &str = ": the next push begins here";

/// Returns the reason of the pin of a remote's newest checkpoint.
pub fn push_pin(remote: &str) -> String {
    [PUSHED_TO, remote, BEGINS_HERE].concat()
}
