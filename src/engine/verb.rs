//! What a verb is: a request that says what it answers and how the answer is found.
//!
//! Everything else about a verb is derived from that: the client and the server of the control socket, what this process answers without a daemon, and the
//! JSON in between. A new verb is one type with an `impl Verb`, and one line in the list of [`Request`].

use crate::engine::checkpoint::Checkpoints;
use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

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
use crate::sys::lock::{Mutex, MutexGuard};

/// A request of one kind.
pub trait Verb: Clone + Into<Request> {
    /// What it answers.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// It changes nothing, whatever is asked.
    const ONLY_ASKS: bool = false;

    /// It changes nothing: if the daemon dies over it, the next one may be asked again.
    fn only_asks(&self) -> bool {
        Self::ONLY_ASKS
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

/// The code of a request that was given up.
pub const CANCELLED: &str = "cancelled";

/// How often somebody who waits for his turn looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(5);

impl Checkpoints {
    /// Waits until no checkpoint and no restore is being made, as long as it is wanted.
    pub(super) fn wait_turn(&self, requester: &Requester) -> VerbResult<MutexGuard<'_, ()>> {
        loop {
            requester.still_wants()?;
            if let Some(turn) = self.checkpointing.try_lock() {
                return Ok(turn);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Who asks, and what is given to them besides answers. One for each connection.
pub struct Requester {
    find: Box<dyn Fn() -> Actor + Send + Sync>,
    by: OnceLock<Actor>,
    has_given_up: Box<dyn Fn() -> bool + Send + Sync>,
    files: Mutex<Vec<Arc<File>>>,
    exports: Mutex<Vec<u64>>,
}

impl Requester {
    /// Somebody who is looked up by `find` when it is needed who that is, and of whom `has_given_up` says whether they no longer want what they asked for.
    pub fn new(find: impl Fn() -> Actor + Send + Sync + 'static, has_given_up: impl Fn() -> bool + Send + Sync + 'static) -> Requester {
        let (find, has_given_up) = (Box::new(find), Box::new(has_given_up));
        Requester { find, by: OnceLock::new(), has_given_up, files: Mutex::default(), exports: Mutex::default() }
    }

    /// Who that is, for the record.
    pub fn by(&self) -> &Actor {
        self.by.get_or_init(&self.find)
    }

    /// A restore is asked for on a connection and done by the thread that serves it. Before it changes anything it looks whether that is still wanted; from
    /// then on it is finished, whoever waits for it.
    ///
    /// # Errors
    /// `cancelled`: they have given it up, or are gone.
    pub(super) fn still_wants(&self) -> VerbResult<()> {
        if (self.has_given_up)() {
            return Err(VerbError { code: CANCELLED.into(), message: "it was cancelled before anything was changed".into(), hint: None });
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
        Requester::new(move || actor.clone(), || false)
    }
}
