//! A connection whose peer cannot keep us waiting: what it has begun to say must come, and what it
//! is told must be taken, within a time; and it ends when its place is needed. What came in one
//! piece with the request before has not begun, as far as is known here: the limit for silence
//! counts for it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::sys::lock::Mutex;

/// How far a connection is with its requests. The code that answers them keeps it up to date.
#[derive(Clone, Debug)]
pub struct Turn(Arc<Mutex<Progress>>);

#[derive(Debug)]
struct Progress {
    state: State,
    /// A whole request has come on this connection.
    asked: bool,
    /// The task that reads, to be woken when the connection is to end.
    reader: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is asked, since then: the peer may be silent.
    Idle(Instant),
    /// A request has begun to come, then.
    Begun(Instant),
    /// So many are being answered.
    Answering(usize),
    /// Another connection has its place.
    Ended,
}

impl Turn {
    fn new() -> Turn {
        Turn(Arc::new(Mutex::new(Progress {
            state: State::Idle(Instant::now()),
            asked: false,
            reader: None,
        })))
    }

    /// The head of a request is there: the limit begins again for its body.
    pub fn begun(&self) {
        let mut progress = self.0.lock();
        if matches!(progress.state, State::Idle(_) | State::Begun(_)) {
            progress.state = State::Begun(Instant::now());
        }
    }

    /// A whole request is there, and is being answered as long as the value lives.
    pub fn answering(&self) -> Answering {
        let mut progress = self.0.lock();
        progress.asked = true;
        match &mut progress.state {
            State::Answering(count) => *count += 1,
            State::Ended => {}
            state => *state = State::Answering(1),
        }
        Answering(self.clone())
    }

    /// A read is over or waits: when the request has begun that is still to come.
    ///
    /// # Errors
    /// The connection is to end.
    fn read(&self, came: bool, reader: &Waker) -> io::Result<Option<Instant>> {
        let mut progress = self.0.lock();
        if came && matches!(progress.state, State::Idle(_)) {
            progress.state = State::Begun(Instant::now());
        }
        progress.reader = Some(reader.clone());
        match progress.state {
            State::Begun(began) => Ok(Some(began)),
            State::Ended => Err(io::ErrorKind::ConnectionAborted.into()),
            State::Idle(_) | State::Answering(_) => Ok(None),
        }
    }

    fn has_ended(&self) -> bool {
        self.0.lock().state == State::Ended
    }
}

/// See [`Turn::answering`].
#[derive(Debug)]
pub struct Answering(Turn);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut progress = self.0.0.lock();
        match &mut progress.state {
            State::Answering(count) if *count > 1 => *count -= 1,
            State::Answering(_) => progress.state = State::Idle(Instant::now()),
            _ => {}
        }
    }
}

/// The connections of a driver.
///
/// Where all places are taken, a new connection gets the place of the one that has been silent
/// longest, first among those on which no whole request has come. So requests that never end keep
/// no other client from the driver.
#[derive(Debug)]
pub struct Connections {
    turns: Vec<Weak<Mutex<Progress>>>,
    most: usize,
}

impl Connections {
    /// Places for `most` connections.
    pub fn new(most: usize) -> Connections {
        Connections {
            turns: Vec::new(),
            most,
        }
    }

    /// A place for one more; `None` if a request is being answered on each of the others.
    pub fn place(&mut self) -> Option<Turn> {
        self.turns.retain(|turn| turn.strong_count() > 0);
        if self.turns.len() >= self.most {
            let silent = |(at, turn): (usize, &Weak<Mutex<Progress>>)| {
                let turn = Turn(turn.upgrade()?);
                let progress = turn.0.lock();
                let (State::Idle(since) | State::Begun(since)) = progress.state else {
                    return None;
                };
                Some(((progress.asked, since), at))
            };
            let (_, at) = self.turns.iter().enumerate().filter_map(silent).min()?;
            end(&self.turns.swap_remove(at));
            tracing::debug!("a silent connection was closed for a new one");
        }
        let turn = Turn::new();
        self.turns.push(Arc::downgrade(&turn.0));
        Some(turn)
    }
}

/// The driver ends: it need not wait for clients that have asked nothing.
impl Drop for Connections {
    fn drop(&mut self) {
        let mute =
            |turn: &&Weak<Mutex<Progress>>| turn.upgrade().is_some_and(|turn| !turn.lock().asked);
        self.turns.iter().filter(mute).for_each(end);
    }
}

/// Has the connection end.
fn end(turn: &Weak<Mutex<Progress>>) {
    let Some(turn) = turn.upgrade() else { return };
    let reader = {
        let mut progress = turn.lock();
        progress.state = State::Ended;
        progress.reader.take()
    };
    if let Some(reader) = reader {
        reader.wake();
    }
}

/// See the module.
pub struct Timed<S> {
    stream: S,
    turn: Turn,
    limit: Option<Duration>,
    reading: Option<Pin<Box<Sleep>>>,
    writing: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    /// `limit`: for the rest of a request's head once it has begun, for its body, and for each time
    /// that the peer takes nothing. None where the protocol has bytes outside of requests.
    pub fn new(stream: S, turn: Turn, limit: Option<Duration>) -> Timed<S> {
        Timed {
            stream,
            turn,
            limit,
            reading: None,
            writing: None,
        }
    }

    /// How far it is.
    pub fn turn(&self) -> &Turn {
        &self.turn
    }

    /// What a write came to, or that it has waited too long.
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
