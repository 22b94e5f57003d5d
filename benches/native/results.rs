//! Results of the measurements.

use serde::Serialize;

use crate::lanes::Column;
use crate::place::Placement;
use crate::requests::Requests;
use crate::workload::{Unit, Workload};

/// One workload in one column.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    pub fs: &'static str,
    pub scenario: &'static str,
    pub workload: &'static str,
    pub placement: Placement,
    pub column: Column,
    /// Seconds for the whole run, for each operation, or for each mebibyte.
    pub seconds: Vec<f64>,
    /// Requests of one run.
    pub requests: Option<Requests>,
    /// Files (or operations) of one run.
    pub files: Option<usize>,
}

impl Cell {
    pub fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
        }
    }

    pub fn min(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub fn max(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the FUSE requests per file.
    pub fn requests_each(&self) -> Option<f64> {
        let all: u64 = self.requests.as_ref()?.values().sum();
        Some(all as f64 / self.files? as f64)
    }

    /// Returns the requests per file by kind, the most frequent first.
    pub fn kinds_each(&self) -> Option<String> {
        let (mut kinds, files) = (
            self.requests.as_ref()?.iter().collect::<Vec<_>>(),
            self.files? as f64,
        );
        kinds.sort_by(|a, b| b.1.cmp(a.1));
        Some(
            kinds
                .iter()
                .map(|(kind, count)| format!("{kind} {:.2}", **count as f64 / files))
                .collect::<Vec<_>>()
                .join(", "),
        )
    }
}

/// All cells.
#[derive(Default)]
pub struct Results(Vec<Cell>);

/// A row of a table.
#[derive(Clone, Copy)]
pub struct Row {
    pub fs: &'static str,
    pub workload: &'static str,
    pub placement: Placement,
}

impl Results {
    /// Returns the cell for this workload, or adds it.
    pub fn cell(&mut self, row: Row, scenario: &'static str, column: Column) -> &mut Cell {
        let found = self.0.iter().position(|cell| is(cell, row, column));
        let index = found.unwrap_or_else(|| {
            let Row {
                fs,
                workload,
                placement,
            } = row;
            self.0.push(Cell {
                fs,
                scenario,
                workload,
                placement,
                column,
                seconds: Vec::new(),
                requests: None,
                files: None,
            });
            self.0.len() - 1
        });
        &mut self.0[index]
    }

    pub fn find(&self, row: Row, column: Column) -> Option<&Cell> {
        self.0.iter().find(|cell| is(cell, row, column))
    }

    /// Returns the better of the two floor columns.
    pub fn floor(&self, row: Row) -> Option<&Cell> {
        let floors = [Column::FloorOne, Column::FloorMany].map(|column| self.find(row, column));
        floors
            .into_iter()
            .flatten()
            .min_by(|a, b| a.median().total_cmp(&b.median()))
    }

    /// Returns the best floor column of both placements.
    pub fn best_floor(&self, row: Row) -> Option<&Cell> {
        let floors = Placement::ALL.map(|(_, placement)| self.floor(Row { placement, ..row }));
        floors
            .into_iter()
            .flatten()
            .min_by(|a, b| a.median().total_cmp(&b.median()))
    }

    /// Returns the ratio of two medians.
    pub fn ratio(&self, row: Row, column: Column, base: Option<&Cell>) -> Option<f64> {
        Some(self.find(row, column)?.median() / base?.median())
    }

    pub fn cells(&self) -> &[Cell] {
        &self.0
    }
}

fn is(cell: &Cell, row: Row, column: Column) -> bool {
    cell.fs == row.fs
        && cell.workload == row.workload
        && cell.placement == row.placement
        && cell.column == column
}

/// Formats a measurement in the unit of its workload.
pub fn shown(seconds: f64, workload: &Workload) -> String {
    match workload.unit {
        Unit::Seconds if seconds < 0.1 => format!("{:.1} ms", seconds * 1e3),
        Unit::Seconds => format!("{seconds:.2} s"),
        Unit::Each => format!("{:.2} us", seconds * 1e6),
        Unit::Mebibyte => format!("{:.2} GiB/s", 1.0 / seconds / 1024.0),
    }
}
