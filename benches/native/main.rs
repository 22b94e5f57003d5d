//! Real workloads in a mount, compared with a plain directory and with filesystems without a
//! history. Requires root; `make bench-native` runs it.
//!
//! ```text
//! cargo bench --bench native -- [--work DIR] [--fs xfs,btrfs] [--only SCENARIOS] [--columns NAMES] [--placement unpinned,pinned]
//!                               [--rounds N] [--files N] [--quick] [--write-docs]
//! ```
//!
//! It prints Markdown; `--write-docs` writes docs/benchmarks/native.md, native.json and the charts.
//!
//! All columns share one image, and each round makes each step in all of them in sequence, so that
//! other load on the machine affects all equally. On two cores the placement of daemon and client
//! determines the cost of small requests. Everything is therefore measured twice: unpinned, the
//! default, and with both on one CPU.

mod chart;
#[path = "../../tests/it/common/mod.rs"]
mod common;
mod fio;
mod fixtures;
mod floor;
mod lanes;
mod null;
mod ops;
mod options;
mod place;
mod programs;
mod report;
mod requests;
mod results;
mod runner;
#[path = "../shared/mod.rs"]
mod shared;
mod small;
mod targets;
mod tree;
mod workload;

use std::panic::AssertUnwindSafe;
use std::path::Path;

use common::{Fs, Image};
use fixtures::Fixtures;
use lanes::Lane;
use options::Options;
use requests::Tracer;
use results::Results;
use runner::Runner;
use shared::options::enter_work;
use workload::{BenchEnv, Scenario};

const SCENARIOS: [&Scenario; 6] = [
    &small::SCENARIO,
    &ops::SCENARIO,
    &programs::GIT,
    &fio::SCENARIO,
    &programs::CARGO,
    &programs::NPM,
];
/// A sparse image.
const IMAGE_BYTES: u64 = 24 << 30;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    if let (Some(argument), Some(point)) = (arguments.next(), arguments.next())
        && argument == null::ARGUMENT
    {
        return null::serve(std::path::Path::new(&point));
    }
    let mut names = SCENARIOS.map(|scenario| scenario.name).to_vec();
    names.push(tree::NAME);
    let options = Options::parse(&names).unwrap_or_else(|problem| {
        eprintln!("native: {problem}");
        std::process::exit(2)
    });
    enter_work(options.work.as_deref());
    let tracer = Tracer::new()
        .map_err(|problem| eprintln!("native: requests are not counted: {problem}"))
        .ok();
    let runner = Runner {
        options: &options,
        places: place::CpuAffinity::new(),
        tracer,
    };
    let fixtures = Fixtures::make(&options);
    let floor = floor::build(fixtures.dir())
        .map_err(|problem| eprintln!("native: no floor: {problem}"))
        .ok();
    let load = shared::machine::load();
    let (mut results, mut verbs, mut memory) = (Results::default(), Vec::new(), Vec::new());
    for fs in options.filesystems.iter().copied().filter(available) {
        let image = Image::new(fs, IMAGE_BYTES);
        run(&runner, &fixtures, &image, floor.as_deref(), &mut results);
        if options.wants(tree::NAME) {
            let (more_verbs, more_memory) = tree::measure(&image, options.quick);
            verbs.extend(more_verbs);
            memory.extend(more_memory);
        }
    }
    let filesystems = options.filesystems.iter().map(|fs| fs.name()).collect();
    let machine = report::machine(&load, options.quick);
    let report = report::Report {
        scenarios: &SCENARIOS,
        filesystems,
        results: &results,
        verbs: &verbs,
        memory: &memory,
        machine,
    };
    println!("{}", report.markdown(&[]));
    if options.write_docs {
        report.write_docs();
    }
}

/// Runs all scenarios in all columns.
fn run(
    runner: &Runner<'_>,
    fixtures: &Fixtures,
    image: &Image,
    floor: Option<&Path>,
    results: &mut Results,
) {
    let options = runner.options;
    let columns = options
        .columns
        .iter()
        .filter(|column| floor.is_some() || !column.is_floor());
    let lanes = columns
        .map(|column| Lane::new(image, *column, floor))
        .collect();
    let mut world = BenchEnv {
        image,
        fixtures,
        lanes,
        round: 0,
    };
    for scenario in SCENARIOS
        .into_iter()
        .filter(|scenario| options.wants(scenario.name))
    {
        runner.run(&mut world, scenario, results);
    }
    // Report the results even if an unmount times out, which aborts its connection.
    if std::panic::catch_unwind(AssertUnwindSafe(|| drop(world))).is_err() {
        eprintln!("native: {}: a mount was not removed", image.fs().name());
    }
}

fn available(fs: &Fs) -> bool {
    let reason = fs.unavailable();
    if let Some(reason) = &reason {
        eprintln!("native: no {}: {reason}", fs.name());
    }
    reason.is_none()
}
