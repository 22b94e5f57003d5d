//! The report: Markdown, JSON, charts.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::chart;
use crate::lanes::Column;
use crate::place::Placement;
use crate::results::{Cell, Results, Row, shown};
use crate::shared::{machine, markdown};
use crate::targets::{Verdict, verdicts};
use crate::tree::{Memory, Verb};
use crate::workload::{Scenario, Workload};

const INTRODUCTION: &str = "\
# Real work, compared with a plain directory

Written by `make bench-native ARGS=--write-docs` (`benches/native/`); [native.json](native.json) has every sample and every request by kind.

All columns use one image at the same time; each round does each step in all of them, one after the other. The tables show the median, with the minimum and
the maximum in brackets. *Unpinned* is the default scheduling; *pinned* has the client and all threads of the daemon on one CPU, in every column: on two cores
the path between them dominates the time of small requests.

- **plain**: a directory of the filesystem itself.
- **plain, reflinked before**: the same, after `cp --reflink` of the file: the cost of a first change of shared data in the filesystem itself.
- **passthrough**: ckptfs; the kernel reads and writes; no checkpoint yet.
- **after a checkpoint**: the same with a checkpoint made just before each run, so that every change is a first change.
- **daemon**: ckptfs; the daemon reads and writes; no checkpoint.
- **floor**: libfuse's example `passthrough_ll`, from Debian's libfuse3-dev, with all caches on and the same permission checks (`default_permissions`). It has no history and no passthrough. It serves no extended attributes,
  so the kernel requests none; this saves two of the nine requests of an unpacked file, as `--xattrs=off` does (the columns of ckptfs use `--xattrs=all`). It runs with one thread or with many: the row names the
  faster one. It searches each inode in a list, which grows with the tree.
- **bindfs** (only with `--columns`): Debian's, with many threads and all caches on.
- **null** (only with `--columns`): the adapter of ckptfs over a tree in memory, without a backing directory and history: the cost of the requests alone.

Requests are counted by the kernel's tracepoint `fuse_request_send` and divided by the files (or operations) of the run. Forgets are not counted, because no
process waits for them; apart from these, `ckptfs status -v` shows the same counts.

*Warm* is after two runs that are not measured. After a listing that needed a request, the kernel requests the attributes of each listed directory once more, so
the second walk of a tree makes one request for each directory and the third makes none.

The file of fio is recreated before each write: the cost of a reflink, and so of a capture, depends on the number of extents, and random writes of 4 KiB leave thousands of them.
";

/// The content of the JSON file.
#[derive(Serialize)]
struct Everything<'a> {
    machine: String,
    verdicts: Vec<Verdict>,
    cells: &'a [Cell],
    verbs: &'a [Verb],
    memory: &'a [Memory],
}

/// All results.
pub struct Report<'a> {
    pub scenarios: &'a [&'static Scenario],
    pub filesystems: Vec<&'static str>,
    pub results: &'a Results,
    pub verbs: &'a [Verb],
    pub memory: &'a [Memory],
    pub machine: String,
}

impl Report<'_> {
    pub fn markdown(&self, charts: &[&str]) -> String {
        let mut text = format!("{INTRODUCTION}\n{}\n", self.machine);
        let verdicts = self.verdicts();
        if !verdicts.is_empty() {
            _ = write!(
                text,
                "\n## Targets\nTime as a multiple of the base: the limit (*at most*) and the measurements. The last column compares *unpinned* with the best floor of either placement.\n\n{}",
                targets(&verdicts)
            );
        }
        for scenario in self.scenarios {
            let columns = self.columns(scenario);
            if columns.is_empty() {
                continue;
            }
            let rows: Vec<Vec<String>> = self
                .filesystems
                .iter()
                .flat_map(|fs| self.rows(fs, scenario, &columns))
                .collect();
            _ = write!(text, "\n## {}\n", scenario.title);
            if charts.contains(&scenario.name) {
                _ = write!(text, "![{}]({}.svg)\n\n", scenario.title, scenario.name);
            }
            let mut head = vec!["", ""];
            head.extend(columns.iter().map(|column| column.title()));
            head.extend(["requests each: passthrough", "daemon", "floor"]);
            text += &markdown::table(&head, &rows);
        }
        if !self.verbs.is_empty() {
            _ = write!(
                text,
                "\n## Verbs by tree size\nOver the socket, passthrough, milliseconds.\n\n{}",
                crate::tree::verb_table(self.verbs)
            );
        }
        if !self.memory.is_empty() {
            _ = write!(
                text,
                "\n## Memory\n\n{}",
                crate::tree::memory_table(self.memory)
            );
        }
        text
    }

    fn verdicts(&self) -> Vec<Verdict> {
        self.filesystems
            .iter()
            .flat_map(|fs| verdicts(self.results, fs))
            .collect()
    }

    /// Returns the measured columns of the scenario; the floor counts as one.
    fn columns(&self, scenario: &Scenario) -> Vec<Column> {
        let measured = |column: Column| {
            self.results
                .cells()
                .iter()
                .any(|cell| cell.scenario == scenario.name && cell.column == column)
        };
        let mut columns: Vec<Column> = Column::ALL
            .iter()
            .map(|(_, column)| *column)
            .filter(|column| measured(*column))
            .collect();
        columns.dedup_by_key(|column| column.title());
        columns
    }

    /// Returns the rows of a scenario on a filesystem.
    fn rows(&self, fs: &'static str, scenario: &Scenario, columns: &[Column]) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for workload in scenario.workloads {
            for (name, placement) in Placement::ALL {
                let row = Row {
                    fs,
                    workload: workload.name,
                    placement,
                };
                if Column::ALL
                    .iter()
                    .any(|(_, column)| self.results.find(row, *column).is_some())
                {
                    rows.push(self.row(row, workload, name, columns));
                }
            }
        }
        rows
    }

    fn row(
        &self,
        row: Row,
        workload: &Workload,
        placement: &str,
        columns: &[Column],
    ) -> Vec<String> {
        let plain = self.results.find(row, Column::Plain);
        let floor = self.results.floor(row);
        let cell = |cell: Option<&Cell>| {
            let Some(cell) = cell else {
                return String::new();
            };
            // A rate is the inverse of a time, which swaps minimum and maximum.
            let (mut low, mut high) = (shown(cell.min(), workload), shown(cell.max(), workload));
            if workload.unit == crate::workload::Unit::Mebibyte {
                std::mem::swap(&mut low, &mut high);
            }
            let ratio = plain
                .filter(|_| cell.column != Column::Plain)
                .map_or_else(String::new, |plain| {
                    format!(", **{:.2}x**", cell.median() / plain.median())
                });
            let way = match cell.column {
                Column::FloorOne => ", one thread",
                Column::FloorMany => ", many threads",
                _ => "",
            };
            format!(
                "{} ({low} to {high}){ratio}{way}",
                shown(cell.median(), workload)
            )
        };
        let requests = |cell: Option<&Cell>| {
            cell.and_then(Cell::requests_each)
                .map_or_else(String::new, |each| format!("{each:.2}"))
        };
        let find = |column: Column| {
            if column.is_floor() {
                floor
            } else {
                self.results.find(row, column)
            }
        };
        let mut cells = vec![
            format!("{}, {}", row.fs, workload.title),
            placement.to_owned(),
        ];
        cells.extend(columns.iter().map(|column| cell(find(*column))));
        cells.extend(
            [Column::Passthrough, Column::Daemon, Column::FloorOne]
                .map(|column| requests(find(column))),
        );
        cells
    }

    /// Writes native.md, native.json and the charts into docs/benchmarks/.
    pub fn write_docs(&self) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks");
        fs::create_dir_all(&dir).expect("the documentation is writable");
        let mut charts = Vec::new();
        for scenario in self.scenarios {
            let path = dir.join(format!("{}.svg", scenario.name));
            match chart::draw(&path, scenario, self.results, &self.filesystems) {
                Ok(true) => charts.push(scenario.name),
                Ok(false) => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
        let everything = Everything {
            machine: self.machine.clone(),
            verdicts: self.verdicts(),
            cells: self.results.cells(),
            verbs: self.verbs,
            memory: self.memory,
        };
        let json = serde_json::to_string(&everything).expect("the results can be written as JSON");
        fs::write(dir.join("native.json"), json + "\n").expect("the documentation is writable");
        fs::write(dir.join("native.md"), self.markdown(&charts))
            .expect("the documentation is writable");
    }
}

/// Describes the machine of the run.
pub fn machine(load_before: &str, quick: bool) -> String {
    let quick = if quick {
        " A quick run: one round, few files."
    } else {
        ""
    };
    format!("{}{quick}", machine::describe(load_before))
}

fn targets(verdicts: &[Verdict]) -> String {
    let rows: Vec<Vec<String>> = verdicts
        .iter()
        .map(|verdict| {
            let number = |ratio: Option<f64>| {
                ratio.map_or_else(String::new, |ratio| {
                    if ratio <= verdict.limit {
                        format!("{ratio:.2} met")
                    } else {
                        format!("**{ratio:.2} not met**")
                    }
                })
            };
            let what = format!(
                "{} `{}`, {}",
                verdict.fs,
                verdict.workload,
                verdict.column.name()
            );
            let cells = [
                number(verdict.unpinned),
                number(verdict.pinned),
                number(verdict.best_floor),
            ];
            [
                vec![what, verdict.against.clone(), verdict.limit.to_string()],
                cells.to_vec(),
            ]
            .concat()
        })
        .collect();
    markdown::table(
        &[
            "what",
            "against",
            "at most",
            "unpinned",
            "pinned",
            "unpinned, best floor",
        ],
        &rows,
    )
}
