//! Command-line options.

use std::path::PathBuf;

use crate::common::{Fs, Io};
use crate::shared::options::{FILESYSTEMS, chosen, each};

/// A group of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `checkpoint` over the socket, by number of dirty files.
    Checkpoint,
    /// The process `ckptfs checkpoint`.
    Cli,
    /// Cost per file open for writing during a checkpoint.
    Hot,
    /// Restore after 60 files changed.
    Restore,
    /// Plain operations, compared with a plain directory.
    Ops,
    /// Mounting.
    Mount,
    /// Memory of the daemon by cached inodes; first filesystem only.
    Memory,
    /// Lookups in 10,000 checkpoints; first filesystem only.
    History,
}

const SECTIONS: [(&str, Section); 8] = [
    ("checkpoint", Section::Checkpoint),
    ("cli", Section::Cli),
    ("hot", Section::Hot),
    ("restore", Section::Restore),
    ("ops", Section::Ops),
    ("mount", Section::Mount),
    ("memory", Section::Memory),
    ("history", Section::History),
];
const IOS: [(&str, Io); 2] = [("passthrough", Io::Passthrough), ("daemon", Io::Daemon)];

/// See the module documentation of the benchmark.
pub struct Options {
    pub work: Option<PathBuf>,
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
        each(|option, value| {
            match option {
                "--work" => options.work = Some(PathBuf::from(value()?)),
                "--fs" => options.filesystems = chosen(&value()?, &FILESYSTEMS)?,
                "--io" => options.ios = chosen(&value()?, &IOS)?,
                "--only" => options.sections = chosen(&value()?, &SECTIONS)?,
                "--quick" => options.quick = true,
                "--write-docs" => options.write_docs = true,
                other => return Err(format!("unknown option {other}")),
            }
            Ok(())
        })?;
        Ok(options)
    }
}
