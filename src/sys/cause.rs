//! Which system call has failed with EIO on this thread: where an EIO that a client gets comes from.

use std::cell::Cell;

use super::fault::Call;
use super::types::Errno;

thread_local! {
    static FAILED: Cell<Option<Call>> = const { Cell::new(None) };
}

/// A call has failed with this.
pub(super) fn note(call: Call, errno: Errno) {
    if errno == Errno::EIO {
        FAILED.set(Some(call));
    }
}

/// The call that failed last since this was last asked.
pub fn take() -> Option<Call> {
    FAILED.take()
}
