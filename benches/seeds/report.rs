//! Tables with columns for ckptfs, for other tools in the same run, and for the seed's figures from
//! its machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::alloc::Op;
use crate::options::{Options, Seed};
use crate::shared::stats::Samples;
use crate::shared::{machine, markdown};

/// The column of ckptfs.
pub const OURS: &str = "ckptfs";

/// The content of a cell.
#[derive(Clone, Debug)]
pub enum Value {
    /// Microseconds, shown as the median.
    Time(Samples),
    /// A count, shown as the median without a unit.
    Count(Samples),
    Bytes(i64),
    Text(String),
}

/// A row of a table, cell by cell.
#[derive(Clone, Debug)]
pub struct Row {
    fs: &'static str,
    what: String,
    cells: Vec<Cell>,
    why: &'static str,
    /// The seed's figure in microseconds, and why ours may be higher.
    seed: Option<(f64, &'static str)>,
}

#[derive(Clone, Debug)]
struct Cell {
    head: &'static str,
    value: Value,
    /// Does the same job: if it is faster, the report mentions that with the reason.
    rival: bool,
}

impl Row {
    pub fn new(fs: &'static str, what: impl Into<String>) -> Row {
        Row {
            fs,
            what: what.into(),
            cells: Vec::new(),
            why: "",
            seed: None,
        }
    }

    pub fn cell(mut self, head: &'static str, value: Value) -> Row {
        self.cells.push(Cell {
            head,
            value,
            rival: false,
        });
        self
    }

    pub fn ours(self, samples: &Samples) -> Row {
        self.cell(OURS, Value::Time(samples.clone()))
    }

    pub fn rival(mut self, head: &'static str, samples: &Samples) -> Row {
        self.cells.push(Cell {
            head,
            value: Value::Time(samples.clone()),
            rival: true,
        });
        self
    }

    pub fn text(self, head: &'static str, text: impl Into<String>) -> Row {
        self.cell(head, Value::Text(text.into()))
    }

    /// Adds time, bytes and calls of an operation in this process.
    pub fn op(self, op: &Op) -> Row {
        self.ours(&op.time)
            .cell("B/op", Value::Count(op.bytes.clone()))
            .cell("allocs/op", Value::Count(op.calls.clone()))
    }

    /// Sets the reason why a rival may be faster.
    pub fn why(mut self, why: &'static str) -> Row {
        self.why = why;
        self
    }

    /// Sets the seed's figure in microseconds, and the reason why ours may be higher.
    pub fn seed(mut self, us: f64, why: &'static str) -> Row {
        self.seed = Some((us, why));
        self
    }

    /// Returns the seed's figure and ours, if the seed's is lower.
    fn below_seed(&self) -> Option<(f64, f64, &'static str)> {
        let (seed, why) = self.seed?;
        let ours = self.cells.iter().find_map(|cell| match &cell.value {
            Value::Time(samples) if cell.head == OURS && samples.len() > 0 => Some(samples.p50()),
            _ => None,
        })?;
        (seed < ours).then_some((seed, ours, why))
    }

    /// Returns the fastest rival, if it is faster than ours.
    fn beaten(&self) -> Option<(&'static str, f64, f64)> {
        let time = |cell: &Cell| match &cell.value {
            Value::Time(samples) if samples.len() > 0 => Some(samples.p50()),
            _ => None,
        };
        let ours = self
            .cells
            .iter()
            .find(|cell| cell.head == OURS)
            .and_then(time)?;
        let rivals = self
            .cells
            .iter()
            .filter(|cell| cell.rival)
            .filter_map(|cell| Some((cell.head, time(cell)?)));
        let (head, best) = rivals.min_by(|a, b| a.1.total_cmp(&b.1))?;
        (best < ours).then_some((head, best, ours))
    }

    fn json(&self) -> Json {
        let cells: BTreeMap<&str, Json> = self
            .cells
            .iter()
            .map(|cell| (cell.head, cell.value.json()))
            .collect();
        json!({ "fs": self.fs, "row": self.what, "cells": cells })
    }
}

impl Value {
    fn shown(&self) -> String {
        match self {
            Value::Time(samples) | Value::Count(samples) if samples.len() == 0 => "-".to_owned(),
            Value::Time(samples) => time(samples.p50()),
            Value::Count(samples) => grouped(samples.p50().round() as i64),
            Value::Bytes(bytes) => size(*bytes),
            Value::Text(text) => text.clone(),
        }
    }

    fn json(&self) -> Json {
        match self {
            Value::Time(samples) => json!({ "us": rounded(samples) }),
            Value::Count(samples) => json!(rounded(samples)),
            Value::Bytes(bytes) => json!({ "bytes": bytes }),
            Value::Text(text) => json!(text),
        }
    }
}

/// Formats microseconds in a suitable unit.
pub fn time(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{:.0} ns", us * 1e3),
        us if us < 10.0 => format!("{us:.2} us"),
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e4 => format!("{:.2} ms", us / 1e3),
        us if us < 1e5 => format!("{:.1} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// Formats bytes in a suitable unit.
pub fn size(bytes: i64) -> String {
    let kib = bytes as f64 / 1024.0;
    match bytes.abs() {
        0 => "0".to_owned(),
        b if b < 1 << 10 => format!("{bytes} B"),
        b if b < 1 << 20 => format!("{kib:.0} KiB"),
        _ => format!("{:.1} MiB", kib / 1024.0),
    }
}

/// Formats 1234567 as 1,234,567.
pub fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

struct Table {
    seed: Seed,
    title: &'static str,
    rows: Vec<Row>,
}

/// All tables of a run.
pub struct Report {
    tables: Vec<Table>,
    /// Failed measurements with their reasons.
    missing: Vec<(Seed, String)>,
    load_before: String,
    how: String,
}

impl Report {
    pub fn new(options: &Options) -> Report {
        let how = match (options.quick, options.long) {
            (true, _) => " A quick run: few rounds, small trees.",
            (_, true) => " With the long rows.",
            _ => "",
        };
        Report {
            tables: Vec::new(),
            missing: Vec::new(),
            load_before: machine::load(),
            how: how.to_owned(),
        }
    }

    /// Adds a row to the table of this title, which the first row creates, and prints it to stderr
    /// at once, because a run takes minutes.
    pub fn add(&mut self, seed: Seed, title: &'static str, row: Row) {
        let cells: Vec<String> = row
            .cells
            .iter()
            .map(|cell| format!("{} {}", cell.head, cell.value.shown()))
            .collect();
        eprintln!(
            "{}: {}: {}: {}",
            seed.name(),
            row.fs,
            row.what,
            cells.join(", ")
        );
        match self.tables.iter_mut().find(|table| table.title == title) {
            Some(table) => table.rows.push(row),
            None => self.tables.push(Table {
                seed,
                title,
                rows: vec![row],
            }),
        }
    }

    /// Records a failed measurement; the run continues.
    pub fn missing(&mut self, seed: Seed, what: String) {
        eprintln!("{}: not measured: {what}", seed.name());
        self.missing.push((seed, what));
    }

    pub fn has_failed(&self) -> bool {
        !self.missing.is_empty()
    }

    fn machine(&self) -> String {
        format!("{}{}", machine::describe(&self.load_before), self.how)
    }

    /// Returns the tables of the seeds in this order, each with its introduction.
    pub fn markdown(&self, seeds: &[(Seed, &str)]) -> String {
        let mut text = String::new();
        for (seed, introduction) in seeds {
            let tables: Vec<&Table> = self
                .tables
                .iter()
                .filter(|table| table.seed == *seed)
                .collect();
            let missing: Vec<&String> = self
                .missing
                .iter()
                .filter(|(of, _)| of == seed)
                .map(|(_, what)| what)
                .collect();
            if tables.is_empty() && missing.is_empty() {
                continue;
            }
            let _ = write!(text, "\n{introduction}\n");
            for what in missing {
                let _ = write!(text, "\n**Not measured**: {}\n", what.replace('\n', " "));
            }
            for table in tables {
                let _ = write!(
                    text,
                    "\n### {}\n\n{}{}",
                    table.title,
                    table.markdown(),
                    table.beaten()
                );
            }
        }
        text
    }

    pub fn print(&self, seeds: &[(Seed, &str)]) {
        println!("{}\n{}", self.machine(), self.markdown(seeds));
    }

    /// Writes docs/benchmarks/seeds.md and, with every sample, seeds.json.
    pub fn write_docs(&self, introduction: &str, seeds: &[(Seed, &str)]) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks");
        let put = |name: &str, text: String| {
            fs::write(dir.join(name), text).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        put(
            "seeds.md",
            format!(
                "{introduction}\n{}\n{}",
                self.machine(),
                self.markdown(seeds)
            ),
        );
        put("seeds.json", self.json());
    }

    /// Returns everything with all samples, one row per line.
    pub fn json(&self) -> String {
        let tables = self.tables.iter().map(|table| {
            let rows: Vec<String> = table
                .rows
                .iter()
                .map(|row| format!("  {}", row.json()))
                .collect();
            format!(
                "{{ \"table\": {}, \"rows\": [\n{}\n]}}",
                json!(table.title),
                rows.join(",\n")
            )
        });
        let missing: Vec<&String> = self.missing.iter().map(|(_, what)| what).collect();
        let tables = tables.collect::<Vec<_>>().join(",\n");
        format!(
            "{{\n\"machine\": {},\n\"missing\": {},\n\"tables\": [\n{tables}\n]\n}}\n",
            json!(self.machine()),
            json!(missing)
        )
    }
}

/// Rounds samples to four significant digits.
fn rounded(samples: &Samples) -> Vec<f64> {
    let digits = |value: &f64| match value.abs() {
        0.0 => 0.0,
        size => {
            let shift = 3 - size.log10().floor() as i32;
            let unit = 10_f64.powi(shift.abs());
            if shift < 0 {
                (value / unit).round() * unit
            } else {
                (value * unit).round() / unit
            }
        }
    };
    samples.all().iter().map(digits).collect()
}

impl Table {
    /// Returns the heads of all rows, in the order of their first appearance.
    fn heads(&self) -> Vec<&'static str> {
        let mut heads: Vec<&'static str> = Vec::new();
        for row in &self.rows {
            let mut at = 0;
            for cell in &row.cells {
                match heads.iter().position(|head| *head == cell.head) {
                    Some(found) => at = found + 1,
                    None => {
                        heads.insert(at, cell.head);
                        at += 1;
                    }
                }
            }
        }
        heads
    }

    fn markdown(&self) -> String {
        let heads = self.heads();
        let row = |row: &Row| {
            let cell = |head: &&str| {
                row.cells
                    .iter()
                    .find(|cell| cell.head == *head)
                    .map_or_else(|| "-".to_owned(), |cell| cell.value.shown())
            };
            let rounds = row.cells.iter().filter_map(|cell| match &cell.value {
                Value::Time(samples) if samples.len() > 0 => Some(samples.len()),
                _ => None,
            });
            let rounds = rounds
                .min()
                .map_or_else(|| "-".to_owned(), |rounds| rounds.to_string());
            let mut cells = vec![row.what.clone(), row.fs.to_owned(), rounds];
            cells.extend(heads.iter().map(cell));
            cells
        };
        let mut all = vec!["row", "filesystem", "rounds"];
        all.extend(&heads);
        // Rows of the same name are adjacent, in the order of the names' first appearance.
        let mut names: Vec<&String> = Vec::new();
        for row in &self.rows {
            if !names.contains(&&row.what) {
                names.push(&row.what);
            }
        }
        let sorted: Vec<Vec<String>> = names
            .iter()
            .flat_map(|name| {
                self.rows
                    .iter()
                    .filter(move |row| row.what == **name)
                    .map(row)
            })
            .collect();
        markdown::table(&all, &sorted)
    }

    /// Lists the rows in which another tool is faster, with the reason.
    fn beaten(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let Some((rival, best, ours)) = row.beaten() else {
                continue;
            };
            if text.is_empty() {
                text.push_str("\nRows in which a plain tool is faster:\n");
            }
            let why = if row.why.is_empty() {
                "not explained yet"
            } else {
                row.why
            };
            let _ = writeln!(
                text,
                "- {}, {}: {rival} {}, ckptfs {} ({:.1}x): {why}.",
                row.what,
                row.fs,
                time(best),
                time(ours),
                ours / best
            );
        }
        let mut begun = false;
        for row in &self.rows {
            let Some((seed, ours, why)) = row.below_seed() else {
                continue;
            };
            if !begun {
                text.push_str(
                    "\nRows in which the figure of the seed, measured on its machine, is lower:\n",
                );
                begun = true;
            }
            let why = if why.is_empty() {
                "not explained yet"
            } else {
                why
            };
            let _ = writeln!(
                text,
                "- {}, {}: {}, ckptfs {}: {why}.",
                row.what,
                row.fs,
                time(seed),
                time(ours)
            );
        }
        text
    }
}
