//! Tables with a description of the machine, and docs/benchmarks.md.

use std::fs;
use std::path::Path;

use crate::shared::{machine, markdown};

/// A bound of the project, in milliseconds or as a ratio, and the measured value.
pub struct Bound {
    pub what: String,
    pub limit: f64,
    pub measured: f64,
    pub unit: &'static str,
}

/// One table.
pub struct Table {
    key: &'static str,
    title: &'static str,
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

/// All tables of a run.
pub struct Report {
    tables: Vec<Table>,
    load_before: String,
    quick: bool,
}

impl Report {
    pub fn new(quick: bool) -> Report {
        Report {
            tables: Vec::new(),
            load_before: machine::load(),
            quick,
        }
    }

    /// Adds a row to the table `key`, which the first row creates, and prints it to stderr at once,
    /// because a run takes minutes.
    pub fn row(
        &mut self,
        key: &'static str,
        title: &'static str,
        head: &[&'static str],
        row: Vec<String>,
    ) {
        assert_eq!(head.len(), row.len(), "a row fits its table");
        eprintln!("{key}: {}", row.join("  "));
        match self.tables.iter_mut().find(|table| table.key == key) {
            Some(table) => table.rows.push(row),
            None => self.tables.push(Table {
                key,
                title,
                head: head.to_vec(),
                rows: vec![row],
            }),
        }
    }

    /// Adds a row to the table of bounds.
    pub fn bound(&mut self, name: &str, bound: &Bound) {
        let verdict = if bound.measured <= bound.limit {
            "met"
        } else {
            "**not met**"
        };
        let number = |value: f64| format!("{value:.2} {}", bound.unit).trim_end().to_owned();
        let row = vec![
            name.to_owned(),
            bound.what.clone(),
            format!("{} {}", bound.limit, bound.unit),
            number(bound.measured),
            verdict.to_owned(),
        ];
        self.row(
            "bounds",
            "The bounds of the project",
            &["mount", "what", "at most", "measured", ""],
            row,
        );
    }

    pub fn print(&self) {
        println!("{}\n", self.machine());
        for table in &self.tables {
            println!("### {}\n\n{}", table.title, table.markdown());
        }
    }

    fn machine(&self) -> String {
        let quick = if self.quick {
            " A quick run: few rounds."
        } else {
            ""
        };
        format!("{}{quick}", machine::describe(&self.load_before))
    }

    /// Replaces each measured table in docs/benchmarks.md between its two markers.
    pub fn write_docs(&self) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks.md");
        let mut text =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for table in &self.tables {
            let (begin, end) = (
                format!("<!-- {}:begin -->\n", table.key),
                format!("<!-- {}:end -->", table.key),
            );
            let markers = text
                .find(&begin)
                .zip(text.find(&end))
                .filter(|(from, to)| from < to);
            let Some((from, to)) = markers else {
                panic!("{} lacks the markers of {}", path.display(), table.key)
            };
            text.replace_range(
                from + begin.len()..to,
                &format!("{}\n\n{}", self.machine(), table.markdown()),
            );
        }
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Table {
    fn markdown(&self) -> String {
        markdown::table(&self.head, &self.rows)
    }
}
