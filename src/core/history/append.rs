//! Appends to the journal, and the queue of owed records.

use std::sync::Arc;

use ckptfs_api::Actor;
use ckptfs_store::record::Record;
use ckptfs_store::{Address, Store, StoreError};
use ckptfs_sys::lock::{Mutex, Rank};
use ckptfs_sys::{Errno, SysResult};

/// Returns the wall clock, in nanoseconds since 1970.
pub fn now_ns() -> i64 {
    ckptfs_sys::now().nanoseconds()
}

/// Returns the record of the actor who requested the next record, if known.
pub(super) fn asked(by: Option<&Actor>) -> Vec<Record> {
    let at_ns = now_ns();
    by.map(|actor| Record::By {
        at_ns,
        actor: actor.clone(),
    })
    .into_iter()
    .collect()
}

/// Logs an error of the store and converts it to the errno for the caller.
pub(super) fn fault(error: StoreError) -> Errno {
    tracing::error!(%error, "the store failed");
    error.errno()
}

/// Appends records to the journal, after the owed ones.
pub struct Appender {
    store: Arc<Store>,
    /// Records of past events whose append failed. They precede the next append; recovery handles a
    /// crash before that.
    owed: Mutex<Vec<Record>>,
}

impl Appender {
    pub(super) fn new(store: Arc<Store>) -> Appender {
        Appender {
            store,
            owed: Mutex::ranked(Rank::Owed, Vec::new()),
        }
    }

    /// The store that contains the journal.
    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Appends records that change nothing in memory. On return they survive `kill -9`.
    ///
    /// # Errors
    /// ENOSPC or EIO of the journal; then none of them was appended.
    pub fn append(&self, records: &[Record]) -> SysResult<()> {
        self.write(records).map(drop)
    }

    /// As [`Appender::append`]; returns the address of each record.
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

    /// Appends a record of an event that has already happened. If that fails, the record is owed
    /// and precedes the next append.
    pub fn tell(&self, record: Record) {
        if let Err(errno) = self.append(std::slice::from_ref(&record)) {
            tracing::warn!(%errno, ?record, "what happened cannot be recorded yet");
            self.owed.lock().push(record);
        }
    }
}
