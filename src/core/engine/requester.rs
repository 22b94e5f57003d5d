//! The client of a verb.

use std::fs::File;
use std::sync::{Arc, OnceLock};

use super::error;
use ckptfs_api::{Actor, VerbResult};
use ckptfs_sys::lock::Mutex;

/// A client, and the descriptors sent to it with replies. One for each connection.
pub struct Requester {
    find: Box<dyn Fn() -> Actor + Send + Sync>,
    by: OnceLock<Actor>,
    has_given_up: Box<dyn Fn() -> bool + Send + Sync>,
    files: Mutex<Vec<Arc<File>>>,
    exports: Mutex<Vec<u64>>,
}

impl Requester {
    /// Creates a client. `find` identifies it on first use; `has_given_up` reports whether it has
    /// cancelled its request.
    pub fn new(
        find: impl Fn() -> Actor + Send + Sync + 'static,
        has_given_up: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Requester {
        let (find, has_given_up) = (Box::new(find), Box::new(has_given_up));
        Requester {
            find,
            by: OnceLock::new(),
            has_given_up,
            files: Mutex::default(),
            exports: Mutex::default(),
        }
    }

    /// Returns the client, for records.
    pub fn by(&self) -> &Actor {
        self.by.get_or_init(&self.find)
    }

    /// Checks that the client still waits. A restore runs in the connection's thread; it checks
    /// this before its first change, and then runs to its end.
    ///
    /// # Errors
    /// `cancelled`: the client cancelled the request, or disconnected.
    pub(super) fn still_wants(&self) -> VerbResult<()> {
        if (self.has_given_up)() {
            return Err(error::error(
                error::Code::Cancelled,
                "cancelled before anything was changed",
            ));
        }
        Ok(())
    }

    /// Adds descriptors to the reply, in order.
    pub(super) fn give(&self, files: Vec<Arc<File>>) {
        self.files.lock().extend(files);
    }

    /// Removes and returns the descriptors for the last reply.
    pub fn take_files(&self) -> Vec<Arc<File>> {
        std::mem::take(&mut self.files.lock())
    }

    /// Records a started export, which holds descriptors until its end.
    pub(super) fn begins_export(&self, run: u64) {
        self.exports.lock().push(run);
    }

    /// Removes and returns the exports not ended: the client has disconnected.
    pub(super) fn take_exports(&self) -> Vec<u64> {
        std::mem::take(&mut *self.exports.lock())
    }
}

impl From<Actor> for Requester {
    fn from(actor: Actor) -> Requester {
        Requester::new(move || actor.clone(), || false)
    }
}
