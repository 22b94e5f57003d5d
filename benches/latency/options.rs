//! What the command line asks for.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::common::{Fs, Io};

/// A group of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `checkpoint` over the socket, by number of dirty files.
    Checkpoint,
    /// The whole process `ckptfs checkpoint`.
    Cli,
    /// What each file open for writing adds to a checkpoint.
    Hot,
    /// Restore after 60 files changed.
    Restore,
    /// Plain operations beside a plain directory.
    Ops,
    /// Mounting.
    Mount,
}

const SECTIONS: [(&str, Section); 6] = [
    ("checkpoint", Section::Checkpoint),
    ("cli", Section::Cli),
    ("hot", Section::Hot),
    ("restore", Section::Restore),
    ("ops", Section::Ops),
    ("mount", Section::Mount),
];
const FILESYSTEMS: [(&str, Fs); 2] = [("xfs", Fs::Xfs), ("btrfs", Fs::Btrfs)];
const IOS: [(&str, Io); 2] = [("passthrough", Io::Passthrough), ("daemon", Io::Daemon)];

/// See the module documentation of the benchmark.
pub struct Options {
    work: Option<PathBuf>,
    pub filesystems: Vec<Fs>,
    pub ios: Vec<Io>,
    pub sections: Vec<Section>,
    pub quick: bool,
    pub write_docs: bool,
}

impl Options {
    pub fn parse() -> Result<Options, String> {
        let mut options = Options {
            work: None,
            filesystems: FILESYSTEMS.map(|(_, fs)| fs).to_vec(),
            ios: IOS.map(|(_, io)| io).to_vec(),
            sections: SECTIONS.map(|(_, section)| section).to_vec(),
            quick: false,
            write_docs: false,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} wants a value"));
            match argument.as_str() {
                "--work" => options.work = Some(PathBuf::from(value()?)),
                "--fs" => options.filesystems = chosen(&value()?, &FILESYSTEMS)?,
                "--io" => options.ios = chosen(&value()?, &IOS)?,
                "--only" => options.sections = chosen(&value()?, &SECTIONS)?,
                "--quick" => options.quick = true,
                "--write-docs" => options.write_docs = true,
                // cargo bench says so to every benchmark.
                "--bench" => {}
                other => return Err(format!("unknown option {other}")),
            }
        }
        Ok(options)
    }

    /// Makes the harness work in the chosen directory, by starting over with the variable that it reads.
    pub fn enter_work(&self) {
        const VARIABLE: &str = "CKPTFS_TEST_DIR";
        let Some(work) = &self.work else { return };
        if std::env::var_os(VARIABLE).is_some_and(|now| now == *work) {
            return;
        }
        if let Err(error) = std::fs::create_dir_all(work) {
            eprintln!("latency: cannot make {}: {error}", work.display());
            std::process::exit(2);
        }
        let program = std::env::current_exe().expect("this program has a path");
        let error = Command::new(program).args(std::env::args_os().skip(1)).env(VARIABLE, work).exec();
        panic!("cannot start over: {error}");
    }
}

fn chosen<T: Copy>(text: &str, known: &[(&str, T)]) -> Result<Vec<T>, String> {
    let find = |name: &str| known.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    text.split(',')
        .map(|name| find(name).ok_or_else(|| format!("{name:?} is none of {}", known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "))))
        .collect()
}
