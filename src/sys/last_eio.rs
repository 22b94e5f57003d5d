//! The system call that last failed with EIO on this thread: the origin of an EIO reported to a
//! client.

use std::cell::Cell;

use super::fault::CallKind;
use super::types::Errno;

thread_local! {
    static FAILED: Cell<Option<CallKind>> = const { Cell::new(None) };
}

/// Records a failed call.
pub(super) fn note(call: CallKind, errno: Errno) {
    if errno == Errno::EIO {
        FAILED.set(Some(call));
    }
}

/// Returns and resets the last call that failed with EIO.
pub fn take() -> Option<CallKind> {
    FAILED.take()
}
