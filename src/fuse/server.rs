//! Execution of requests, on a reader or a helper thread.
//!
//! The [`Dispatcher`] chooses the thread. It also catches panics of handlers, which would silently
//! end the thread; the dropped reply sends EIO (`Drop for ReplyRaw` in `fuser`). Locks: none here;
//! [`Backings`] has its own.

use std::sync::Arc;

use super::answer::SendReply;
use super::backing::{BackingFile, Backings, FuseDevice};
use super::dispatch::Dispatcher;
use super::takeover::OpenFileTable;
use ckptfs_core::engine::counts::RequestKind as Kind;
use ckptfs_core::engine::request::{Caller, Fh, NodeId, Opened, Service};
use ckptfs_sys::{Errno, SysResult, wait};

/// The state that handlers use, on any thread.
pub struct RequestContext {
    pub service: Arc<dyn Service>,
    pub device: Arc<FuseDevice>,
    pub backings: Backings<BackingFile>,
    pub opens: OpenFileTable,
}

impl RequestContext {
    pub fn new(service: Arc<dyn Service>) -> RequestContext {
        let opens = OpenFileTable::new(service.ledger());
        RequestContext {
            service,
            device: Arc::default(),
            backings: Backings::new(),
            opens,
        }
    }

    /// Returns the backing ID for an open that the engine wants passed through. `None` if it does
    /// not, or if the kernel rejects the file.
    fn backing_id(&self, node: NodeId, opened: &Opened) -> Option<Arc<BackingFile>> {
        let file = opened.passthrough.as_ref()?;
        match self
            .backings
            .attach(node, opened.fh, || BackingFile::new(&self.device, file))
        {
            Ok(id) => Some(id),
            Err(error) => {
                tracing::debug!(node = node.0, %error, "the kernel refused a backing file");
                self.service.no_passthrough(opened.fh);
                None
            }
        }
    }

    /// Records an open file before the kernel receives the reply; returns its backing ID if it is
    /// passed through.
    pub fn enter(
        &self,
        caller: Caller,
        node: NodeId,
        opened: &Opened,
        flags: i32,
    ) -> Option<Arc<BackingFile>> {
        let id = self.backing_id(node, opened);
        let number = id.as_deref().map(|id| id.number);
        self.opens.enter(caller, node, opened, flags, number);
        id
    }

    /// Closes the handle that a predecessor opened for this request before it died without
    /// replying: the kernel would never release it.
    pub fn undo_open(&self, caller: Caller) {
        if let Some((node, fh)) = self.opens.unanswered(caller) {
            self.release(node, fh);
        }
    }

    /// Closes an open file.
    pub fn release(&self, node: NodeId, fh: Fh) {
        self.opens.part(fh);
        self.backings.detach(fh);
        self.service.release(node, fh);
        self.opens.remove(fh);
    }

    /// Takes over the open files of the predecessor.
    pub fn adopt(&self) {
        for (left, backing) in self.opens.left() {
            if let Err(error) = self.service.adopt(&left) {
                tracing::warn!(node = left.node.0, fh = left.fh.0, %error, "an open file cannot be taken over");
            }
            if let Some(number) = backing {
                let adopted = self.backings.attach(left.node, left.fh, || {
                    Ok::<_, ()>(BackingFile::adopt(&self.device, number))
                });
                debug_assert!(adopted.is_ok(), "nothing can fail");
            }
        }
        self.service.adopted();
    }
}

/// Executes requests, on this thread or on a helper.
pub struct RequestExecutor {
    pub server: Arc<RequestContext>,
    pub dispatcher: Arc<Dispatcher>,
}

impl RequestExecutor {
    pub fn new(service: Arc<dyn Service>, readers: usize) -> RequestExecutor {
        let counts = Arc::clone(service.counts());
        RequestExecutor {
            server: Arc::new(RequestContext::new(service)),
            dispatcher: Arc::new(Dispatcher::new(counts, readers)),
        }
    }

    /// Executes a request, on this thread or on a helper.
    pub fn serve(&self, kind: Kind, handler: impl FnOnce(&RequestContext) + Send + 'static) {
        if self.dispatcher.hands_on(kind) {
            self.apart(kind, handler)
        } else {
            self.dispatcher.here(kind, || handler(&self.server))
        }
    }

    /// Executes a request on a helper.
    pub fn apart(&self, kind: Kind, handler: impl FnOnce(&RequestContext) + Send + 'static) {
        let server = Arc::clone(&self.server);
        self.dispatcher.apart(kind, move || handler(&server));
    }

    /// As [`RequestExecutor::serve`], and replies with the result of `handler`.
    pub fn answer<T>(
        &self,
        kind: Kind,
        reply: impl SendReply<T>,
        handler: impl FnOnce(&dyn Service) -> SysResult<T> + Send + 'static,
    ) {
        self.serve(kind, move |server| reply.answer(handler(&*server.service)));
    }

    /// As [`RequestExecutor::answer`], for requests that may have to wait for another user's
    /// process, or may take long before their first change. A first attempt determines whether they
    /// do.
    pub fn patiently<T>(
        &self,
        kind: Kind,
        reply: impl SendReply<T>,
        attempt: impl Fn(&dyn Service) -> SysResult<T> + Send + 'static,
    ) {
        let attempt = move |server: &RequestContext| attempt(&*server.service);
        self.serve_patiently(kind, attempt, |_, done| reply.answer(done));
    }

    /// As [`RequestExecutor::patiently`], with a function that sends the reply.
    pub fn serve_patiently<T>(
        &self,
        kind: Kind,
        attempt: impl Fn(&RequestContext) -> SysResult<T> + Send + 'static,
        answer: impl FnOnce(&RequestContext, SysResult<T>) + Send + 'static,
    ) {
        if self.dispatcher.hands_on(kind) {
            return self.apart(kind, move |server| answer(server, attempt(server)));
        }
        let mut again = None;
        self.dispatcher
            .here(kind, || match wait::never(|| attempt(&self.server)) {
                Err(Errno::LATER) => again = Some((attempt, answer)),
                done => answer(&self.server, done),
            });
        if let Some((attempt, answer)) = again {
            let server = Arc::clone(&self.server);
            self.dispatcher
                .again(kind, move || answer(&server, attempt(&server)));
        }
    }

    /// As [`RequestExecutor::answer`], for a change below `parent`, which may have to wait for
    /// other requests.
    pub fn change<T>(
        &self,
        kind: Kind,
        parent: NodeId,
        reply: impl SendReply<T>,
        handler: impl FnOnce(&dyn Service) -> SysResult<T> + Send + 'static,
    ) {
        if self.server.service.waits(parent) {
            self.apart(kind, move |server| reply.answer(handler(&*server.service)))
        } else {
            self.answer(kind, reply, handler)
        }
    }

    /// As [`RequestExecutor::change`], for requests that remove a name of a file.
    pub fn removal(
        &self,
        kind: Kind,
        parent: NodeId,
        reply: impl SendReply<()>,
        attempt: impl Fn(&dyn Service) -> SysResult<()> + Send + 'static,
    ) {
        if self.server.service.waits(parent) {
            self.apart(kind, move |server| reply.answer(attempt(&*server.service)))
        } else {
            self.patiently(kind, reply, attempt)
        }
    }
}
