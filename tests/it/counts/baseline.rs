//! Stored counts of an earlier run, and the comparison with them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

/// Counts by name; compared and written as text with two decimals, or none if whole.
type CountsByName = BTreeMap<String, f64>;

/// Attempts before an excess is reported, and sessions for a new baseline.
const ATTEMPTS: usize = 3;

/// Stored counts by workload, and the counts of this run.
pub struct Baseline {
    name: String,
    known: BTreeMap<String, CountsByName>,
    counted: Vec<(String, CountsByName)>,
    problems: Vec<String>,
    lower: Vec<String>,
}

/// Returns the kernel release of the baseline: other kernels make other requests.
fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc is mounted");
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/counts/baseline")
        .join(format!("{name}.txt"))
}

fn blesses() -> bool {
    std::env::var_os("CKPTFS_BLESS").is_some_and(|value| value == "1")
}

impl Baseline {
    /// Reads `tests/it/counts/baseline/NAME.txt`.
    ///
    /// # Errors
    /// Returns the reason why the baseline does not apply: it was written on another kernel, which
    /// makes other requests.
    fn read(name: &str) -> Result<Baseline, String> {
        let text = fs::read_to_string(file(name)).unwrap_or_default();
        let written_on = text
            .lines()
            .find_map(|line| line.strip_prefix("kernel "))
            .unwrap_or_default();
        if !blesses() && !text.is_empty() && written_on != kernel() {
            return Err(format!(
                "the baseline is for Linux {written_on}, and this is {}",
                kernel()
            ));
        }
        let known = text
            .lines()
            .filter(|line| !line.starts_with("kernel "))
            .filter_map(parse)
            .collect();
        Ok(Baseline {
            name: name.to_owned(),
            known,
            counted: Vec::new(),
            problems: Vec::new(),
            lower: Vec::new(),
        })
    }

    /// Compares the counts of a workload with the baseline, with a tolerance of `slack` for each.
    pub fn check(&mut self, workload: &str, counted: CountsByName, slack: f64) {
        let none = CountsByName::new();
        let known = self.known.get(workload).unwrap_or(&none);
        for name in counted
            .keys()
            .chain(known.keys().filter(|name| !counted.contains_key(*name)))
        {
            let (now, before) = (
                counted.get(name).copied().unwrap_or(0.0),
                known.get(name).copied().unwrap_or(0.0),
            );
            let line = format!(
                "{workload}: {name} {} instead of {}",
                number(now),
                number(before)
            );
            if now > before + slack + f64::EPSILON {
                self.problems.push(line);
            } else if now + slack + f64::EPSILON < before {
                self.lower.push(line);
            }
        }
        self.counted.push((workload.to_owned(), counted));
    }

    /// Reports workloads of the baseline that are no longer counted; returns whether there are no
    /// problems.
    fn complete(&mut self) -> bool {
        let stale = self
            .known
            .keys()
            .filter(|known| !self.counted.iter().any(|(workload, _)| workload == *known));
        self.problems
            .extend(stale.map(|workload| format!("{workload}: no test counts it any more")));
        self.problems.is_empty()
    }

    /// Retains only the problems that all other sessions also found, with any count.
    fn only_found_each_time(&mut self, others: &[Baseline]) {
        let about = |line: &str| {
            line.rsplit_once(" instead of ")
                .and_then(|(counted, _)| counted.rsplit_once(' '))
                .map(|(about, _)| about.to_owned())
        };
        let same = |one: &str, other: &str| {
            one == other || (about(one).is_some() && about(one) == about(other))
        };
        self.problems.retain(|line| {
            others
                .iter()
                .all(|other| other.problems.iter().any(|found| same(line, found)))
        });
    }

    /// Replaces each count by the median of all sessions.
    fn take_median(&mut self, others: &[Baseline]) {
        for (index, (_, row)) in self.counted.iter_mut().enumerate() {
            let rows: Vec<CountsByName> = others
                .iter()
                .map(|other| other.counted[index].1.clone())
                .chain([row.clone()])
                .collect();
            let median = |name: &String| {
                let mut counts: Vec<f64> = rows
                    .iter()
                    .map(|row| row.get(name).copied().unwrap_or(0.0))
                    .collect();
                counts.sort_by(f64::total_cmp);
                (name.clone(), counts[counts.len() / 2])
            };
            *row = rows
                .iter()
                .flat_map(|row| row.keys())
                .map(median)
                .filter(|(_, count)| *count > 0.0)
                .collect();
        }
    }

    /// Fails if a count exceeds the baseline, or writes the baseline if requested.
    fn finish(self) {
        if blesses() {
            fs::write(file(&self.name), self.text()).expect("the baseline can be written");
            return;
        }
        if !self.lower.is_empty() {
            // Not `println!`, because the test runner discards the output of a passing test.
            let mut out = std::io::stdout().lock();
            let _ = writeln!(
                out,
                "\nlower the baseline {} (CKPTFS_BLESS=1 cargo test --test it counts::):\n{}",
                self.name,
                self.lower.join("\n")
            );
        }
        let name = &self.name;
        let hint = "if this is intended: CKPTFS_BLESS=1 cargo test --test it counts::";
        assert!(
            self.problems.is_empty(),
            "more than the baseline {name} ({hint}):\n{}\n\nall counts:\n{}",
            self.problems.join("\n"),
            self.text()
        );
    }

    fn text(&self) -> String {
        let mut text = format!("kernel {}\n", kernel());
        for (workload, row) in &self.counted {
            let numbers: Vec<String> = row
                .iter()
                .map(|(name, count)| format!("{name}={}", number(*count)))
                .collect();
            let _ = writeln!(
                text,
                "{workload}: {} # {}",
                numbers.join(" "),
                number(row.values().sum::<f64>().abs())
            );
        }
        text
    }
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value}")
    } else {
        format!("{value:.2}")
    }
}

fn parse(line: &str) -> Option<(String, CountsByName)> {
    let (workload, numbers) = line.split('#').next()?.rsplit_once(':')?;
    let numbers = numbers.split_whitespace().map(|word| {
        let (name, value) = word
            .split_once('=')
            .unwrap_or_else(|| panic!("{word} in {line}"));
        (
            name.to_owned(),
            value.parse().unwrap_or_else(|_| panic!("{word} in {line}")),
        )
    });
    Some((workload.to_owned(), numbers.collect()))
}

/// Runs `session` with the baseline `name`, and fails if counts exceed the baseline, or writes it.
///
/// Under memory pressure the kernel drops cached inodes and repeats requests. Therefore only
/// problems of every attempt count, and a new baseline stores the median of as many sessions.
///
/// # Errors
/// Returns the reason why nothing can be counted or compared here.
pub fn compare(
    name: &str,
    session: impl Fn(Baseline) -> Result<Baseline, String>,
) -> Result<(), String> {
    let mut before = Vec::new();
    loop {
        let mut counted = session(Baseline::read(name)?)?;
        let last = before.len() + 1 == ATTEMPTS;
        if last && blesses() {
            counted.take_median(&before);
        }
        if last || (counted.complete() && !blesses()) {
            counted.only_found_each_time(&before);
            counted.finish();
            return Ok(());
        }
        before.push(counted);
    }
}

#[test]
fn more_is_a_problem_less_is_a_hint_and_slack_is_neither() {
    let row = |numbers: &[(&str, f64)]| -> CountsByName {
        numbers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    };
    let known = [("w".to_owned(), row(&[("open", 10.0), ("read", 5.0)]))].into();
    let mut baseline = Baseline {
        name: "none".to_owned(),
        known,
        counted: Vec::new(),
        problems: Vec::new(),
        lower: Vec::new(),
    };
    baseline.check("w", row(&[("open", 10.5), ("read", 4.5)]), 0.5);
    assert!(baseline.problems.is_empty() && baseline.lower.is_empty());
    baseline.check("w", row(&[("open", 10.0), ("write", 1.0)]), 0.5);
    assert_eq!(baseline.problems, ["w: write 1 instead of 0"]);
    assert_eq!(baseline.lower, ["w: read 0 instead of 5"]);
    assert_eq!(
        parse(baseline.text().lines().nth(2).unwrap_or_default()),
        Some(("w".to_owned(), row(&[("open", 10.0), ("write", 1.0)])))
    );
}

#[test]
fn only_what_each_session_finds_is_a_problem() {
    let with = |problems: &[&str]| Baseline {
        name: "none".to_owned(),
        known: Default::default(),
        counted: Vec::new(),
        problems: problems.iter().map(|line| (*line).to_owned()).collect(),
        lower: Vec::new(),
    };
    let others = [
        with(&["w: open 12 instead of 10", "w: read 6 instead of 5"]),
        with(&["w: open 13 instead of 10", "v: open 6 instead of 5"]),
    ];
    let mut last = with(&[
        "w: open 11 instead of 10",
        "w: read 6 instead of 5",
        "v: open 6 instead of 5",
    ]);
    last.only_found_each_time(&others);
    assert_eq!(last.problems, ["w: open 11 instead of 10"]);
}
