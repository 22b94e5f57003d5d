//! The last `gc`, the last pushes, and the size of the history.
//!
//! In memory, since the start of the daemon. The operations also have the last push, because the
//! newest checkpoint in a remote is pinned ([`ckptfs_api::push_pin`]).

use std::collections::BTreeMap;

use crate::history::append::now_ns;
use ckptfs_api::{MeasuredInfo, PushInfo};
use ckptfs_sys::lock::Mutex;

/// See the module.
#[derive(Default)]
pub(super) struct Upkeep {
    pub(super) done: Mutex<Done>,
}

#[derive(Clone, Default)]
pub(super) struct Done {
    pub(super) measured: Option<MeasuredInfo>,
    pub(super) gc: Option<String>,
    /// By name of the remote; `None`: not read from the operations yet.
    pub(super) pushes: Option<BTreeMap<String, PushInfo>>,
}

impl Upkeep {
    /// Records the size of the history.
    pub(super) fn measured(&self, bytes: u64) {
        let at = rfc3339(now_ns());
        self.done.lock().measured = Some(MeasuredInfo { bytes, at });
    }

    /// Records the end of a `gc` run.
    pub(super) fn collected(&self, history_bytes: u64) {
        self.measured(history_bytes);
        self.done.lock().gc = Some(rfc3339(now_ns()));
    }
}

pub(super) fn rfc3339(at_ns: i64) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(at_ns));
    time.map(|time| time.to_string()).unwrap_or_default()
}
