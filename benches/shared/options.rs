//! Command-line options common to the benchmarks.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::common::Fs;

/// The filesystems to measure.
pub const FILESYSTEMS: [(&str, Fs); 2] = [("xfs", Fs::Xfs), ("btrfs", Fs::Btrfs)];

/// Selects the harness's work directory by executing this program again with the environment
/// variable set.
pub fn enter_work(work: Option<&Path>) {
    const VARIABLE: &str = "CKPTFS_TEST_DIR";
    let Some(work) = work else { return };
    if std::env::var_os(VARIABLE).is_some_and(|now| now == work) {
        return;
    }
    if let Err(error) = std::fs::create_dir_all(work) {
        eprintln!("cannot create {}: {error}", work.display());
        std::process::exit(2);
    }
    let program = std::env::current_exe().expect("the path of this program is known");
    let error = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(VARIABLE, work)
        .exec();
    panic!("cannot execute this program again: {error}");
}

/// Parses a comma-separated list of names into their values.
pub fn chosen<T: Copy>(text: &str, known: &[(&str, T)]) -> Result<Vec<T>, String> {
    let find = |name: &str| {
        known
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    };
    text.split(',')
        .map(|name| {
            find(name).ok_or_else(|| {
                format!(
                    "{name:?} is not one of {}",
                    known
                        .iter()
                        .map(|(name, _)| *name)
                        .collect::<Vec<_>>()
                        .join(", ")
                )
            })
        })
        .collect()
}

/// Calls `take` with each option and a function that returns its value.
pub fn each(
    mut take: impl FnMut(&str, &mut dyn FnMut() -> Result<String, String>) -> Result<(), String>,
) -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or_else(|| format!("{argument} requires a value"))
        };
        // `cargo bench` passes this option to every benchmark.
        if argument != "--bench" {
            take(&argument, &mut value)?;
        }
    }
    Ok(())
}
