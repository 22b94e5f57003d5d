//! A connection whose peer cannot keep us waiting: what it has begun to say must come, and what it
//! is told must be taken, within a time. What came in one piece with the request before has not
//! begun, as far as is known here: the limit for silence counts for it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::sys::lock::Mutex;

/// How far a connection is with a request. Whoever answers says so.
#[derive(Clone, Debug, Default)]
pub struct Turn(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing is asked: the peer may be silent.
    #[default]
    Idle,
    /// A request has begun to come, then.
    Begun(Instant),
    /// It is being answered.
    Answering,
}

impl Turn {
    /// The head of a request is there.
    pub fn answering(&self) {
        *self.0.lock() = State::Answering;
    }

    /// What is to be answered is known.
    pub fn answered(&self) {
        *self.0.lock() = State::Idle;
    }
}

/// See the module.
pub struct Timed<S> {
    stream: S,
    turn: Turn,
    limit: Duration,
    reading: Option<Pin<Box<Sleep>>>,
    writing: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    /// `limit`: for the rest of a request's head once it has begun, and for each time that the peer
    /// takes nothing.
    pub fn new(stream: S, turn: Turn, limit: Duration) -> Timed<S> {
        Timed {
            stream,
            turn,
            limit,
            reading: None,
            writing: None,
        }
    }

    /// What a write came to, or that it has waited too long.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.writing = None;
            return done;
        }
        let limit = self.limit;
        ready!(
            self.writing
                .get_or_insert_with(|| Box::pin(sleep(limit)))
                .as_mut()
                .poll(context)
        );
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let mut state = self.turn.0.lock();
        if read.is_ready() && buffer.filled().len() > before && *state == State::Idle {
            *state = State::Begun(Instant::now());
        }
        let began = if let State::Begun(began) = *state {
            Some(began)
        } else {
            None
        };
        drop(state);
        let (Some(began), true) = (began, read.is_pending()) else {
            self.reading = None;
            return read;
        };
        let until = began + self.limit;
        let wait = self
            .reading
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if wait.deadline() != until {
            wait.as_mut().reset(until);
        }
        ready!(wait.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.written(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.written(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
