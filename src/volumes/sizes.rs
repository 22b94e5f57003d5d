//! What the history of a volume takes. To count it costs a look at every version, and engines ask
//! for a volume's state at each turn: so it is counted beside, when the checkpoints are others than
//! at the last time, and what was found then is told.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

use super::error::{On, error};
use super::facts;
use super::files::write_whole;
use super::record::{Record, now_text};
use super::registry::Registry;
use crate::control::Client;
use crate::engine::api::{Code, DuOptions, ListCheckpoints, VerbResult};
use crate::sys::{self, host};

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// When the counting ended: RFC 3339, UTC.
    pub at: String,
    /// Bytes that only the history holds.
    pub history_bytes: u64,
    /// Bytes that deleting each checkpoint alone would free, by its number.
    pub checkpoints: BTreeMap<u64, u64>,
}

impl Sizes {
    /// What was counted last, if anything was.
    pub fn load(registry: &Registry, name: &str) -> Option<Sizes> {
        serde_json::from_slice(&fs::read(registry.dirs().sizes(name)).ok()?).ok()
    }

    /// Counts again, if the volume is mounted and has other checkpoints than when it was counted
    /// last.
    pub(super) fn renew(registry: &Registry, name: &str) -> VerbResult<()> {
        let Ok(record) = registry.get(name) else {
            return Ok(());
        };
        let Some(mut client) = registry.history(&record)?.daemon() else {
            return Ok(());
        };
        let kept: Vec<u64> = client
            .ask(ListCheckpoints)?
            .iter()
            .map(|checkpoint| checkpoint.id.0)
            .rev()
            .collect();
        let known = Sizes::load(registry, name)
            .map(|sizes| sizes.checkpoints.into_keys().collect::<Vec<u64>>());
        if known.unwrap_or_default() == kept {
            return Ok(());
        }
        let sizes = Sizes::counted(&mut client)?;
        let text =
            serde_json::to_vec(&sizes).map_err(|cause| error(Code::Internal, cause.to_string()))?;
        let path = registry.dirs().sizes(name);
        write_whole(&path, &text).on(path.display())
    }

    fn counted(client: &mut Client) -> VerbResult<Sizes> {
        let mut options = DuOptions::default();
        loop {
            let report = client.ask(options.clone())?;
            if report.finished {
                let shown = report.checkpoints.iter().filter(|one| !one.hidden);
                let checkpoints = shown.map(|one| (one.id.0, one.exclusive_bytes)).collect();
                return Ok(Sizes {
                    at: now_text(),
                    history_bytes: report.history_bytes,
                    checkpoints,
                });
            }
            options.run = Some(report.run);
        }
    }
}

/// The bytes that a volume with a size takes now; `None`: it has none, or is not mounted.
pub fn used(registry: &Registry, record: &Record) -> Option<u64> {
    record.parsed().ok()?.size?;
    let place = registry.place(record).ok()?;
    facts::is_mounted(&place.backing)
        .ok()
        .filter(|mounted| *mounted)?;
    let info = host::open_dir_path(&place.backing)
        .and_then(sys::statfs_fd)
        .ok()?;
    Some(
        info.blocks
            .saturating_sub(info.bfree)
            .saturating_mul(info.frsize.into()),
    )
}
