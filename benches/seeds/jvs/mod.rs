//! JVS: its benchmarks, by its names, of an engine in this process.

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

/// Adds a row: the seed's name (empty: it has none such), what we take it for, and what the seed measured.
fn tell(world: &World<'_>, report: &mut Report, title: &'static str, (name, what): (&str, &str), op: &Op, more: impl FnOnce(Row) -> Row) {
    let shown = match (name, what) {
        ("", what) => what.to_owned(),
        (name, "") => format!("`{name}`"),
        (name, what) => format!("`{name}`: {what}"),
    };
    let row = more(Row::new(world.fs(), shown).op(op));
    let (its_time, bytes, calls) = match figures::of(name) {
        Some((ns, bytes, calls)) => (time(ns / 1e3), grouped(bytes), grouped(calls)),
        None => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
    };
    let row = row.text("JVS (tmpfs, another machine)", its_time).text("its B/op", bytes).text("its allocs/op", calls);
    report.add(Seed::Jvs, title, row);
}

/// The name of a benchmark that JVS has for each of its engines, for what is done here.
fn by_engine(world: &World<'_>, before: &str, after: &str) -> String {
    let engine = if world.has_reflink() { "ReflinkEngine" } else { "CopyEngine" };
    format!("{before}_{engine}_{after}")
}
