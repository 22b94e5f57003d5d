//! Connections with timeouts. A request once begun must arrive, and a response must be read, within
//! a time limit; a connection is closed if its place is needed. A request that arrives in one read
//! with the previous one does not count as begun; the idle limit applies to it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use ckptfs_sys::lock::Mutex;

/// Progress of a connection, updated by the code that answers its requests.
#[derive(Clone, Debug)]
pub struct ConnectionProgress(Arc<Mutex<Progress>>);

#[derive(Debug)]
struct Progress {
    state: ConnectionState,
    /// A complete request has arrived on this connection.
    asked: bool,
    /// The reading task, to be woken at the end of the connection.
    reader: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    /// No request is pending since this time; the peer may be silent.
    Idle(Instant),
    /// A request has begun to arrive at this time.
    Begun(Instant),
    /// Number of requests being answered.
    Answering(usize),
    /// Closed for another connection.
    Ended,
}

impl ConnectionProgress {
    fn new() -> ConnectionProgress {
        ConnectionProgress(Arc::new(Mutex::new(Progress {
            state: ConnectionState::Idle(Instant::now()),
            asked: false,
            reader: None,
        })))
    }

    /// Notes that the head of a request has arrived; the limit starts again for its body.
    pub fn begun(&self) {
        let mut progress = self.0.lock();
        if matches!(
            progress.state,
            ConnectionState::Idle(_) | ConnectionState::Begun(_)
        ) {
            progress.state = ConnectionState::Begun(Instant::now());
        }
    }

    /// Notes that a complete request has arrived. It is being answered while the returned value
    /// lives.
    pub fn answering(&self) -> Answering {
        let mut progress = self.0.lock();
        progress.asked = true;
        match &mut progress.state {
            ConnectionState::Answering(count) => *count += 1,
            ConnectionState::Ended => {}
            state => *state = ConnectionState::Answering(1),
        }
        Answering(self.clone())
    }

    /// Notes a read that has completed or waits. Returns when the pending request has begun.
    ///
    /// # Errors
    /// The connection must end.
    fn read(&self, came: bool, reader: &Waker) -> io::Result<Option<Instant>> {
        let mut progress = self.0.lock();
        if came && matches!(progress.state, ConnectionState::Idle(_)) {
            progress.state = ConnectionState::Begun(Instant::now());
        }
        progress.reader = Some(reader.clone());
        match progress.state {
            ConnectionState::Begun(began) => Ok(Some(began)),
            ConnectionState::Ended => Err(io::ErrorKind::ConnectionAborted.into()),
            ConnectionState::Idle(_) | ConnectionState::Answering(_) => Ok(None),
        }
    }

    fn has_ended(&self) -> bool {
        self.0.lock().state == ConnectionState::Ended
    }
}

/// Guard of [`ConnectionProgress::answering`].
#[derive(Debug)]
pub struct Answering(ConnectionProgress);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut progress = self.0.0.lock();
        match &mut progress.state {
            ConnectionState::Answering(count) if *count > 1 => *count -= 1,
            ConnectionState::Answering(_) => progress.state = ConnectionState::Idle(Instant::now()),
            _ => {}
        }
    }
}

/// The connections of a driver.
///
/// If all places are taken, a new connection replaces the one that has been silent longest,
/// preferably one without a complete request. Incomplete requests thus cannot lock out other
/// clients.
#[derive(Debug)]
pub struct Connections {
    turns: Vec<Weak<Mutex<Progress>>>,
    most: usize,
}

impl Connections {
    /// Creates `most` places.
    pub fn new(most: usize) -> Connections {
        Connections {
            turns: Vec::new(),
            most,
        }
    }

    /// Returns a place for a new connection; `None` if all others have a request being answered.
    pub fn place(&mut self) -> Option<ConnectionProgress> {
        self.turns.retain(|turn| turn.strong_count() > 0);
        if self.turns.len() >= self.most {
            let silent = |(at, turn): (usize, &Weak<Mutex<Progress>>)| {
                let turn = ConnectionProgress(turn.upgrade()?);
                let progress = turn.0.lock();
                let (ConnectionState::Idle(since) | ConnectionState::Begun(since)) = progress.state
                else {
                    return None;
                };
                Some(((progress.asked, since), at))
            };
            let (_, at) = self.turns.iter().enumerate().filter_map(silent).min()?;
            end(&self.turns.swap_remove(at));
            tracing::debug!("a silent connection was closed for a new one");
        }
        let turn = ConnectionProgress::new();
        self.turns.push(Arc::downgrade(&turn.0));
        Some(turn)
    }
}

/// At the end of the driver, connections without a complete request are closed.
impl Drop for Connections {
    fn drop(&mut self) {
        let mute =
            |turn: &&Weak<Mutex<Progress>>| turn.upgrade().is_some_and(|turn| !turn.lock().asked);
        self.turns.iter().filter(mute).for_each(end);
    }
}

/// Ends a connection.
fn end(turn: &Weak<Mutex<Progress>>) {
    let Some(turn) = turn.upgrade() else { return };
    let reader = {
        let mut progress = turn.lock();
        progress.state = ConnectionState::Ended;
        progress.reader.take()
    };
    if let Some(reader) = reader {
        reader.wake();
    }
}

/// A stream with timeouts. See the module.
pub struct Timed<S> {
    stream: S,
    turn: ConnectionProgress,
    limit: Option<Duration>,
    reading: Option<Pin<Box<Sleep>>>,
    writing: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    /// `limit` applies to the rest of a request's head once begun, to its body, and to each stall
    /// of a response. `None` for a protocol with data outside of requests.
    pub fn new(stream: S, turn: ConnectionProgress, limit: Option<Duration>) -> Timed<S> {
        Timed {
            stream,
            turn,
            limit,
            reading: None,
            writing: None,
        }
    }

    /// Returns the progress of the connection.
    pub fn turn(&self) -> &ConnectionProgress {
        &self.turn
    }

    /// Returns the result of a write, or a timeout.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.turn.has_ended() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let Some(limit) = self.limit.filter(|_| done.is_pending()) else {
            self.writing = None;
            return done;
        };
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
        let came = read.is_ready() && buffer.filled().len() > before;
        let began = self.turn.read(came, context.waker())?;
        let (Some(began), Some(limit), true) = (began, self.limit, read.is_pending()) else {
            self.reading = None;
            return read;
        };
        let until = began + limit;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_connection_has_the_place_of_the_one_that_asked_nothing_or_is_silent_longest() {
        let mut connections = Connections::new(3);
        let mut place = || connections.place();
        let (asked, silent, answering) = (place().unwrap(), place().unwrap(), place().unwrap());
        drop(asked.answering());
        let (first, second) = (answering.answering(), answering.answering());
        drop(first);
        let new = place().unwrap();
        assert!(silent.has_ended() && !asked.has_ended());
        let _answered = new.answering();
        let last = place().unwrap();
        assert!(asked.has_ended(), "it has asked, and is silent since");
        let _answered_too = last.answering();
        assert!(
            place().is_none(),
            "each has a request that is being answered"
        );
        drop(second);
        assert!(place().is_some() && answering.has_ended());
        assert!(!new.has_ended() && !last.has_ended());
    }
}
