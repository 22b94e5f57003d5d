//! `du`: disk usage of the history by checkpoint.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::api::{StateName, VerbResult};
use super::error;
use super::gc::GarbageCollector;
use super::runs::{PART_TIME, go_on};
use super::space::SpaceUsage;
use crate::history::version_census::Census;
use crate::store::ids::CheckpointId;

/// Options of `du`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DuOptions {
    /// Report only this checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateName>,
    /// Continue the run with this number, from an earlier reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
}

/// Disk usage of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DuOne {
    /// The checkpoint.
    pub id: CheckpointId,
    /// Bytes that freeing only this checkpoint would free.
    pub exclusive_bytes: u64,
    /// Further bytes of its versions, shared with other checkpoints or live files.
    pub shared_bytes: u64,
    /// Number of captured versions that it shows.
    pub versions: u64,
    /// Deleted but not freed yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
}

/// Disk usage of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DuReport {
    /// Number of the run; repeat the request with it until `finished`.
    pub run: u64,
    /// The run is complete.
    pub finished: bool,
    /// Progress.
    pub done: u64,
    /// Value of `done` at the end.
    pub total: u64,
    /// All requested checkpoints, oldest first; set when finished.
    pub checkpoints: Vec<DuOne>,
    /// Bytes that freeing all checkpoints would free, whatever was requested.
    pub history_bytes: u64,
    /// Bytes of versions shared with other files: live ones or other projects. Each byte counts
    /// once.
    #[serde(default)]
    pub outside_bytes: u64,
    /// Bytes that no checkpoint needs; `gc` frees them.
    pub unneeded_bytes: u64,
}

impl GarbageCollector {
    pub(super) fn du_for_a_while(&self, options: &DuOptions) -> VerbResult<DuReport> {
        let until = Instant::now() + PART_TIME;
        let only = options
            .state
            .as_ref()
            .map(|state| self.states.checkpoint_id(state))
            .transpose()?;
        let mut measuring = self
            .du_runs
            .resume(options.run, || Ok(Box::new(self.measuring()?)))?;
        let more = go_on(until, || {
            self.measure_next(&mut measuring)
                .map_err(error::version_unread)
        })?;
        let (done, total) = measuring.progress();
        if more {
            let run = self.du_runs.put(options.run, measuring);
            return Ok(DuReport {
                run,
                done,
                total,
                ..DuReport::default()
            });
        }
        let (census, measured, space) = measuring.finish(self.keeps_extents_whole());
        let hidden: Vec<CheckpointId> = self
            .timeline()
            .catalogue
            .hidden()
            .iter()
            .map(|kept| kept.id)
            .collect();
        let mut report = account(&census, &measured, &space);
        self.serving.upkeep.measured(report.history_bytes);
        report
            .checkpoints
            .retain(|one| only.is_none_or(|only| one.id == only));
        report
            .checkpoints
            .iter_mut()
            .for_each(|one| one.hidden = hidden.contains(&one.id));
        Ok(DuReport {
            run: options.run.unwrap_or(0),
            finished: true,
            done,
            total,
            ..report
        })
    }
}

fn account(census: &Census, measured: &[usize], space: &SpaceUsage) -> DuReport {
    let kept = census.kept.len();
    // Difference array: each range adds at its start and subtracts at its end.
    let mut all = vec![(0_i128, 0_i64); kept + 1];
    let mut gone = Vec::with_capacity(measured.len());
    for (number, at) in measured.iter().enumerate() {
        let by = census
            .versions
            .get(*at)
            .map_or(0..0, |version| version.by.clone());
        gone.push(if by.is_empty() {
            Some(kept)
        } else {
            Some(by.start).filter(|_| by.len() == 1)
        });
        for (edge, sign) in [(by.start, 1), (by.end, -1)] {
            if let Some(sum) = all.get_mut(edge) {
                sum.0 += i128::from(space.all(number)) * i128::from(sign);
                sum.1 += sign;
            }
        }
    }
    // For each checkpoint alone: freeing either of two that share an extent does not free it.
    let exclusive = space.freed_alone(&gone, kept + 1);
    let mut sum = (0_i128, 0_i64);
    let one = |(number, id): (usize, &CheckpointId)| {
        let edge = all.get(number).copied().unwrap_or_default();
        sum = (sum.0 + edge.0, sum.1 + edge.1);
        let exclusive_bytes = exclusive.get(number).copied().unwrap_or(0);
        let shared_bytes = u64::try_from(sum.0)
            .unwrap_or(0)
            .saturating_sub(exclusive_bytes);
        DuOne {
            id: *id,
            exclusive_bytes,
            shared_bytes,
            versions: u64::try_from(sum.1).unwrap_or(0),
            hidden: false,
        }
    };
    let checkpoints = census.kept.iter().enumerate().map(one).collect();
    DuReport {
        checkpoints,
        history_bytes: space.freed_with_all(measured.len()),
        outside_bytes: space.outside(),
        unneeded_bytes: exclusive.get(kept).copied().unwrap_or(0),
        ..DuReport::default()
    }
}
