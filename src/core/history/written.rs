//! Look-ups in the last baseline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ckptfs_store::Store;
use ckptfs_store::baseline::{Baseline, BaselineNode};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_sys::lock::Mutex;

/// How long an open baseline is used; it may have been replaced.
const OPEN_TIME: Duration = Duration::from_secs(1);

/// The last baseline. See the module.
pub struct BaselineCache {
    store: Arc<Store>,
    /// A leaf lock.
    open: Mutex<Option<(Instant, Option<Arc<Baseline>>)>>,
}

impl BaselineCache {
    pub(super) fn new(store: Arc<Store>) -> BaselineCache {
        BaselineCache {
            store,
            open: Mutex::default(),
        }
    }

    /// Returns the target of a name in a directory; `None` if unknown.
    pub(super) fn at(&self, dir: Slot, name: &Name) -> Option<BaselineNode> {
        let open = self.open.lock().clone();
        let found = match open.filter(|(since, _)| since.elapsed() <= OPEN_TIME) {
            Some((_, found)) => found,
            None => {
                let found = Baseline::open_any(&self.store.layout).ok().flatten();
                let found = found.map(Arc::new);
                *self.open.lock() = Some((Instant::now(), found.clone()));
                found
            }
        };
        found?.at(dir, name).ok().flatten()
    }
}
