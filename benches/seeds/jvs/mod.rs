//! The benchmarks of JVS, by their names, with an engine in this process.

mod catalog;
mod figures;
mod gc;
mod restore;
mod served;
mod snapshot;

use crate::alloc::Op;
use crate::options::Seed;
use crate::report::{Report, Row, grouped, time};
use crate::world::World;

pub fn measure(world: &mut World<'_>, report: &mut Report) {
    snapshot::measure(world, report);
    catalog::measure(world, report);
    restore::measure(world, report);
    gc::measure(world, report);
}

/// Adds a row with the seed's benchmark name (empty if it has none), its meaning here, and the
/// seed's figures.
fn tell(
    world: &World<'_>,
    report: &mut Report,
    title: &'static str,
    (name, what): (&str, &str),
    op: &Op,
    more: impl FnOnce(Row) -> Row,
) {
    let shown = match (name, what) {
        ("", what) => what.to_owned(),
        (name, "") => format!("`{name}`"),
        (name, what) => format!("`{name}`: {what}"),
    };
    let row = more(Row::new(world.fs(), shown).op(op));
    let (row, its_time, bytes, calls) = match figures::of(name) {
        Some((ns, bytes, calls)) => (
            row.seed(ns / 1e3, why(name)),
            time(ns / 1e3),
            grouped(bytes),
            grouped(calls),
        ),
        None => (row, "-".to_owned(), "-".to_owned(), "-".to_owned()),
    };
    let row = row
        .text("JVS (tmpfs, another machine)", its_time)
        .text("its B/op", bytes)
        .text("its allocs/op", calls);
    report.add(Seed::Jvs, title, row);
}

/// Returns why ours may take longer than the seed's benchmark of this name.
fn why(name: &str) -> &'static str {
    match name {
        name if name.starts_with("VerifySnapshot") => {
            "there is no checksum of one checkpoint alone: it stands in a chain, and the whole journal, the index and the versions are looked at"
        }
        name if name.starts_with("GCPlan")
            || name.starts_with("GCWith")
            || name == "GCEmptyRepo" =>
        {
            "a plan reads the journal and asks the filesystem for the extents of each version, to tell what comes free; JVS's plan names snapshots and no bytes"
        }
        name if name.starts_with("GCRun") => {
            "each deletion is a record of its own, so that a run that is cut short leaves nothing half gone"
        }
        "Restore_IntegrityVerification" => {
            "the verification is of the whole journal, and reads every byte that the checkpoint has a version of"
        }
        name if name.starts_with("Restore") => {
            "a restore makes a guard checkpoint, so that it can be undone, and a record and a version of each file that it replaces; JVS's swaps a copied tree in"
        }
        name if name.starts_with("Find") || name.starts_with("List") => {
            "everything about a checkpoint is copied into the answer"
        }
        _ => "",
    }
}

/// Returns JVS's name of a benchmark for the engine that corresponds to this filesystem.
fn by_engine(world: &World<'_>, before: &str, after: &str) -> String {
    let engine = if world.has_reflink() {
        "ReflinkEngine"
    } else {
        "CopyEngine"
    };
    format!("{before}_{engine}_{after}")
}
