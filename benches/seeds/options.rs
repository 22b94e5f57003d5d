//! What the command line asks for.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::Fs;
use crate::shared::options::{chosen, each};

/// A seed whose table is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    Platform,
    Spike2,
    Jvs,
    Sy,
    Vrift,
}

const SEEDS: [(&str, Seed); 5] = [
    ("platform", Seed::Platform),
    ("spike2", Seed::Spike2),
    ("jvs", Seed::Jvs),
    ("sy", Seed::Sy),
    ("vrift", Seed::Vrift),
];
const FILESYSTEMS: [(&str, Fs); 4] = [
    ("xfs", Fs::Xfs),
    ("btrfs", Fs::Btrfs),
    ("ext4", Fs::Ext4),
    ("tmpfs", Fs::Tmpfs),
];

/// Of the time that the rounds of a row may take: the whole suite takes a quarter of an hour at
/// most.
const DEFAULT_SHARE: f64 = 0.35;
/// After this, rows get less time, ...
const HURRY: Duration = Duration::from_secs(8 * 60);
/// ... and after this, those that take longest are left out.
const LATE: Duration = Duration::from_secs(11 * 60);
/// What stands in their place.
pub const NO_TIME: &str =
    "left out: no time for it in a run of a quarter of an hour (`--long` has)";

impl Seed {
    pub fn name(self) -> &'static str {
        SEEDS
            .iter()
            .find(|(_, seed)| *seed == self)
            .map_or("", |(name, _)| name)
    }
}

/// See the module documentation of the benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    pub work: Option<PathBuf>,
    pub filesystems: Vec<Fs>,
    pub seeds: Vec<Seed>,
    /// Few rounds and small trees.
    pub quick: bool,
    /// Also what takes very long (300,000 files), and more rounds.
    pub long: bool,
    /// Where every sample is to be written.
    pub json: Option<PathBuf>,
    /// Two lists of such files (with commas) that are to be compared, and nothing measured.
    pub compare: Option<[String; 2]>,
    pub write_docs: bool,
    began: Instant,
}

impl Options {
    pub fn parse() -> Result<Options, String> {
        let mut options = Options {
            work: None,
            filesystems: FILESYSTEMS.map(|(_, fs)| fs).to_vec(),
            seeds: SEEDS.map(|(_, seed)| seed).to_vec(),
            quick: false,
            long: false,
            json: None,
            compare: None,
            began: Instant::now(),
            write_docs: false,
        };
        each(|option, value| {
            match option {
                "--work" => options.work = Some(PathBuf::from(value()?)),
                "--fs" => options.filesystems = chosen(&value()?, &FILESYSTEMS)?,
                "--only" => options.seeds = chosen(&value()?, &SEEDS)?,
                "--json" => options.json = Some(PathBuf::from(value()?)),
                "--compare" => options.compare = Some([value()?, value()?]),
                "--quick" => options.quick = true,
                "--long" => options.long = true,
                "--write-docs" => options.write_docs = true,
                other => return Err(format!("unknown option {other}")),
            }
            Ok(())
        })?;
        Ok(options)
    }

    /// There is no time for a row that takes long.
    pub fn is_late(&self) -> bool {
        !self.long && self.began.elapsed() > LATE
    }

    /// Rounds of which none begins when the time is up, but at least one is done: a slow machine
    /// measures less often, and says so.
    pub fn rounds(&self, most: usize, seconds: u64) -> impl Iterator<Item = usize> + use<> {
        let (most, share) = match (self.quick, self.long) {
            (true, _) => (most.min(3), 0.2),
            (_, true) => (most, 1.0),
            _ if self.began.elapsed() > HURRY => (most, DEFAULT_SHARE / 3.0),
            _ => (most, DEFAULT_SHARE),
        };
        let (limit, began) = (Duration::from_secs(seconds).mul_f64(share), Instant::now());
        (0..most).take_while(move |round| *round == 0 || began.elapsed() < limit)
    }
}
