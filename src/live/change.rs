//! What belongs to one change of the live tree, from the request or the verb that asks for it down
//! to the journal.

use std::sync::Arc;

use crate::history::attribution::{Author, Numbered};

/// One change, or those of one verb: for whom it is made. The default is a change by nobody.
#[derive(Debug, Default)]
pub struct Change {
    pub(super) author: Author,
}

impl Change {
    /// One that a process asks for, if it is known which.
    pub fn by(process: Option<Arc<Numbered>>) -> Change {
        Change {
            author: Author::new(process),
        }
    }
}
