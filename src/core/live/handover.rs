//! State that a worker leaves to the one that takes over: see `takeover`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use ckptfs_store::ids::Slot;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{Ledger, ROW_WORDS, RowId};

/// Ledger rows of hot files: slot, mappable, open through the backing directory.
const HOT: u64 = 2;
/// Ledger rows of exchanges: request, inode at the first name, inode at the second.
const EXCHANGE: u64 = 4;
/// Number of exchanges kept, above the number of concurrent requests.
const EXCHANGES_MAX: usize = 256;

/// Identity of the kernel request that an operation serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelRequest {
    /// Request number; 0 if the operation serves no request.
    pub request: u64,
    /// The request was sent to a worker that died before: it may have been carried out.
    pub again: bool,
    /// User and group of the caller, which also own a whiteout.
    pub owner: (u32, u32),
}

/// Process that keeps descriptors open in case this one dies. Its methods never block, and failures
/// are ignored.
pub trait FdKeeper: Send + Sync {
    /// Keeps `fd` open under the number of its inode.
    fn keep(&self, number: u64, fd: BorrowedFd<'_>);
    /// Closes that descriptor.
    fn let_go(&self, number: u64);
}

/// Descriptors of unlinked inodes from a keeper, by inode number.
pub type KeptFds = HashMap<u64, OwnedFd>;

/// Handover state, in a ledger and in a keeper that outlive this worker.
pub struct HandoverState {
    ledger: Arc<Ledger>,
    keeper: Arc<dyn FdKeeper>,
    /// Inodes that the keeper has descriptors of.
    kept: Mutex<HashSet<Slot>>,
    hot: Mutex<HashMap<Slot, RowId>>,
    exchanges: Mutex<VecDeque<RowId>>,
}

impl HandoverState {
    /// Creates the state of a worker; the ledger is empty, or has the rows of the previous worker.
    pub fn new(ledger: Arc<Ledger>, keeper: Arc<dyn FdKeeper>) -> HandoverState {
        HandoverState {
            ledger,
            keeper,
            kept: Mutex::default(),
            hot: Mutex::default(),
            exchanges: Mutex::default(),
        }
    }
}

fn words<const N: usize>(some: [u64; N]) -> [u64; ROW_WORDS] {
    std::array::from_fn(|at| some.get(at).copied().unwrap_or(0))
}

/// A hot file of the previous worker.
pub(super) struct HandedHotFile {
    pub(super) slot: Slot,
    /// Whether it may be mapped; `None` if it is already in the table of hot files or its inode is
    /// unlinked.
    pub(super) mappable: Option<bool>,
    /// A process may have it open through the backing directory.
    pub(super) past_mount: bool,
}

/// The handover state. Without a holder it is empty and nothing is recorded.
#[derive(Default)]
pub struct HandoverLog(OnceLock<HandoverState>);

impl HandoverLog {
    /// Starts recording, once a holder exists.
    pub fn hand_over(&self, legacy: HandoverState) {
        let _ = self.0.set(legacy);
    }

    /// Records a hot file for the next worker.
    pub(super) fn leave_hot(&self, slot: Slot, mappable: bool, past_mount: bool) {
        let Some(legacy) = self.0.get() else { return };
        let mut rows = legacy.hot.lock();
        if let Some(row) = legacy.ledger.put(
            HOT,
            words([slot.0, u64::from(mappable), u64::from(past_mount)]),
        ) && let Some(before) = rows.insert(slot, row)
        {
            legacy.ledger.remove(before);
        }
    }

    /// Removes a file that is no longer hot.
    pub(super) fn leave_cold(&self, slot: Slot) {
        let Some(legacy) = self.0.get() else { return };
        if let Some(row) = legacy.hot.lock().remove(&slot) {
            legacy.ledger.remove(row);
        }
    }

    /// Passes the descriptor of an unlinked inode to the keeper.
    pub(super) fn keep(&self, slot: Slot, held: &OwnedFd) {
        let Some(legacy) = self.0.get() else { return };
        legacy.kept.lock().insert(slot);
        legacy.keeper.keep(slot.0, held.as_fd());
    }

    /// Records that the keeper already has a descriptor of the inode.
    pub(super) fn note_kept(&self, slot: Slot) {
        if let Some(legacy) = self.0.get() {
            legacy.kept.lock().insert(slot);
        }
    }

    /// Returns whether the keeper has a descriptor of the inode.
    pub(super) fn keeps(&self, slot: Slot) -> bool {
        self.0
            .get()
            .is_some_and(|legacy| legacy.kept.lock().contains(&slot))
    }

    /// The keeper closes its descriptor of the inode.
    pub(super) fn let_go(&self, slot: Slot) {
        let Some(legacy) = self.0.get() else { return };
        legacy.kept.lock().remove(&slot);
        legacy.keeper.let_go(slot.0);
    }

    /// Records two inodes that are about to be exchanged. Their names do not show whether the
    /// exchange was carried out.
    pub(super) fn leave_exchange(&self, turn: KernelRequest, source: Slot, target: Slot) {
        let Some(legacy) = self.0.get() else { return };
        let mut rows = legacy.exchanges.lock();
        rows.extend(
            legacy
                .ledger
                .put(EXCHANGE, words([turn.request, source.0, target.0])),
        );
        if rows.len() > EXCHANGES_MAX
            && let Some(oldest) = rows.pop_front()
        {
            legacy.ledger.remove(oldest);
        }
    }

    /// Returns the inode that the exchange of this request was to move to the first name, if the
    /// exchange was begun.
    pub(super) fn exchange_begun(&self, turn: KernelRequest) -> Option<Slot> {
        let rows = self.0.get()?.ledger.rows();
        let begun = rows
            .into_iter()
            .find(|row| row.kind == EXCHANGE && row.words.first() == Some(&turn.request))?;
        begun.words.get(2).copied().map(Slot)
    }

    /// Adopts the ledger of the previous worker, and calls `hot` for each of its hot files.
    pub(super) fn adopt(&self, orphans: &KeptFds, hot: impl Fn(HandedHotFile)) {
        let Some(legacy) = self.0.get() else { return };
        for row in legacy.ledger.rows() {
            let [number, mappable, past_mount, ..] = row.words;
            match row.kind {
                HOT => {
                    let slot = Slot(number);
                    let known = legacy.hot.lock().get(&slot).copied();
                    if known == Some(row.id) {
                        continue;
                    }
                    legacy.ledger.remove(row.id);
                    let unknown = known.is_none() && !orphans.contains_key(&number);
                    hot(HandedHotFile {
                        slot,
                        mappable: unknown.then_some(mappable != 0),
                        past_mount: past_mount != 0,
                    });
                }
                EXCHANGE => legacy.exchanges.lock().push_back(row.id),
                _ => {}
            }
        }
        // Handles closed while no worker could notify the keeper: their inodes need no descriptor.
        let kept = legacy.kept.lock().clone();
        orphans
            .keys()
            .filter(|number| !kept.contains(&Slot(**number)))
            .for_each(|number| legacy.keeper.let_go(*number));
    }
}
