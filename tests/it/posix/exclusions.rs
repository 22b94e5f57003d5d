//! The list of known deviations of the mount, `exclusions.txt`. An unneeded line is an error.

use std::collections::BTreeSet;

use crate::common::{MountOpts, Variant};

const LIST: &str = include_str!("exclusions.txt");

/// Minimum length of a reason.
const REASON_WORDS_MIN: usize = 5;

/// One line of the list.
#[derive(Debug)]
struct Exclusion {
    suite: &'static str,
    case: &'static str,
    variant: &'static str,
}

fn parse(list: &'static str) -> Result<Vec<Exclusion>, String> {
    let lines = list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &'static str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [suite, case, variant, ref reason @ ..]
                if reason.len() >= REASON_WORDS_MIN && variant.contains('_') =>
            {
                Ok(Exclusion {
                    suite,
                    case,
                    variant,
                })
            }
            _ => Err(format!("not SUITE CASE VARIANT REASON: {line}")),
        }
    };
    lines.map(entry).collect()
}

fn matches(pattern: &str, v: Variant) -> bool {
    let part = |pattern: &str, name: &str| pattern == "*" || pattern == name;
    pattern
        .split_once('_')
        .is_some_and(|(fs, io)| part(fs, v.fs.name()) && part(io, v.io.name()))
}

/// The results of one suite on one variant.
#[derive(Debug, Default)]
pub struct Verdicts {
    /// Cases that passed on the plain filesystem but not through the mount, with their output.
    worse: Vec<(String, String)>,
    /// Every case that passed on the plain filesystem.
    required: BTreeSet<String>,
}

impl Verdicts {
    /// Adds a case that passed on the plain filesystem; `problem` is its output if it did not pass
    /// through the mount.
    pub fn add(&mut self, case: &str, problem: Option<String>) {
        self.required.insert(case.to_owned());
        self.worse
            .extend(problem.map(|problem| (case.to_owned(), problem)));
    }

    /// Returns how many cases must pass.
    pub fn required(&self) -> usize {
        self.required.len()
    }

    /// Panics when a case is worse through the mount and not excluded, or is excluded and not
    /// worse.
    pub fn check(&self, suite: &str, v: Variant) {
        let problems = self.problems(
            &parse(LIST).unwrap_or_else(|problem| panic!("exclusions.txt: {problem}")),
            suite,
            v,
        );
        assert!(
            problems.is_empty(),
            "{suite} on {v:?}:\n{}",
            problems.join("\n")
        );
    }

    fn problems(&self, list: &[Exclusion], suite: &str, v: Variant) -> Vec<String> {
        let on_branch = MountOpts::new(v.io).branch;
        let is_of = |entry: &str| match entry.strip_suffix("@branch") {
            Some(entry) => on_branch && entry == suite,
            None => entry == suite,
        };
        let of_suite = |entry: &&Exclusion| is_of(entry.suite) && matches(entry.variant, v);
        let excluded: BTreeSet<&str> = list
            .iter()
            .filter(of_suite)
            .map(|entry| entry.case)
            .collect();
        let worse = self
            .worse
            .iter()
            .filter(|(case, _)| !excluded.contains(case.as_str()));
        let mut problems: Vec<String> = worse
            .map(|(case, problem)| {
                format!(
                    "{case} passes on the plain filesystem but not through the mount: {problem}"
                )
            })
            .collect();
        let is_worse = |case: &str| self.worse.iter().any(|(worse, _)| worse == case);
        let needless = excluded.iter().filter(|case| !is_worse(case));
        problems.extend(needless.map(|case| {
            format!(
                "{case} is excluded and passes (or is no such case): take it out of exclusions.txt"
            )
        }));
        problems
    }
}

#[test]
fn the_list_can_only_shrink() {
    use crate::common::{Fs, Io};
    let list = "s known *_daemon because it is so and so\ns gone xfs_* because it was so and so\ns other btrfs_daemon because it was so and so\n";
    let list = parse(list).unwrap();
    let mut verdicts = Verdicts::default();
    verdicts.add("known", Some("EIO".to_owned()));
    verdicts.add("gone", None);
    let on = |io| verdicts.problems(&list, "s", Variant { fs: Fs::Xfs, io });
    assert_eq!(
        on(Io::Daemon),
        ["gone is excluded and passes (or is no such case): take it out of exclusions.txt"]
    );
    assert_eq!(
        on(Io::Passthrough).len(),
        2,
        "known is not excluded there, gone is needless"
    );
    assert!(
        verdicts
            .problems(
                &list,
                "another",
                Variant {
                    fs: Fs::Xfs,
                    io: Io::Daemon
                }
            )
            .len()
            == 1
    );
    assert!(
        parse("s case *_daemon no reason").is_err(),
        "a reason has an explanation"
    );
    parse(LIST).unwrap();
}
