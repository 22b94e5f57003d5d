//! Latency of the verbs and of plain operations, on real mounts of a tree of 36,000 files. Requires
//! root; `make bench-latency` runs it.
//!
//! ```text
//! cargo bench --bench latency -- [--work DIR] [--fs xfs,btrfs] [--io passthrough,daemon]
//!                                [--only checkpoint,cli,restore,mount,hot,ops,memory,history] [--quick] [--write-docs]
//! ```
//!
//! It prints Markdown tables with a description of the machine; `--write-docs` replaces those in
//! docs/benchmarks.md. The table of the project's bounds marks each as "met" or "not met".
//!
//! Each filesystem gets one tree, on a loop-mounted image in DIR. Compared operations are
//! interleaved in each round, so that other load on the machine affects all equally.

#[path = "../../tests/it/common/mod.rs"]
mod common;
mod history;
mod memory;
mod ops;
mod options;
mod report;
mod rig;
#[path = "../shared/mod.rs"]
mod shared;
mod verbs;

use options::{Options, Section};
use report::Report;
use rig::Tree;
use shared::options::enter_work;

fn main() {
    let options = Options::parse().unwrap_or_else(|problem| {
        eprintln!("latency: {problem}");
        std::process::exit(2)
    });
    enter_work(options.work.as_deref());
    let mut report = Report::new(options.quick);
    for fs in &options.filesystems {
        if let Some(reason) = fs.unavailable() {
            eprintln!("latency: no {}: {reason}", fs.name());
            continue;
        }
        if options.sections.contains(&Section::Memory) && Some(fs) == options.filesystems.first() {
            memory::measure(*fs, &mut report);
        }
        if options.sections.contains(&Section::History) && Some(fs) == options.filesystems.first() {
            history::measure(*fs, options.quick, &mut report);
        }
        if options
            .sections
            .iter()
            .all(|section| [Section::Memory, Section::History].contains(section))
        {
            continue;
        }
        eprintln!("{}: making the tree", fs.name());
        let tree = Tree::make(*fs);
        for io in &options.ios {
            let wanted = |section: Section| options.sections.contains(&section);
            let mut rig = tree.mount(*io);
            if wanted(Section::Checkpoint) {
                verbs::checkpoint(&mut rig, options.quick, &mut report);
            }
            if wanted(Section::Cli) {
                verbs::cli(&mut rig, options.quick, &mut report);
            }
            if wanted(Section::Hot) {
                verbs::hot(&mut rig, options.quick, &mut report);
            }
            if wanted(Section::Restore) {
                verbs::restore(&mut rig, options.quick, &mut report);
            }
            if wanted(Section::Ops) {
                ops::compare(&mut rig, options.quick, &mut report);
            }
            if wanted(Section::Mount) {
                verbs::mount(&mut rig, options.quick, &mut report);
            }
        }
    }
    report.print();
    if options.write_docs {
        report.write_docs();
    }
}
