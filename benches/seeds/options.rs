//! Command-line options.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::Fs;
use crate::shared::options::{chosen, each};

/// A seed: a predecessor whose table is repeated.
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

/// Share of the time limit of a row's rounds, so that the suite takes at most a quarter of an hour.
const DEFAULT_SHARE: f64 = 0.35;
/// Time after which rows get less time.
const HURRY: Duration = Duration::from_secs(8 * 60);
/// Time after which the slowest rows are skipped.
const LATE: Duration = Duration::from_secs(11 * 60);
/// The text of a skipped row.
pub const NO_TIME: &str =
    "omitted: too slow for a run of a quarter of an hour (`--long` includes it)";

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
    /// Includes very slow rows (300,000 files), and makes more rounds.
    pub long: bool,
    /// The output file for every sample.
    pub json: Option<PathBuf>,
    /// Two comma-separated lists of such files to compare, without a measurement.
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

    /// Reports whether slow rows must be skipped.
    pub fn is_late(&self) -> bool {
        !self.long && self.began.elapsed() > LATE
    }

    /// Returns rounds until the time limit, but at least one: a slow machine makes fewer, and the
    /// report shows their number.
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
