//! What a worker leaves to the one that takes over: see `takeover`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use crate::store::ids::Slot;
use crate::sys::lock::Mutex;
use crate::sys::{Ledger, ROW_WORDS, RowId};

/// Rows of files that may be written to without a request: slot, mappable.
const HOT: u64 = 2;
/// Rows of exchanges: request, inode at the first name, inode at the second.
const EXCHANGE: u64 = 4;
/// Exchanges that are remembered: more than requests can be under way.
const EXCHANGES_MAX: usize = 256;

/// Which request of the kernel an operation serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Its number; 0: none.
    pub request: u64,
    /// It was given to a worker that has died: it may have been done.
    pub again: bool,
    /// User and group that ask: a whiteout is theirs.
    pub owner: (u32, u32),
}

/// Holds descriptors for as long as this process may die. It never waits, and does what it can.
pub trait Keeper: Send + Sync {
    /// Holds `fd` under the number of its inode.
    fn keep(&self, number: u64, fd: BorrowedFd<'_>);
    /// Lets go of it.
    fn let_go(&self, number: u64);
}

/// Descriptors that a keeper held: of inodes that had no name.
pub type Orphans = HashMap<u64, OwnedFd>;

/// What is left, in a ledger and with a keeper that outlive this worker.
pub struct Legacy {
    ledger: Arc<Ledger>,
    keeper: Arc<dyn Keeper>,
    /// What the keeper holds.
    kept: Mutex<HashSet<Slot>>,
    hot: Mutex<HashMap<Slot, RowId>>,
    exchanges: Mutex<VecDeque<RowId>>,
}

impl Legacy {
    /// That of a worker: empty, or what the one before left.
    pub fn new(ledger: Arc<Ledger>, keeper: Arc<dyn Keeper>) -> Legacy {
        Legacy {
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

/// A file that the worker before left as hot.
pub(super) struct LeftHot {
    pub(super) slot: Slot,
    /// It is not known to be hot yet: whether it may be mapped.
    pub(super) mappable: Option<bool>,
    /// Somebody may have it open past the mount.
    pub(super) past_mount: bool,
}

/// The legacy, once there is somebody to take over; until then nothing is left.
#[derive(Default)]
pub struct Handover(OnceLock<Legacy>);

impl Handover {
    /// From now on there is somebody to take over.
    pub fn hand_over(&self, legacy: Legacy) {
        let _ = self.0.set(legacy);
    }

    /// The file is hot, as the next worker shall know.
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

    /// It is so no longer.
    pub(super) fn leave_cold(&self, slot: Slot) {
        let Some(legacy) = self.0.get() else { return };
        if let Some(row) = legacy.hot.lock().remove(&slot) {
            legacy.ledger.remove(row);
        }
    }

    /// An inode without a name is held while this worker may die.
    pub(super) fn keep(&self, slot: Slot, held: &OwnedFd) {
        let Some(legacy) = self.0.get() else { return };
        legacy.kept.lock().insert(slot);
        legacy.keeper.keep(slot.0, held.as_fd());
    }

    /// The keeper holds it already.
    pub(super) fn note_kept(&self, slot: Slot) {
        if let Some(legacy) = self.0.get() {
            legacy.kept.lock().insert(slot);
        }
    }

    /// The keeper holds this inode.
    pub(super) fn keeps(&self, slot: Slot) -> bool {
        self.0
            .get()
            .is_some_and(|legacy| legacy.kept.lock().contains(&slot))
    }

    /// Nobody needs to hold the inode any more.
    pub(super) fn let_go(&self, slot: Slot) {
        let Some(legacy) = self.0.get() else { return };
        legacy.kept.lock().remove(&slot);
        legacy.keeper.let_go(slot.0);
    }

    /// Two inodes are about to change places: whether they have cannot be told from the names.
    pub(super) fn leave_exchange(&self, turn: Turn, source: Slot, target: Slot) {
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

    /// The inode that an exchange of this turn, if it was begun, was to bring to the first name.
    pub(super) fn exchange_begun(&self, turn: Turn) -> Option<Slot> {
        let rows = self.0.get()?.ledger.rows();
        let begun = rows
            .into_iter()
            .find(|row| row.kind == EXCHANGE && row.words.first() == Some(&turn.request))?;
        begun.words.get(2).copied().map(Slot)
    }

    /// Takes over what the worker before left in the ledger, with `hot` for each of its hot files.
    pub(super) fn adopt(&self, orphans: &Orphans, hot: impl Fn(LeftHot)) {
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
                    hot(LeftHot {
                        slot,
                        mappable: unknown.then_some(mappable != 0),
                        past_mount: past_mount != 0,
                    });
                }
                EXCHANGE => legacy.exchanges.lock().push_back(row.id),
                _ => {}
            }
        }
        // What no handle is open of any more was closed while nobody could tell the keeper.
        let kept = legacy.kept.lock().clone();
        orphans
            .keys()
            .filter(|number| !kept.contains(&Slot(**number)))
            .for_each(|number| legacy.keeper.let_go(*number));
    }
}
