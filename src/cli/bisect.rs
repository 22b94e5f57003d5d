//! `ckptfs bisect`: finds the first checkpoint in which a test fails, by running the test at one
//! checkpoint after another.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Stdio;

use serde::Serialize;

use super::launch;
use super::run::{execute, shown};
use ckptfs_api::{
    CheckpointId, CheckpointInfo, Code, Query, ShowCheckpoint, StateName, VerbError, VerbResult,
};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Failure, Outcome, error, hinted};
use ckptfs_ui::locate;

/// Exit status of a test that cannot decide.
const SKIP_STATUS: u8 = 125;
/// The highest status that means bad. A higher one ends the search; `run` uses these to report that
/// it could not show the past.
const BAD_STATUS_MAX: u8 = 127;

/// Find the first checkpoint in which a test fails
///
/// Runs TEST in the tree of one checkpoint after another, with all files, including ignored and
/// untracked ones. Exit status 0 of TEST means good, 125 untestable, any other up to 127 bad; a
/// higher one ends the search. The output of TEST goes to stderr.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A checkpoint in which TEST succeeds
    #[arg(value_name = "GOOD")]
    good: String,
    /// A later checkpoint in which it fails
    #[arg(value_name = "BAD")]
    bad: String,
    /// Append each step to this file, as a line of JSON
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The test and its arguments
    #[arg(
        value_name = "TEST",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    test: Vec<OsString>,
}

/// Result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Good,
    Bad,
    Skip,
}

#[derive(Clone, Debug, Serialize)]
struct TestedCheckpoint {
    id: CheckpointId,
    status: u8,
    result: Verdict,
}

#[derive(Serialize)]
struct BisectReport<'a> {
    /// The first bad checkpoint; absent if skipped checkpoints leave several candidates.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_bad: Option<&'a CheckpointInfo>,
    /// Candidates for the first bad checkpoint, oldest first.
    candidates: Vec<CheckpointId>,
    steps: &'a [TestedCheckpoint],
}

/// State of the search in a row of checkpoints, the first of which is good and the last bad.
#[derive(Debug)]
struct Search {
    length: usize,
    /// Indices of the last checkpoint that tested good and of the first that tested bad.
    good: usize,
    bad: usize,
    skipped: BTreeSet<usize>,
}

impl Search {
    fn new(length: usize) -> Search {
        Search {
            length,
            good: 0,
            bad: length.saturating_sub(1),
            skipped: BTreeSet::new(),
        }
    }

    /// Returns the untested index nearest to the middle, skipped ones excluded; `None` when the
    /// search is finished.
    fn next(&self) -> Option<usize> {
        let middle = self.good + (self.bad - self.good) / 2;
        let between = self.good + 1..self.bad;
        between
            .filter(|index| !self.skipped.contains(index))
            .min_by_key(|index| (index.abs_diff(middle), *index))
    }

    fn tried(&mut self, index: usize, verdict: Verdict) {
        match verdict {
            Verdict::Good => self.good = index,
            Verdict::Bad => self.bad = index,
            Verdict::Skip => {
                self.skipped.insert(index);
            }
        }
    }

    /// Returns the candidates for the first bad checkpoint: one, unless checkpoints were skipped.
    fn candidates(&self) -> std::ops::RangeInclusive<usize> {
        self.good + 1..=self.bad.min(self.length.saturating_sub(1))
    }

    /// Estimates the number of remaining tests.
    fn left(&self) -> u32 {
        (self.bad - self.good).max(1).ilog2()
    }
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let row = row(&args, &mut served)?;
    let mut log = args.log.as_ref().map(|path| open_log(path)).transpose()?;
    let mut search = Search::new(row.len());
    let mut steps = Vec::new();
    for (end, said, wanted) in [
        (row.first(), &args.good, Verdict::Good),
        (row.last(), &args.bad, Verdict::Bad),
    ] {
        let Some(checkpoint) = end else { break };
        let step = try_one(checkpoint.id, &args, &served)?;
        note(log.as_mut(), &step)?;
        if step.result != wanted {
            return Err(not_as_said(said, &step, wanted).into());
        }
        context
            .out
            .talk(&format!("checkpoint {} is {}", step.id, word(step.result)));
        steps.push(step);
    }
    while let Some(index) = search.next() {
        let Some(checkpoint) = row.get(index) else {
            break;
        };
        let left = search.left();
        context.out.talk(&format!(
            "checkpoint {}: {} between, about {left} more to try",
            checkpoint.id,
            search.bad - search.good - 1
        ));
        let step = try_one(checkpoint.id, &args, &served)?;
        note(log.as_mut(), &step)?;
        context
            .out
            .talk(&format!("checkpoint {} is {}", step.id, word(step.result)));
        search.tried(index, step.result);
        steps.push(step);
    }
    tell(&row, &search, &steps, context)
}

fn note(log: Option<&mut std::fs::File>, step: &TestedCheckpoint) -> VerbResult<()> {
    let Some(log) = log else { return Ok(()) };
    let line =
        serde_json::to_string(step).map_err(|cause| error(Code::Internal, cause.to_string()))?;
    writeln!(log, "{line}").on("the log")
}

/// Returns the error for an end of the range whose test contradicts the command line: the search
/// would be meaningless.
fn not_as_said(said: &str, step: &TestedCheckpoint, wanted: Verdict) -> VerbError {
    let (id, is) = (
        step.id,
        if step.result == Verdict::Skip {
            "cannot be tested"
        } else {
            word(step.result)
        },
    );
    let message = format!(
        "{said:?} (checkpoint {id}) was said to be {}, but is {is}: the test exited with status {} there",
        word(wanted),
        step.status
    );
    hinted(
        Code::NotAsSaid,
        message,
        "try the test alone: ckptfs run --at ID -- TEST",
    )
}

/// Returns the checkpoints from the good one to the bad one, oldest first, without the guards and
/// marks between them.
fn row(args: &Args, served: &mut locate::ServedTree) -> VerbResult<Vec<CheckpointInfo>> {
    let mut end = |name: &str| {
        served.client.ask(ShowCheckpoint {
            state: StateName(name.to_owned()),
        })
    };
    let (good, bad) = (end(&args.good)?, end(&args.bad)?);
    if good.id >= bad.id {
        let message = format!(
            "checkpoint {} (good) is not older than {} (bad)",
            good.id, bad.id
        );
        return Err(hinted(
            Code::BadRange,
            message,
            "name the good one first; to find what fixed something, let TEST fail where it is fixed",
        ));
    }
    let mut row = served.client.ask(Query::default())?;
    let ends = [good.id, bad.id];
    row.retain(|one| {
        ends.contains(&one.id)
            || (good.id..bad.id).contains(&one.id) && !one.reason.is_guard_or_mark()
    });
    row.reverse();
    Ok(row)
}

/// Runs the test at one checkpoint.
fn try_one(
    id: CheckpointId,
    args: &Args,
    served: &locate::ServedTree,
) -> Result<TestedCheckpoint, Failure> {
    let mut command: Vec<OsString> = vec![
        launch::program().into(),
        "-C".into(),
        served.cwd.clone().into(),
    ];
    command.extend([
        "run".into(),
        "--bisecting".into(),
        "--at".into(),
        id.to_string().into(),
        "--".into(),
    ]);
    command.extend(args.test.iter().cloned());
    let stderr = std::io::stderr()
        .as_fd()
        .try_clone_to_owned()
        .on("stderr")?;
    let status = execute(&command, std::path::Path::new("/"), |command| {
        command.stdout(Stdio::from(stderr));
    })?
    .code();
    let result = match status {
        0 => Verdict::Good,
        SKIP_STATUS => Verdict::Skip,
        1..=BAD_STATUS_MAX => Verdict::Bad,
        _ => {
            let message = format!(
                "{} exited with status {status} in checkpoint {id}, which ends the search",
                shown(&args.test)
            );
            return Err(hinted(
                Code::TestAborted,
                message,
                "0 means good, 125 cannot tell, anything else up to 127 means bad",
            )
            .into());
        }
    };
    Ok(TestedCheckpoint { id, status, result })
}

fn tell(
    row: &[CheckpointInfo],
    search: &Search,
    steps: &[TestedCheckpoint],
    context: &mut Context,
) -> Outcome {
    let candidates: Vec<&CheckpointInfo> = search
        .candidates()
        .filter_map(|index| row.get(index))
        .collect();
    let first_bad = match candidates.as_slice() {
        [one] => Some(*one),
        _ => None,
    };
    let out = &mut context.out;
    if out.json {
        out.json(&BisectReport {
            first_bad,
            candidates: candidates.iter().map(|found| found.id).collect(),
            steps,
        })?;
    } else if let Some(first_bad) = first_bad {
        ckptfs_ui::listing::print_checkpoints(std::slice::from_ref(first_bad), out)?;
        let before = search.good;
        if let Some(before) = row.get(before) {
            out.talk(&format!(
                "checkpoint {} is the first bad one; what changed: ckptfs diff {} {}",
                first_bad.id, before.id, first_bad.id
            ));
        }
    } else {
        let all: Vec<CheckpointInfo> = candidates.into_iter().cloned().collect();
        ckptfs_ui::listing::print_checkpoints(&all, out)?;
        out.talk("the test could not tell which of these is the first bad one");
    }
    if first_bad.is_some() {
        Ok(())
    } else {
        Err(Failure::No)
    }
}

fn open_log(path: &std::path::Path) -> VerbResult<std::fs::File> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .on(path.display())
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "good",
        Verdict::Bad => "bad",
        Verdict::Skip => "skipped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each search, in rows of every length, must find the first bad checkpoint in about log2
    /// steps.
    #[test]
    fn the_first_bad_one_is_found_in_few_steps() {
        for length in 2..70_usize {
            for first_bad in 1..length {
                let (mut search, mut steps) = (Search::new(length), 0);
                while let Some(index) = search.next() {
                    search.tried(
                        index,
                        if index < first_bad {
                            Verdict::Good
                        } else {
                            Verdict::Bad
                        },
                    );
                    steps += 1;
                }
                assert_eq!(
                    search.candidates(),
                    first_bad..=first_bad,
                    "{length} {first_bad}"
                );
                assert!(steps <= length.ilog2() + 1, "{steps} of {length}");
            }
        }
    }

    #[test]
    fn what_cannot_be_told_leaves_all_that_it_may_be() {
        let mut search = Search::new(9);
        while let Some(index) = search.next() {
            search.tried(
                index,
                if (3..6).contains(&index) {
                    Verdict::Skip
                } else if index < 3 {
                    Verdict::Good
                } else {
                    Verdict::Bad
                },
            );
        }
        assert_eq!(search.candidates(), 3..=6);
    }
}
