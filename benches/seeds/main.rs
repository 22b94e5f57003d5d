//! Repeats the benchmark tables of the predecessors of ckptfs: Spike 2, JVS, VRift and sy, and
//! measures the cost of copies on the platform. Requires root; `make bench-seeds` runs it.
//!
//! ```text
//! cargo bench --bench seeds -- [--work DIR] [--fs xfs,btrfs,ext4,tmpfs] [--only platform,spike2,jvs,sy,vrift] [--quick] [--long] [--json FILE] [--write-docs]
//! cargo bench --bench seeds -- --compare BEFORE NOW      files that --json wrote, lists with commas
//! ```
//!
//! It prints Markdown; `--write-docs` writes docs/benchmarks/seeds.md and, with every sample,
//! docs/benchmarks/seeds.json.
//!
//! Rows have the seed's names. Plain tools that do the same job are measured in the same rounds, in
//! sequence; the seed's own figures are from another machine and marked as such. A failed table
//! reports its error in its place, the others follow, and the exit status is 1.

mod alloc;
#[path = "../../tests/it/common/mod.rs"]
mod common;
mod compare;
mod jvs;
mod options;
mod platform;
mod report;
#[path = "../../tests/it/bounds/shapes.rs"]
mod shapes;
#[path = "../shared/mod.rs"]
mod shared;
mod spike2;
mod sy;
mod texts;
mod vrift;
mod world;

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use options::{Options, Seed};
use report::Report;
use shared::options::enter_work;
use world::SeedEnv;

fn main() {
    let options = Options::parse().unwrap_or_else(|problem| {
        eprintln!("seeds: {problem}");
        std::process::exit(2)
    });
    if let Some([before, now]) = &options.compare {
        return compare::print(before, now);
    }
    enter_work(options.work.as_deref());
    let mut report = Report::new(&options);
    let began = Instant::now();
    for fs in &options.filesystems {
        if let Some(reason) = fs.unavailable() {
            options
                .seeds
                .iter()
                .for_each(|seed| report.missing(*seed, format!("{}: {reason}", fs.name())));
            continue;
        }
        let mut world = SeedEnv::new(*fs, &options);
        for seed in &options.seeds {
            eprintln!(
                "== {} on {}, {} s after the start",
                seed.name(),
                fs.name(),
                began.elapsed().as_secs()
            );
            let measured = std::panic::catch_unwind(AssertUnwindSafe(|| {
                measure(*seed, &mut world, &mut report)
            }));
            if let Err(panic) = measured {
                report.missing(*seed, format!("{}: {}", fs.name(), said(panic.as_ref())));
            }
        }
        // Report the results even if an unmount times out.
        if std::panic::catch_unwind(AssertUnwindSafe(|| drop(world))).is_err() {
            eprintln!("seeds: {} was not removed", fs.name());
        }
    }
    eprintln!("== done after {} s", began.elapsed().as_secs());
    report.print(&texts::SEEDS);
    if let Some(path) = &options.json {
        std::fs::write(path, report.json())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    if options.write_docs {
        report.write_docs(texts::INTRODUCTION, &texts::SEEDS);
    }
    std::process::exit(i32::from(report.has_failed()));
}

fn measure(seed: Seed, world: &mut SeedEnv<'_>, report: &mut Report) {
    match seed {
        Seed::Platform => platform::measure(world, report),
        Seed::Spike2 => spike2::measure(world, report),
        Seed::Jvs => jvs::measure(world, report),
        Seed::Sy => sy::measure(world, report),
        Seed::Vrift => vrift::measure(world, report),
    }
}

/// Returns the message of a panic.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "it panicked without a message".to_owned())
        .lines()
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}
