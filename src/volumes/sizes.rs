//! Disk usage of a volume's history. Computing it examines every version, and engines query a
//! volume's status often. It is therefore computed in the background when the checkpoints have
//! changed, and the last result is reported.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

use super::files::write_whole;
use super::mount_facts;
use super::record::{VolumeRecord, now_text};
use super::registry::Registry;
use ckptfs_api::{Client, Code, DuOptions, ErrorContext, ListCheckpoints, VerbResult, error};
use ckptfs_sys::{self as sys, host};

/// Result of a computation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// When it ended: RFC 3339, UTC.
    pub at: String,
    /// Bytes used only by the history.
    pub history_bytes: u64,
    /// Bytes that deleting each checkpoint alone would free, by checkpoint id.
    pub checkpoints: BTreeMap<u64, u64>,
}

impl Sizes {
    /// Returns the last result, if any.
    pub fn load(registry: &Registry, name: &str) -> Option<Sizes> {
        serde_json::from_slice(&fs::read(registry.dirs().sizes(name)).ok()?).ok()
    }

    /// Computes the sizes again, if the volume is mounted and its checkpoints have changed since.
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

/// Returns the bytes in use of a volume with a size; `None` without a size, or if it is not
/// mounted.
pub fn used(registry: &Registry, record: &VolumeRecord) -> Option<u64> {
    record.parsed().ok()?.size?;
    let place = registry.place(record).ok()?;
    mount_facts::is_mounted(&place.backing)
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
