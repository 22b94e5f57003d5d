//! The committed numbers, and the check against them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

/// A bound is exceeded only if each of this number of sessions exceeds it.
pub const SESSIONS: usize = 3;

const HEAD: &str = "\
# Counts: the bounds of tests/it/bounds. Lines of this file are lowered (CKPTFS_BLESS=1 cargo test --test it -- bounds:: does that) or added. A number is never
# raised to make a test pass: CONTRIBUTING.md.
";

type Numbers = BTreeMap<String, f64>;

/// Serializes writes by the tests of one process.
static WRITING: Mutex<()> = Mutex::new(());

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/bounds/baseline.toml")
}

fn read() -> Numbers {
    parse(&fs::read_to_string(file()).unwrap_or_default())
}

fn parse(text: &str) -> Numbers {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let number = |line: &str| {
        let (name, value) = line.rsplit_once(" = ")?;
        Some((name.trim_matches('"').to_owned(), value.parse().ok()?))
    };
    lines
        .map(|line| number(line).unwrap_or_else(|| panic!("baseline.toml: {line}")))
        .collect()
}

fn blesses() -> bool {
    std::env::var_os("CKPTFS_BLESS").is_some_and(|value| value == "1")
}

/// Returns the numbers with this one added, or lowered to it.
fn lowered(mut numbers: Numbers, name: &str, value: f64) -> Numbers {
    let known = numbers.entry(name.to_owned()).or_insert(value);
    *known = known.min(value);
    numbers
}

fn bless(name: &str, value: f64) {
    let _one_at_a_time = WRITING
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut text = HEAD.to_owned();
    for (name, value) in lowered(read(), name, value) {
        let _ = writeln!(text, "\"{name}\" = {value:.2}");
    }
    fs::write(file(), text).expect("the baseline can be written");
}

/// Returns the median.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures `name` with `session`, which receives the bound and may stop once it has measured less.
///
/// Panics if each of three sessions exceeds the bound; writes the baseline in bless mode.
pub fn holds(name: &str, bound: impl Fn(f64) -> f64, mut session: impl FnMut(f64) -> f64) {
    if blesses() {
        // With a bound of zero a session measures for its full duration.
        let found = median((0..SESSIONS).map(|_| session(0.0)).collect());
        return bless(name, found);
    }
    let known = read().get(name).copied().unwrap_or_else(|| {
        panic!("baseline.toml has no line \"{name}\": CKPTFS_BLESS=1 cargo test --test it bounds::")
    });
    let found = first_within(bound(known), &mut session);
    let most = bound(known);
    assert!(
        found.is_ok(),
        "{name}: {:.2?} in {SESSIONS} sessions, and at most {most:.2} is allowed (the baseline is {known:.2}). Find the cause of the increase; do not raise the baseline to make this test pass",
        found.unwrap_err()
    );
}

/// Returns the first value within `most`, or all values if every session exceeds it.
fn first_within(most: f64, session: &mut impl FnMut(f64) -> f64) -> Result<f64, Vec<f64>> {
    let mut found = Vec::new();
    for _ in 0..SESSIONS {
        match session(most) {
            value if value <= most => return Ok(value),
            value => found.push(value),
        }
    }
    Err(found)
}

#[test]
fn only_what_each_session_finds_breaks_a_bound() {
    let mut at = 0;
    let mut told = |values: [f64; SESSIONS]| {
        at = 0;
        first_within(2.0, &mut |_| {
            at += 1;
            values[at - 1]
        })
    };
    assert_eq!(told([5.0, 3.0, 2.0]), Ok(2.0));
    assert_eq!(told([1.0, f64::NAN, f64::NAN]), Ok(1.0));
    assert_eq!(told([5.0, 3.0, 2.1]), Err(vec![5.0, 3.0, 2.1]));
}

#[test]
fn a_baseline_is_lowered_and_never_raised() {
    let numbers = parse("# a word\n\"a, b = c\" = 1.50\n");
    assert_eq!(numbers, [("a, b = c".to_owned(), 1.5)].into());
    assert_eq!(lowered(numbers.clone(), "a, b = c", 9.0)["a, b = c"], 1.5);
    assert_eq!(lowered(numbers.clone(), "a, b = c", 1.2)["a, b = c"], 1.2);
    assert_eq!(lowered(numbers, "new", 3.0)["new"], 3.0);
}
