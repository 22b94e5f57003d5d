//! `pjdfstest`: the POSIX calls on files, case by case, as root and as two ordinary users.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use super::exclusions::Verdicts;
use super::support::{SuiteDir, between_checkpoints, suite};
use crate::common::command::write_script;
use crate::common::random::is_long;
use crate::common::{Image, Mount, MountOpts, Variant, for_each_variant, run_limited, tool};

/// Time limit for one run of the suite, which takes two seconds.
const RUN_SECONDS: u64 = 300;
/// Cases in the pinned version.
const CASES: usize = 398;
/// Cases that pass on every tested plain filesystem; the others need features it lacks.
const PASSING_MIN: usize = 390;
/// Runs of the suite during checkpoints, short and long form.
const ROUNDS: u64 = 1;
const ROUNDS_LONG: u64 = 25;
/// The directory of most cases, made before the mount so that a branch inherits it.
const THERE: &str = "there";
/// Interval between checkpoints.
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(50);

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ended {
    Passed,
    /// With its output.
    Failed(String),
    /// With the reason.
    Skipped(String),
}

type Results = BTreeMap<String, Ended>;

/// The environment of the suite.
struct Setting {
    dir: SuiteDir,
    /// A directory of another filesystem.
    other: SuiteDir,
    /// Contains a link to the directory under test, because the suite binds sockets, whose paths
    /// are limited to 107 bytes (unix(7)).
    short: SuiteDir,
}

impl Setting {
    fn new() -> Setting {
        let setting = Setting {
            dir: SuiteDir::new("suite"),
            other: SuiteDir::new("other"),
            short: SuiteDir::short(),
        };
        let users = two_users();
        for (name, remount) in [("plain.toml", false), ("remount.toml", true)] {
            fs::write(
                setting.dir.path().join(name),
                config(&users, setting.other.path(), remount),
            )
            .expect("the run directory is writable");
        }
        // `mount -o remount` of a FUSE filesystem calls the helper of its type, which cannot
        // remount; `-i` calls the kernel directly.
        let bin = setting.dir.path().join("bin");
        fs::create_dir(&bin).expect("the run directory is writable");
        write_script(
            &bin.join("mount"),
            "#!/bin/sh\nPATH=${PATH#*:}\nexec mount -i \"$@\"\n",
        );
        setting
    }

    /// Runs the cases whose names contain `pattern` in `dir`.
    fn run(&self, dir: &Path, remount: bool, pattern: &[&str]) -> Results {
        let config = self.dir.path().join(if remount {
            "remount.toml"
        } else {
            "plain.toml"
        });
        let link = self.short.path().join("d");
        symlink(dir, &link).expect("the directory is writable");
        // Cases that remount bind no socket, and search for the mount point in the path itself.
        let under_test = if remount { dir } else { &link };
        let mut command = tool(
            &suite("pjdfstest").to_string_lossy(),
            &[Path::new("-c"), &config, Path::new("-p"), under_test],
        );
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .args(pattern)
            .env("NO_COLOR", "1")
            .env("RUST_BACKTRACE", "0");
        command.env(
            "PATH",
            format!(
                "{}:{path}:/usr/sbin:/sbin",
                self.dir.path().join("bin").display()
            ),
        );
        let output = run_limited(&mut command, RUN_SECONDS);
        fs::remove_file(&link).expect("the link exists");
        let said = String::from_utf8_lossy(&output.stdout);
        let results = parse(&said);
        assert!(
            said.contains("Summary"),
            "pjdfstest did not finish ({}): {said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        results
    }

    /// Runs all cases. Those that remount the filesystem run separately, because other cases leave
    /// files open for writing, which prevents a remount.
    fn run_all(&self, dir: &Path) -> Results {
        let mut results = self.run(&dir.join(THERE), false, &[]);
        results.extend(self.run(dir, true, &["erofs"]));
        assert_eq!(
            results.len(),
            CASES,
            "the number of cases differs from this version of the suite"
        );
        results
    }
}

/// Returns the names of two ordinary users and of their groups.
fn two_users() -> [(String, String); 2] {
    let read =
        |path: &str| fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (users, groups) = (read("/etc/passwd"), read("/etc/group"));
    let group_of = |gid: &str| {
        groups
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|group| group.get(2) == Some(&gid))
    };
    let ordinary = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .filter(|user| user.len() > 3 && user[2] != "0" && user[3] != "0");
    let mut found: Vec<(String, String)> = ordinary
        .filter_map(|user| Some((user[0].to_owned(), group_of(user[3])?[0].to_owned())))
        .collect();
    // Users present on every system are preferred.
    found.sort_by_key(|(user, _)| !matches!(user.as_str(), "nobody" | "daemon"));
    found.truncate(2);
    found
        .try_into()
        .expect("the system has two users with groups in addition to root")
}

fn config(users: &[(String, String); 2], other: &Path, remount: bool) -> String {
    let [(user, group), (user2, group2)] = users;
    format!(
        "[features]\nsecondary_fs = {other:?}\nposix_fallocate = {{}}\nrename_ctime = {{}}\nstat_st_birthtime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         [settings]\nnaptime = 0.01\nallow_remount = {remount}\n\
         [dummy_auth]\nentries = [[{user:?}, {group:?}], [{user2:?}, {group2:?}]]\n"
    )
}

/// Parses one line per case, `NAME ok|FAILED|skipped`, with details in indented lines below it.
fn parse(said: &str) -> Results {
    let mut results = Results::new();
    let mut last = String::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ended = match words[..] {
            [name, "ok"] if name.contains("::") => Some(Ended::Passed),
            [name, "FAILED"] if name.contains("::") => Some(Ended::Failed(String::new())),
            [name, "skipped"] if name.contains("::") => Some(Ended::Skipped(String::new())),
            _ => None,
        };
        if let Some(ended) = ended {
            words[0].clone_into(&mut last);
            results.insert(last.clone(), ended);
        } else if let Some(Ended::Failed(why) | Ended::Skipped(why)) = results.get_mut(&last)
            && !line.starts_with("Summary")
        {
            why.push_str(line.trim());
            why.push(' ');
        }
    }
    results
}

/// Compares the results through the mount with those of the plain filesystem.
fn compare(plain: &Results, mounted: &Results) -> Verdicts {
    let mut verdicts = Verdicts::default();
    for (case, _) in plain.iter().filter(|(_, ended)| **ended == Ended::Passed) {
        let problem = match mounted.get(case) {
            Some(Ended::Passed) => None,
            other => Some(format!("{other:?}")),
        };
        verdicts.add(case, problem);
    }
    assert!(
        verdicts.required() >= PASSING_MIN,
        "only {} cases pass on the plain filesystem: {plain:?}",
        verdicts.required()
    );
    verdicts
}

/// Returns the results on the plain filesystem of an image, and a mount of another directory of it.
fn start(v: Variant, setting: &Setting) -> (Results, Image, Mount) {
    let image = Image::of(v.fs);
    let [plain, project] = ["plain", "project"].map(|name| {
        fs::create_dir(image.dir(name).join(THERE)).expect("the image is empty");
        image.dir(name)
    });
    let plain = setting.run_all(&plain);
    let mut opts = MountOpts::new(v.io).arg("-odev,suid");
    opts.limit += Duration::from_secs(ROUNDS_LONG * 30);
    let mount = Mount::start(&project, &opts);
    (plain, image, mount)
}

fn every_case(v: Variant) {
    let setting = Setting::new();
    let (plain, _image, mount) = start(v, &setting);
    compare(&plain, &setting.run_all(mount.path())).check("pjdfstest", v);
}

/// Runs the suite while checkpoints are made, so that the cases change files that views show. Cases
/// that remount are excluded, because a checkpoint is a change, and a mount that is read-only for a
/// moment refuses none of them.
fn every_case_while_checkpoints_are_made(v: Variant) {
    let setting = Setting::new();
    let (plain, _image, mount) = start(v, &setting);
    let plain: Results = plain
        .into_iter()
        .filter(|(case, _)| !case.contains("erofs"))
        .collect();
    for round in 0..if is_long() { ROUNDS_LONG } else { ROUNDS } {
        let (results, made) = between_checkpoints(mount.path(), CHECKPOINT_PAUSE, || {
            setting.run(&mount.path().join(THERE), false, &[])
        });
        assert!(
            made > 1,
            "round {round}: no checkpoint was made while the suite ran"
        );
        let mut verdicts = Verdicts::default();
        for (case, _) in plain.iter().filter(|(_, ended)| **ended == Ended::Passed) {
            verdicts.add(
                case,
                (results.get(case) != Some(&Ended::Passed))
                    .then(|| format!("round {round}: {:?}", results.get(case))),
            );
        }
        verdicts.check("pjdfstest", v);
    }
}

#[test]
fn what_the_suite_says_is_understood() {
    let said = "a::b     ok\nc::d    FAILED\n\tleft 1\n\tright 2\ne::f  skipped\n\tno root\n\nSummary: 1 failed, 1 skipped, 1 passed";
    let results = parse(said);
    assert_eq!(results["a::b"], Ended::Passed);
    assert_eq!(results["c::d"], Ended::Failed("left 1 right 2 ".to_owned()));
    assert!(matches!(&results["e::f"], Ended::Skipped(why) if why.starts_with("no root")));
    assert_eq!(results.len(), 3);
}

for_each_variant! { reflink => every_case, every_case_while_checkpoints_are_made }
for_each_variant! { branch => every_case, every_case_while_checkpoints_are_made }
