//! Long work that is done a part at a time: whoever asked gets a part of the answer and asks again,
//! and who stops asking stops it.

use super::api::{VerbError, VerbResult};
use crate::sys::lock::Mutex;

/// Runs that may be under way at once; of more, the oldest is given up.
const RUNS_MAX: usize = 4;

/// Runs that are under way. A leaf: each is taken out to be worked on.
pub(super) struct Runs<T>(Mutex<UnderWay<T>>);

struct UnderWay<T> {
    /// Number of the newest.
    last: u64,
    runs: Vec<(u64, T)>,
}

impl<T> Default for Runs<T> {
    fn default() -> Runs<T> {
        Runs(Mutex::new(UnderWay {
            last: 0,
            runs: Vec::new(),
        }))
    }
}

impl<T> Runs<T> {
    pub(super) fn take(&self, number: u64) -> VerbResult<T> {
        let mut under_way = self.0.lock();
        let at = under_way
            .runs
            .iter()
            .position(|(known, _)| *known == number)
            .ok_or_else(|| VerbError {
                code: "unknown-run".into(),
                message: "the daemon does not know this run any more; what it has done is done"
                    .into(),
                hint: Some("begin again".into()),
            })?;
        Ok(under_way.runs.remove(at).1)
    }

    pub(super) fn put(&self, number: Option<u64>, run: T) -> u64 {
        let mut under_way = self.0.lock();
        let number = number.unwrap_or(under_way.last + 1);
        under_way.last = under_way.last.max(number);
        if under_way.runs.len() >= RUNS_MAX {
            under_way.runs.remove(0);
        }
        under_way.runs.push((number, run));
        number
    }
}
