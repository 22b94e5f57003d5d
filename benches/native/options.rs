//! Command-line options.

use std::path::PathBuf;

use crate::common::Fs;
use crate::lanes::Column;
use crate::place::Placement;
use crate::shared::options::{FILESYSTEMS, chosen, each};

/// See the module documentation of the benchmark.
pub struct Options {
    pub work: Option<PathBuf>,
    pub filesystems: Vec<Fs>,
    pub placements: Vec<Placement>,
    pub columns: Vec<Column>,
    /// Names of scenarios; empty means all.
    pub only: Vec<String>,
    pub rounds: Option<usize>,
    pub files: usize,
    pub quick: bool,
    pub write_docs: bool,
}

/// For a whole run of 20 minutes. More than 15,000 files need a limit of more than 20,000
/// descriptors, because the floor keeps one per inode.
const FILES: usize = 10_000;
const FILES_QUICK: usize = 2_000;

impl Options {
    /// Parses the command line; `known` are the valid names for `--only`.
    pub fn parse(known: &[&str]) -> Result<Options, String> {
        let columns = Column::ALL
            .iter()
            .map(|(_, column)| *column)
            .filter(|column| !matches!(column, Column::Bindfs | Column::Null))
            .collect();
        let mut options = Options {
            work: None,
            filesystems: FILESYSTEMS.map(|(_, fs)| fs).to_vec(),
            placements: Placement::ALL.map(|(_, placement)| placement).to_vec(),
            columns,
            only: Vec::new(),
            rounds: None,
            files: 0,
            quick: false,
            write_docs: false,
        };
        each(|option, value| {
            let number = |text: String| {
                text.parse::<usize>()
                    .ok()
                    .filter(|number| *number > 0)
                    .ok_or(format!("{text:?} is not a number above 0"))
            };
            match option {
                "--work" => options.work = Some(PathBuf::from(value()?)),
                "--fs" => options.filesystems = chosen(&value()?, &FILESYSTEMS)?,
                "--placement" => options.placements = chosen(&value()?, &Placement::ALL)?,
                "--columns" => options.columns = chosen(&value()?, &Column::ALL)?,
                "--only" => options.only = names(&value()?, known)?,
                "--rounds" => options.rounds = Some(number(value()?)?),
                "--files" => options.files = number(value()?)?,
                "--quick" => options.quick = true,
                "--write-docs" => options.write_docs = true,
                other => return Err(format!("unknown option {other}")),
            }
            Ok(())
        })?;
        if options.files == 0 {
            options.files = if options.quick { FILES_QUICK } else { FILES };
        }
        if !options.columns.contains(&Column::Plain) {
            return Err(
                "--columns must include plain: all columns are compared with it".to_owned(),
            );
        }
        Ok(options)
    }

    pub fn wants(&self, scenario: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == scenario)
    }
}

fn names(text: &str, known: &[&str]) -> Result<Vec<String>, String> {
    let table: Vec<(&str, &str)> = known.iter().map(|name| (*name, *name)).collect();
    Ok(chosen(text, &table)?
        .into_iter()
        .map(str::to_owned)
        .collect())
}
