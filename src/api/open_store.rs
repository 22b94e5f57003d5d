//! Write access of a client to the store.

use serde::{Deserialize, Serialize};

use crate::verb::Verb;
/// Returns a descriptor of the store's directory for writing; the link in the mount is read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenStore;

impl Verb for OpenStore {
    type Answer = ();
    const ONLY_ASKS: bool = true;
}
