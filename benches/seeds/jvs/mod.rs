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
use crate::world::SeedEnv;

pub fn measure(world: &mut SeedEnv<'_>, report: &mut Report) {
    snapshot::measure(world, report);
    catalog::measure(world, report);
    restore::measure(world, report);
    gc::measure(world, report);
}

/// Adds a row with the seed's benchmark name (empty if it has none), its meaning here, and the
/// seed's figures.
fn tell(
    world: &SeedEnv<'_>,
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
            "a checkpoint has no checksum of its own: it is part of a chain, so the whole journal, the index and the versions are checked"
        }
        name if name.starts_with("GCPlan")
            || name.starts_with("GCWith")
            || name == "GCEmptyRepo" =>
        {
            "a plan reads the journal and asks the filesystem for the extents of each version, to compute the space that a deletion frees; a plan of JVS lists snapshots without sizes"
        }
        name if name.starts_with("GCRun") => {
            "each deletion is a separate record, so that an interrupted run leaves no partial deletion"
        }
        "Restore_IntegrityVerification" => {
            "the whole journal is verified, and every byte of each version that the checkpoint uses is read"
        }
        name if name.starts_with("Restore") => {
            "a restore creates a guard checkpoint, so that it can be undone, and a record and a version of each file that it replaces; JVS swaps in a copied tree"
        }
        name if name.starts_with("Find") || name.starts_with("List") => {
            "the reply contains all metadata of a checkpoint"
        }
        _ => "",
    }
}

/// Returns JVS's name of a benchmark for the engine that corresponds to this filesystem.
fn by_engine(world: &SeedEnv<'_>, before: &str, after: &str) -> String {
    let engine = if world.has_reflink() {
        "ReflinkEngine"
    } else {
        "CopyEngine"
    };
    format!("{before}_{engine}_{after}")
}
