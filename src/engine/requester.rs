//! Who asks for something.

use std::fs::File;
use std::sync::{Arc, OnceLock};

use super::api::VerbResult;
use super::error;
use crate::store::record::Actor;
use crate::sys::lock::Mutex;

/// Who asks, and what is given to them besides answers. One for each connection.
pub struct Requester {
    find: Box<dyn Fn() -> Actor + Send + Sync>,
    by: OnceLock<Actor>,
    has_given_up: Box<dyn Fn() -> bool + Send + Sync>,
    files: Mutex<Vec<Arc<File>>>,
    exports: Mutex<Vec<u64>>,
}

impl Requester {
    /// Somebody who is looked up by `find` when it is needed who that is, and of whom
    /// `has_given_up` says whether they no longer want what they asked for.
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

    /// Who that is, for the record.
    pub fn by(&self) -> &Actor {
        self.by.get_or_init(&self.find)
    }

    /// A restore is asked for on a connection and done by the thread that serves it. Before it
    /// changes anything it looks whether that is still wanted; from then on it is finished, whoever
    /// waits for it.
    ///
    /// # Errors
    /// `cancelled`: they have given it up, or are gone.
    pub(super) fn still_wants(&self) -> VerbResult<()> {
        if (self.has_given_up)() {
            return Err(error::error(
                error::Code::Cancelled,
                "cancelled before anything was changed",
            ));
        }
        Ok(())
    }

    /// Descriptors that go with the answer, in their order.
    pub(super) fn give(&self, files: Vec<Arc<File>>) {
        self.files.lock().extend(files);
    }

    /// The descriptors that go with the answer to what was asked last.
    pub fn take_files(&self) -> Vec<Arc<File>> {
        std::mem::take(&mut self.files.lock())
    }

    /// An export was begun, for which descriptors are held until it ends.
    pub(super) fn begins_export(&self, run: u64) {
        self.exports.lock().push(run);
    }

    /// The exports that were begun and not ended: they ask no more.
    pub(super) fn take_exports(&self) -> Vec<u64> {
        std::mem::take(&mut *self.exports.lock())
    }
}

impl From<Actor> for Requester {
    fn from(actor: Actor) -> Requester {
        Requester::new(move || actor.clone(), || false)
    }
}
