//! Writing to the journal, and what the journal is owed.

use std::sync::Arc;

use crate::store::record::{Actor, Record};
use crate::store::{Address, Store, StoreError};
use crate::sys::lock::{Mutex, Rank};
use crate::sys::{Errno, SysResult};

/// Wall clock, nanoseconds since 1970.
pub fn now_ns() -> i64 {
    crate::sys::now().nanoseconds()
}

/// The record of who asked for what the next one says, if that is known.
pub(super) fn asked(by: Option<&Actor>) -> Vec<Record> {
    let at_ns = now_ns();
    by.map(|actor| Record::By {
        at_ns,
        actor: actor.clone(),
    })
    .into_iter()
    .collect()
}

/// Errors of the store as the kernel shall see them; each is logged where it happens.
pub(super) fn fault(error: StoreError) -> Errno {
    tracing::error!(%error, "the store failed");
    error.errno()
}

/// Appends records to the journal, behind those that it is owed.
pub struct Appender {
    store: Arc<Store>,
    /// Records that could not be appended when what they tell happened: they go before the next
    /// ones. A crash before that is found by recovery.
    owed: Mutex<Vec<Record>>,
}

impl Appender {
    pub(super) fn new(store: Arc<Store>) -> Appender {
        Appender {
            store,
            owed: Mutex::ranked(Rank::Owed, Vec::new()),
        }
    }

    /// The store that the journal is in.
    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Appends records that change nothing in memory. When it returns they survive `kill -9`.
    ///
    /// # Errors
    /// ENOSPC or EIO of the journal; then none of them was appended.
    pub fn append(&self, records: &[Record]) -> SysResult<()> {
        self.write(records).map(drop)
    }

    /// As [`Appender::append`]; says where each is.
    pub(super) fn write(&self, records: &[Record]) -> SysResult<Vec<Address>> {
        let append = |records: &[Record]| self.store.append(records).map_err(fault);
        let mut owed = self.owed.lock();
        if owed.is_empty() {
            drop(owed);
            return append(records);
        }
        let all = [owed.as_slice(), records].concat();
        let addresses = append(&all)?;
        let before = owed.len();
        owed.clear();
        Ok(addresses.into_iter().skip(before).collect())
    }

    /// Appends a record of what is so already: where that fails, it is owed, and goes before
    /// whatever is appended next.
    pub fn tell(&self, record: Record) {
        if let Err(errno) = self.append(std::slice::from_ref(&record)) {
            tracing::warn!(%errno, ?record, "what happened cannot be recorded yet");
            self.owed.lock().push(record);
        }
    }
}
