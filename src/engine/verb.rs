//! What a verb is: a request that says what it answers and how the answer is found.
//!
//! Everything else about a verb is derived from that: the client and the server of the control socket, what this process answers without a daemon, and the
//! JSON in between. A new verb is one type with an `impl Verb`, and one line in the list of [`Request`].

use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Engine;
use super::api::attribution::OnlyBy;
use super::api::{
    Cancel, ChangeTags, CheckpointOptions, Compare, CompareByProcess, DedupOptions, Delete, DuOptions, GcOptions, GetStats, GetStatus, ListAudit,
    ListCheckpoints, ListOperations, ListVersions, PinCheckpoint, Query, RestoreOptions, ShowCheckpoint, UndoOptions, Unmount, VerbError, VerbResult,
    VerifyOptions,
};
use super::export::parts::ExportAsk;
use super::import::ImportAsk;
use super::offline::Offline;
use crate::store::record::Actor;
use crate::sys::lock::Mutex;

/// A request of one kind.
pub trait Verb: Clone + Into<Request> {
    /// What it answers.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// It may wait long before it changes something, and can be given up until then.
    const CAN_BE_CANCELLED: bool = false;

    /// It changes nothing: if the daemon dies over it, the next one may be asked again.
    fn only_asks(&self) -> bool {
        false
    }

    /// Does it. Several threads may be at it at once; none keeps a request of the kernel waiting longer than a freeze.
    ///
    /// # Errors
    /// In words for a person, with a code for programs.
    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Self::Answer>;

    /// Does it of a tree that is not mounted, by reading its store.
    ///
    /// # Errors
    /// `not-mounted`: that needs a mount.
    fn read(self, _: &Offline) -> VerbResult<Self::Answer> {
        let hint = Some("mount it: ckptfs mount DIR".into());
        Err(VerbError { code: "not-mounted".into(), message: "the directory is not mounted".into(), hint })
    }
}

/// The list of the verbs, by their names on the socket.
macro_rules! verbs {
    ($($(#[$condition:meta])? $name:ident($request:ty),)*) => {
        /// What is asked: one variant for each verb.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[expect(missing_docs, reason = "each is documented where its request is")]
        pub enum Request {
            $($(#[$condition])? $name($request),)*
        }

        $($(#[$condition])? impl From<$request> for Request {
            fn from(request: $request) -> Request {
                Request::$name(request)
            }
        })*

        impl Request {
            /// See [`Verb::CAN_BE_CANCELLED`].
            pub fn can_be_cancelled(&self) -> bool {
                match self {
                    $($(#[$condition])? Request::$name(_) => <$request as Verb>::CAN_BE_CANCELLED,)*
                }
            }

            /// Does it, and gives the answer as it is sent.
            ///
            /// # Errors
            /// As of [`Verb::run`].
            pub fn answer(self, engine: &Engine, requester: &Requester) -> VerbResult<Answer> {
                match self {
                    $($(#[$condition])? Request::$name(request) => request.run(engine, requester).map(Answer::of),)*
                }
            }
        }
    };
}

verbs! {
    Checkpoint(CheckpointOptions),
    Status(GetStatus),
    Stats(GetStats),
    Log(ListCheckpoints),
    Show(ShowCheckpoint),
    Find(Query),
    Retag(ChangeTags),
    Pin(PinCheckpoint),
    Versions(ListVersions),
    Diff(Compare),
    ByProcess(CompareByProcess),
    RestoreOnlyBy(OnlyBy),
    Restore(RestoreOptions),
    Delete(Delete),
    Operations(ListOperations),
    Undo(UndoOptions),
    Verify(VerifyOptions),
    Du(DuOptions),
    Gc(GcOptions),
    Dedup(DedupOptions),
    Audit(ListAudit),
    Export(ExportAsk),
    Import(ImportAsk),
    Cancel(Cancel),
    Unmount(Unmount),
    #[cfg(debug_assertions)]
    Fault(super::api::Fault),
}

/// Whoever answers requests: an engine.
pub trait Answerer: Send + Sync {
    /// # Errors
    /// As of [`Verb::run`].
    fn answer(&self, request: Request, requester: &Requester) -> VerbResult<Answer>;
}

impl Answerer for Engine {
    fn answer(&self, request: Request, requester: &Requester) -> VerbResult<Answer> {
        request.answer(self, requester)
    }
}

type WriteJson = Box<dyn FnOnce(&mut dyn io::Write) -> serde_json::Result<()> + Send>;

/// An answer that has yet to be written down: a long one is never in memory as text.
pub struct Answer(WriteJson);

impl Answer {
    /// Of a verb.
    pub fn of(answer: impl Serialize + Send + 'static) -> Answer {
        Answer(Box::new(move |out| serde_json::to_writer(out, &answer)))
    }

    /// Writes it as JSON, on one line, without its end.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(self, out: &mut dyn io::Write) -> io::Result<()> {
        Ok(self.0(out)?)
    }
}

/// Who asks, and what is given to them besides answers. One for each connection.
pub struct Requester {
    find: Box<dyn Fn() -> Actor + Send + Sync>,
    by: OnceLock<Actor>,
    files: Mutex<Vec<Arc<File>>>,
    exports: Mutex<Vec<u64>>,
}

impl Requester {
    /// Somebody who is looked up by `find` when it is needed who that is.
    pub fn found_by(find: impl Fn() -> Actor + Send + Sync + 'static) -> Requester {
        Requester { find: Box::new(find), by: OnceLock::new(), files: Mutex::default(), exports: Mutex::default() }
    }

    /// Who that is, for the record.
    pub fn by(&self) -> &Actor {
        self.by.get_or_init(&self.find)
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

    /// Ends what was begun: they ask no more.
    pub fn end(&self, answers: &(impl Answerer + ?Sized)) {
        let exports = std::mem::take(&mut *self.exports.lock());
        for run in exports {
            // It may have been given up already.
            let _ = answers.answer(ExportAsk::End { run }.into(), self);
        }
    }
}

impl From<Actor> for Requester {
    fn from(actor: Actor) -> Requester {
        Requester::found_by(move || actor.clone())
    }
}
