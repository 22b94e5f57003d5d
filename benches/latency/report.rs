//! Tables, the machine they were measured on, and docs/benchmarks.md.

use std::fs;
use std::path::Path;
use std::process::Command;

/// A bound of the project, in milliseconds or as a ratio, and what was measured.
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
        Report { tables: Vec::new(), load_before: load(), quick }
    }

    /// Adds a row to the table `key`, which is made with the first one. Says it on stderr at once, for a run takes minutes.
    pub fn row(&mut self, key: &'static str, title: &'static str, head: &[&'static str], row: Vec<String>) {
        assert_eq!(head.len(), row.len(), "a row fits its table");
        eprintln!("{key}: {}", row.join("  "));
        match self.tables.iter_mut().find(|table| table.key == key) {
            Some(table) => table.rows.push(row),
            None => self.tables.push(Table { key, title, head: head.to_vec(), rows: vec![row] }),
        }
    }

    /// Adds a row to the table of bounds.
    pub fn bound(&mut self, name: &str, bound: &Bound) {
        let verdict = if bound.measured <= bound.limit { "met" } else { "**not met**" };
        let number = |value: f64| format!("{value:.2} {}", bound.unit).trim_end().to_owned();
        let row = vec![name.to_owned(), bound.what.clone(), format!("{} {}", bound.limit, bound.unit), number(bound.measured), verdict.to_owned()];
        self.row("bounds", "The bounds of the project", &["mount", "what", "at most", "measured", ""], row);
    }

    pub fn print(&self) {
        println!("{}\n", self.machine());
        for table in &self.tables {
            println!("### {}\n\n{}", table.title, table.markdown());
        }
    }

    fn machine(&self) -> String {
        let date = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC");
        let cpu = cpu_model();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let quick = if self.quick { " A quick run: few rounds." } else { "" };
        format!(
            "Measured {date} at commit {}, on {cores} cores of {cpu}, Linux {}, filesystems on loop-mounted images; load average {} before and {} after \
             (1, 5, 15 minutes).{quick}",
            commit(),
            kernel.trim(),
            self.load_before,
            load()
        )
    }

    /// Replaces each measured table in docs/benchmarks.md between its two markers.
    pub fn write_docs(&self) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks.md");
        let mut text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for table in &self.tables {
            let (begin, end) = (format!("<!-- {}:begin -->\n", table.key), format!("<!-- {}:end -->", table.key));
            let markers = text.find(&begin).zip(text.find(&end)).filter(|(from, to)| from < to);
            let Some((from, to)) = markers else { panic!("{} lacks the markers of {}", path.display(), table.key) };
            text.replace_range(from + begin.len()..to, &format!("{}\n\n{}", self.machine(), table.markdown()));
        }
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Table {
    fn markdown(&self) -> String {
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        let mut text = line(self.head.clone());
        text += &line(vec!["---"; self.head.len()]);
        for row in &self.rows {
            text += &line(row.iter().map(String::as_str).collect());
        }
        text
    }
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or("an unknown processor", |(_, name)| name).to_owned()
}

/// The commit, with a mark if the sources differ from it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    let changed = if git(&["status", "--porcelain", "--", "src", "benches", "Cargo.lock"]).is_empty() { "" } else { " with changes" };
    format!("{}{changed}", git(&["rev-parse", "--short=10", "HEAD"]))
}
