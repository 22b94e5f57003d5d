//! Lists of changed paths, as `status`, `diff` and `restore` print them.

use std::io;

use crate::error::{Failure, Outcome};
use crate::listing;
use crate::output::{Out, Role};
use ckptfs_api::display::{self, word};
use ckptfs_api::{AbsenceInfo, Change, ChangeKind, TreePath, Why};

/// Prints one line per change: the letter and the path, or both paths of a rename.
pub fn print(out: &mut Out, changes: &[Change]) -> io::Result<()> {
    for change in changes {
        let mut line = line(out, change);
        line.push(b'\n');
        out.bytes(&line)?;
    }
    Ok(())
}

/// The option `--all` of the verbs that list their changes.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct ListAllArg {
    /// List every path, even if the list does not fit on the terminal
    #[arg(long)]
    all: bool,
}

impl ListAllArg {
    /// Prints one line per change, on a terminal no more than fit on it.
    pub fn print(self, out: &mut Out, changes: &[Change]) -> io::Result<()> {
        print_fitting(out, changes, 1, (!self.all).then_some("--all"))
    }
}

/// Prints one line per change. On a terminal it prints no more than fit on it with `other` lines,
/// if `option` names the option that prints all.
pub fn print_fitting(
    out: &mut Out,
    changes: &[Change],
    other: usize,
    option: Option<&str>,
) -> io::Result<()> {
    let (shown, more) = listing::fitting(out, changes, other, option);
    print(out, shown)?;
    more.map_or(Ok(()), |more| out.line(&more))
}

/// Reports whether a change is at or below one of these paths, or a rename from there.
pub fn is_below(change: &Change, paths: &[TreePath]) -> bool {
    let below = |path: &TreePath, top: &TreePath| {
        top.0.is_empty()
            || path
                .0
                .strip_prefix(top.0.as_slice())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    let is_below = |path: &TreePath| paths.iter().any(|top| below(path, top));
    is_below(&change.path) || change.from.as_ref().is_some_and(is_below)
}

/// Formats a change: the letter and the path, or both paths of a rename.
pub fn line(out: &Out, change: &Change) -> Vec<u8> {
    let letter = out.paint(
        role(change.change),
        change.change.letter().encode_utf8(&mut [0; 4]),
    );
    let mut line = letter.into_bytes();
    line.push(b' ');
    if let Some(from) = &change.from {
        line.extend_from_slice(&out.name(path(from)));
        line.extend_from_slice(b" -> ");
    }
    line.extend_from_slice(&out.name(path(&change.path)));
    line
}

/// Formats the number of changes made while nothing was mounted, with the command that lists them.
pub fn absence(absence: &AbsenceInfo) -> String {
    let AbsenceInfo {
        before,
        after,
        paths,
    } = absence;
    format!(
        "{} while nothing was mounted: ckptfs diff {} {}",
        count(*paths),
        word(before),
        word(after)
    )
}

/// Prints only the paths: one per line, or terminated by NUL and unescaped.
pub fn print_names(out: &mut Out, changes: &[Change], nul: bool) -> io::Result<()> {
    for change in changes {
        let name = path(&change.path);
        let line = if nul {
            [name, b"\0"].concat()
        } else {
            [&out.name(name), &b"\n"[..]].concat()
        };
        out.bytes(&line)?;
    }
    Ok(())
}

/// Prints letter NUL path NUL, of a rename letter NUL old path NUL new path NUL, unescaped.
pub fn print_nul(out: &mut Out, changes: &[Change]) -> io::Result<()> {
    for change in changes {
        let mut line = vec![change.change.letter() as u8, 0];
        for name in change.from.iter().chain([&change.path]) {
            line.extend_from_slice(path(name));
            line.push(0);
        }
        out.bytes(&line)?;
    }
    Ok(())
}

/// Warns about each change of unknown kind, with the reason.
///
/// # Errors
/// `Failure::No` if the list has such a change.
pub fn all_told(out: &mut Out, changes: &[Change]) -> Outcome {
    out.flush()?;
    let mut unknown = changes
        .iter()
        .filter(|change| change.change == ChangeKind::Unknown)
        .peekable();
    let whole = unknown.peek().is_none();
    for change in unknown {
        let why = change.why.unwrap_or(Why::Unreadable).words();
        out.warn(&format!(
            "cannot tell how {} differs: {why}",
            String::from_utf8_lossy(path(&change.path))
        ));
    }
    if whole { Ok(()) } else { Err(Failure::No) }
}

/// Formats "1 change", "2 changes".
pub fn count(count: u64) -> String {
    display::count(count, "change")
}

/// Returns the path to print: `.` for the root of the tree, whose path is empty.
fn path(path: &TreePath) -> &[u8] {
    if path.0.is_empty() { b"." } else { &path.0 }
}

fn role(change: ChangeKind) -> Role {
    match change {
        ChangeKind::Added => Role::Good,
        ChangeKind::Deleted | ChangeKind::Unknown => Role::Bad,
        ChangeKind::Modified | ChangeKind::Renamed | ChangeKind::TypeChanged => Role::Notice,
    }
}
