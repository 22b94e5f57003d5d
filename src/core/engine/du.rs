//! `du`: disk usage of the history by checkpoint.

use std::time::Instant;

use super::error;
use super::gc::GarbageCollector;
use super::runs::{PART_TIME, go_on};
use super::space::SpaceUsage;
use crate::history::version_census::Census;
use ckptfs_api::{CheckpointId, DuOne, DuOptions, DuReport, VerbResult};

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
