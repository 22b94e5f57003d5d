//! What serves a request, and on which thread.
//!
//! Who serves a request is for the [`Dispatcher`] to say. A panic in a handler would end its thread
//! without a word; it is caught there, and the dropped reply answers EIO (`Drop for ReplyRaw` in
//! `fuser`). Locks: none here; [`Backings`] has its own.

use std::sync::Arc;

use super::answer::Answer;
use super::backing::{Backings, Device, Registered};
use super::dispatch::Dispatcher;
use super::takeover::Opens;
use crate::engine::counts::RequestKind as Kind;
use crate::engine::request::{Caller, Fh, NodeId, Opened, Service};
use crate::sys::{Errno, SysResult, wait};

/// What serves a request, on whichever thread.
pub struct Server {
    pub service: Arc<dyn Service>,
    pub device: Arc<Device>,
    pub backings: Backings<Registered>,
    pub opens: Opens,
}

impl Server {
    pub fn new(service: Arc<dyn Service>) -> Server {
        let opens = Opens::new(service.ledger());
        Server {
            service,
            device: Arc::default(),
            backings: Backings::new(),
            opens,
        }
    }

    /// The backing id for an open that the engine wants passed through; `None` if it does not, or
    /// if the kernel refuses the file.
    fn backing_id(&self, node: NodeId, opened: &Opened) -> Option<Arc<Registered>> {
        let file = opened.passthrough.as_ref()?;
        match self
            .backings
            .attach(node, opened.fh, || Registered::new(&self.device, file))
        {
            Ok(id) => Some(id),
            Err(error) => {
                tracing::debug!(node = node.0, %error, "the kernel refused a backing file");
                self.service.no_passthrough(opened.fh);
                None
            }
        }
    }

    /// Enters an open file that the kernel is about to hear of, with its backing id if it is passed
    /// through.
    pub fn enter(
        &self,
        caller: Caller,
        node: NodeId,
        opened: &Opened,
        flags: i32,
    ) -> Option<Arc<Registered>> {
        let id = self.backing_id(node, opened);
        let number = id.as_deref().map(|id| id.number);
        self.opens.enter(caller, node, opened, flags, number);
        id
    }

    /// A worker before us may have done this open and died before the kernel heard of it: nobody
    /// will ever close that handle.
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

    /// Takes over the open files of the worker before.
    pub fn adopt(&self) {
        for (left, backing) in self.opens.left() {
            if let Err(error) = self.service.adopt(&left) {
                tracing::warn!(node = left.node.0, fh = left.fh.0, %error, "an open file cannot be taken over");
            }
            if let Some(number) = backing {
                let adopted = self.backings.attach(left.node, left.fh, || {
                    Ok::<_, ()>(Registered::adopt(&self.device, number))
                });
                debug_assert!(adopted.is_ok(), "nothing can fail");
            }
        }
        self.service.adopted();
    }
}

/// Has requests served, each here or on another thread.
pub struct Requests {
    pub server: Arc<Server>,
    pub dispatcher: Arc<Dispatcher>,
}

impl Requests {
    pub fn new(service: Arc<dyn Service>, readers: usize) -> Requests {
        let counts = Arc::clone(service.counts());
        Requests {
            server: Arc::new(Server::new(service)),
            dispatcher: Arc::new(Dispatcher::new(counts, readers)),
        }
    }

    /// Serves a request, here or on another thread.
    pub fn serve(&self, kind: Kind, handler: impl FnOnce(&Server) + Send + 'static) {
        if self.dispatcher.hands_on(kind) {
            self.apart(kind, handler)
        } else {
            self.dispatcher.here(kind, || handler(&self.server))
        }
    }

    /// Serves a request on another thread.
    pub fn apart(&self, kind: Kind, handler: impl FnOnce(&Server) + Send + 'static) {
        let server = Arc::clone(&self.server);
        self.dispatcher.apart(kind, move || handler(&server));
    }

    /// As [`Requests::serve`], and answers with what `handler` gives.
    pub fn answer<T>(
        &self,
        kind: Kind,
        reply: impl Answer<T>,
        handler: impl FnOnce(&dyn Service) -> SysResult<T> + Send + 'static,
    ) {
        self.serve(kind, move |server| reply.answer(handler(&*server.service)));
    }

    /// As [`Requests::answer`], for what may have to wait for somebody else's process, or to take
    /// its time before it changes anything: that is found out by trying.
    pub fn patiently<T>(
        &self,
        kind: Kind,
        reply: impl Answer<T>,
        attempt: impl Fn(&dyn Service) -> SysResult<T> + Send + 'static,
    ) {
        let attempt = move |server: &Server| attempt(&*server.service);
        self.serve_patiently(kind, attempt, |_, done| reply.answer(done));
    }

    /// As [`Requests::patiently`], for whoever answers by itself.
    pub fn serve_patiently<T>(
        &self,
        kind: Kind,
        attempt: impl Fn(&Server) -> SysResult<T> + Send + 'static,
        answer: impl FnOnce(&Server, SysResult<T>) + Send + 'static,
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

    /// Answers as [`Requests::answer`] does, for a change below `parent`, which may have to wait for
    /// other requests.
    pub fn change<T>(
        &self,
        kind: Kind,
        parent: NodeId,
        reply: impl Answer<T>,
        handler: impl FnOnce(&dyn Service) -> SysResult<T> + Send + 'static,
    ) {
        if self.server.service.waits(parent) {
            self.apart(kind, move |server| reply.answer(handler(&*server.service)))
        } else {
            self.answer(kind, reply, handler)
        }
    }

    /// As [`Requests::change`], for what takes a name from a file.
    pub fn removal(
        &self,
        kind: Kind,
        parent: NodeId,
        reply: impl Answer<()>,
        attempt: impl Fn(&dyn Service) -> SysResult<()> + Send + 'static,
    ) {
        if self.server.service.waits(parent) {
            self.apart(kind, move |server| reply.answer(attempt(&*server.service)))
        } else {
            self.patiently(kind, reply, attempt)
        }
    }
}
