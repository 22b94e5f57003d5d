//! Whether whoever asked for what this thread does still wants it.
//!
//! A restore is asked for on a connection and done by the thread that serves it. Before it changes anything it looks whether its asker has given it up,
//! or is gone; from then on it is finished, whoever waits for it.

use std::cell::RefCell;
use std::time::Duration;

use super::Engine;
use super::api::{VerbError, VerbResult};
use crate::sys::lock::MutexGuard;

/// How often somebody who waits for his turn looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(5);

type GivenUp = Box<dyn Fn() -> bool>;

thread_local! {
    static GIVEN_UP: RefCell<Option<GivenUp>> = const { RefCell::new(None) };
}

/// Does something that ends early, with nothing changed, once `given_up` says so.
pub fn while_wanted<T>(given_up: impl Fn() -> bool + 'static, act: impl FnOnce() -> T) -> T {
    /// A panic on the way leaves nothing behind.
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            GIVEN_UP.with_borrow_mut(Option::take);
        }
    }
    GIVEN_UP.with_borrow_mut(|slot| *slot = Some(Box::new(given_up)));
    let _clear = Clear;
    act()
}

/// # Errors
/// `cancelled`: nobody wants it any more.
pub(super) fn still_wanted() -> VerbResult<()> {
    if GIVEN_UP.with_borrow(|slot| slot.as_ref().is_some_and(|given_up| given_up())) {
        return Err(VerbError { code: CANCELLED.into(), message: "it was cancelled before anything was changed".into(), hint: None });
    }
    Ok(())
}

/// The code of that.
pub const CANCELLED: &str = "cancelled";

impl Engine {
    /// Waits until no checkpoint and no restore is being made, as long as it is wanted.
    pub(super) fn wait_turn(&self) -> VerbResult<MutexGuard<'_, ()>> {
        loop {
            still_wanted()?;
            if let Some(turn) = self.checkpointing.try_lock() {
                return Ok(turn);
            }
            std::thread::sleep(LOOK);
        }
    }
}
