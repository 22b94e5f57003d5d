//! Runs the scenarios in all columns in turn, and ends steps that hang.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::mount::abort;
use crate::lanes::{Column, Lane};
use crate::options::Options;
use crate::place::{CpuAffinity, Placement};
use crate::requests::Tracer;
use crate::results::{Cell, Results, Row, shown};
use crate::workload::{BenchEnv, Scenario, Workload};

/// Time limit of a step, longer than any workload needs.
const STEP_SECONDS: u64 = 300;
const QUICK_ROUNDS: usize = 1;

/// The context of a run of scenarios.
pub struct Runner<'a> {
    pub options: &'a Options,
    pub places: CpuAffinity,
    pub tracer: Option<Tracer>,
}

impl Runner<'_> {
    pub fn run(
        &self,
        world: &mut BenchEnv<'_>,
        scenario: &'static Scenario,
        results: &mut Results,
    ) {
        let guard = Watchdog::start(world);
        let fs = world.image.fs().name();
        if let Some(reason) = (scenario.missing)(world.fixtures) {
            eprintln!("{fs}: without {}: {reason}", scenario.name);
            return;
        }
        eprintln!("{fs}: {}", scenario.title);
        self.places.enter(Placement::Unpinned, &daemons(world));
        for lane in &world.lanes {
            guard.step();
            (scenario.setup)(world, lane);
        }
        let rounds = if self.options.quick {
            QUICK_ROUNDS
        } else {
            scenario.rounds
        };
        let rounds = self.options.rounds.unwrap_or(rounds);
        for round in 0..rounds {
            world.round += 1;
            for placement in self
                .options
                .placements
                .iter()
                .copied()
                .filter(|placement| scenario.pins || *placement == Placement::Unpinned)
            {
                self.places.enter(placement, &daemons(world));
                // Counts do not depend on the placement. Counting has a small cost and is done
                // once.
                let counts = round + 1 == rounds && placement == self.options.placements[0];
                for workload in scenario.workloads {
                    let row = Row {
                        fs,
                        workload: workload.name,
                        placement,
                    };
                    for lane in
                        turns(&world.lanes, world.round).filter(|lane| (workload.can)(lane.column))
                    {
                        guard.step();
                        self.measure(
                            world,
                            lane,
                            workload,
                            results.cell(row, scenario.name, lane.column),
                            counts,
                        );
                    }
                    if round + 1 == rounds {
                        tell(results, row, workload);
                    }
                }
            }
        }
        self.places.enter(Placement::Unpinned, &daemons(world));
    }

    fn measure(
        &self,
        world: &BenchEnv<'_>,
        lane: &Lane,
        workload: &Workload,
        cell: &mut Cell,
        counts: bool,
    ) {
        (workload.before)(world, lane);
        if workload.changes && lane.column == Column::Checkpointed {
            lane.hold();
        }
        let run = || (workload.run)(world, lane);
        let tracer = self.tracer.as_ref().filter(|_| counts);
        let seconds = match (tracer, lane.minor()) {
            (Some(tracer), Some(minor)) => {
                let (seconds, requests) = tracer.count(minor, run);
                cell.requests = requests;
                seconds
            }
            _ => run(),
        };
        cell.files = (workload.files)(world.fixtures);
        cell.seconds.push(seconds);
        lane.let_go();
    }
}

/// Returns the lanes in an order that starts with another one each round, so that no column always
/// follows the same other one.
fn turns(lanes: &[Lane], round: usize) -> impl Iterator<Item = &Lane> {
    lanes
        .iter()
        .cycle()
        .skip(round % lanes.len())
        .take(lanes.len())
}

fn daemons(world: &BenchEnv<'_>) -> Vec<u32> {
    world.lanes.iter().filter_map(Lane::daemon).collect()
}

/// Prints a row at once, because a run takes minutes.
fn tell(results: &Results, row: Row, workload: &Workload) {
    let cells = Column::ALL.iter().filter_map(|(name, column)| {
        let cell = results.find(row, *column)?;
        let ratio = results.ratio(row, *column, results.find(row, Column::Plain));
        let ratio = ratio.map_or_else(String::new, |ratio| format!(" {ratio:.2}x"));
        let requests = cell
            .requests_each()
            .map_or_else(String::new, |each| format!(" ({each:.2} requests each)"));
        Some(format!(
            "{name} {}{ratio}{requests}",
            shown(cell.median(), workload)
        ))
    });
    eprintln!(
        "{} {} {}: {}",
        row.fs,
        row.placement.name(),
        row.workload,
        cells.collect::<Vec<_>>().join("; ")
    );
    for column in [Column::Passthrough, Column::FloorOne] {
        if let Some(kinds) = results.find(row, column).and_then(Cell::kinds_each) {
            eprintln!("    {}: {kinds}", column.name());
        }
    }
}

/// Deadline of the current step in seconds since 1970; 0 if there is no step.
static DEADLINE: AtomicU64 = AtomicU64::new(0);

/// Aborts every FUSE mount of a world when a step takes too long, so that a mount that hangs ends
/// the benchmark instead of blocking it.
struct Watchdog;

impl Watchdog {
    fn start(world: &BenchEnv<'_>) -> Watchdog {
        let points: Vec<PathBuf> = world
            .lanes
            .iter()
            .filter(|lane| lane.daemon().is_some())
            .map(|lane| lane.root().to_owned())
            .collect();
        Watchdog.step();
        thread::spawn(move || {
            loop {
                thread::sleep(Duration::from_secs(1));
                match DEADLINE.load(Ordering::Relaxed) {
                    0 => return,
                    deadline if now() > deadline => break,
                    _ => {}
                }
            }
            eprintln!("native: a step took more than {STEP_SECONDS} s: aborting the mounts");
            points.iter().for_each(|point| abort(point));
        });
        Watchdog
    }

    fn step(&self) {
        DEADLINE.store(now() + STEP_SECONDS, Ordering::Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        DEADLINE.store(0, Ordering::Relaxed);
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
