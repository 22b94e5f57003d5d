//! `ckptfs diff`.

use std::io;
use std::path::PathBuf;

use ckptfs_api::display::count as plural;
use ckptfs_api::{
    Change, CheckpointInfo, Code, Compare, CompareByProcess, StateName, TreePath, VerbError,
    VerbResult,
};
use ckptfs_sys::Errno;
use ckptfs_ui::changes_by_process::{self, By};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome, hinted};
use ckptfs_ui::hunks::Style;
use ckptfs_ui::output::{Out, Role};
use ckptfs_ui::past::{StateTree, state};
use ckptfs_ui::tree_path::in_tree;
use ckptfs_ui::{changes, locate, patch};

/// List the changes from one checkpoint to another, or to the live tree
///
/// One line per path: A added, M modified, D deleted, R renamed, T type changed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The older state: a number, a tag, `latest~2`, `@{10min ago}`
    #[arg(value_name = "A", default_value = "latest")]
    from: String,
    /// The newer state; by default the live tree (`live`)
    #[arg(value_name = "B")]
    to: Option<String>,
    /// Only these paths, and paths below them; relative to the working directory
    #[arg(value_name = "PATHS", last = true, conflicts_with = "by")]
    paths: Vec<PathBuf>,
    /// Add the sizes of files, and the number of bytes added and removed
    #[arg(long, conflicts_with_all = ["name_only", "nul", "patch", "json"])]
    stat: bool,
    /// Print a patch for `git apply`
    #[arg(short, long, conflicts_with_all = ["name_only", "nul", "json"])]
    patch: bool,
    /// Print a patch for reading, with changes word by word: [-removed-]{+added+}
    #[arg(long, conflicts_with_all = ["stat", "name_only", "nul", "json", "by"])]
    word_diff: bool,
    /// Print only the paths
    #[arg(long, conflicts_with = "json")]
    name_only: bool,
    /// Terminate each field with NUL and escape nothing
    #[arg(short = 'z', conflicts_with = "json")]
    nul: bool,
    /// Group the changes by their origin
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with_all = ["stat", "patch", "name_only", "nul"])]
    by: Option<By>,
}

impl Args {
    /// Interprets `diff PATH`: a word that names no state but an existing file is a path.
    fn take_for_paths(&mut self, served: &mut locate::ServedTree) {
        let is_unknown = |unknown: VerbError| unknown.code == Code::UnknownCheckpoint;
        let is_path = self.paths.is_empty()
            && served.cwd.join(&self.from).symlink_metadata().is_ok()
            && state(served, &self.from).is_err_and(is_unknown);
        if is_path {
            let from = std::mem::replace(&mut self.from, "latest".to_owned());
            let words = std::iter::once(from).chain(self.to.take());
            self.paths = words.map(PathBuf::from).collect();
        }
    }

    /// Returns the arguments for the changes since a checkpoint, as a patch or as a list.
    pub fn since(from: String, patch: bool, word_diff: bool) -> Args {
        Args {
            from,
            to: None,
            paths: Vec::new(),
            stat: false,
            patch,
            word_diff,
            name_only: false,
            nul: false,
            by: None,
        }
    }
}

pub fn run(mut args: Args, context: &mut Context) -> Outcome {
    if !args.nul {
        context.out.page();
    }
    let mut served = locate::served(context.dir())?;
    args.take_for_paths(&mut served);
    if args.by == Some(By::Process) {
        let all = served.client.ask(CompareByProcess {
            from: Some(StateName(args.from)),
            to: args.to.map(StateName),
        })?;
        return changes_by_process::tell(&mut context.out, &all);
    }
    let paths: Vec<TreePath> = args
        .paths
        .iter()
        .map(|path| in_tree(&served.root, &served.cwd, path))
        .collect::<VerbResult<_>>()?;
    let asked = |change: &Change| paths.is_empty() || changes::is_below(change, &paths);
    if args.patch || args.word_diff {
        // By number, because a time or `latest` may name another checkpoint later.
        let states = [Some(&args.from), args.to.as_ref()]
            .map(|name| name.map_or(Ok(None), |name| state(&mut served, name)));
        let [from, to] = states;
        let style = Style {
            words: args.word_diff,
        };
        return print_patch(&mut served, (&from?, &to?), asked, style, context);
    }
    let (from, to) = (StateName(args.from), args.to.map(StateName));
    let out = &mut context.out;
    let mut changes = served.client.ask(Compare {
        from,
        to,
        sizes: out.json || args.stat,
    })?;
    changes.retain(asked);
    match (out.json, args.stat, args.name_only, args.nul) {
        (true, ..) => out.json(&changes)?,
        (_, true, ..) => print_stat(out, &changes)?,
        (_, _, true, nul) => changes::print_names(out, &changes, nul)?,
        (_, _, false, true) => changes::print_nul(out, &changes)?,
        (_, _, false, false) => changes::print(out, &changes)?,
    }
    changes::all_told(out, &changes)
}

/// Prints the changes from one state to another as a patch, filtered by `asked`.
///
/// # Errors
/// As [`tell_patch`]; those of comparing.
pub fn print_patch(
    served: &mut locate::ServedTree,
    (from, to): (&Option<CheckpointInfo>, &Option<CheckpointInfo>),
    asked: impl Fn(&Change) -> bool,
    style: Style,
    context: &mut Context,
) -> Outcome {
    let name = |state: &Option<CheckpointInfo>| {
        StateName(
            state
                .as_ref()
                .map_or("live".into(), |checkpoint| checkpoint.id.to_string()),
        )
    };
    let mut changes = served.client.ask(Compare {
        from: name(from),
        to: Some(name(to)),
        sizes: false,
    })?;
    changes.retain(asked);
    let (before, after) = (
        StateTree::at(served, from.as_ref())?,
        StateTree::at(served, to.as_ref())?,
    );
    tell_patch(&changes, (&before, &after), style, context)
}

/// Prints the changes from one tree to another as a patch.
///
/// # Errors
/// `incomplete` if something cannot be read. Those of writing.
pub fn tell_patch(
    changes: &[Change],
    trees: (&StateTree, &StateTree),
    style: Style,
    context: &mut Context,
) -> Outcome {
    let left_out = patch::print(&mut context.out, changes, trees, style)?;
    let name = |path: &TreePath| String::from_utf8_lossy(&path.0).into_owned();
    for path in &left_out.strange {
        context.out.warn(&format!(
            "{} is not in the patch: git tracks only files and symbolic links",
            name(path)
        ));
    }
    for (path, errno) in &left_out.unread {
        let why = if *errno == Errno::ENODATA {
            "its content was dropped by a retention rule".to_owned()
        } else {
            errno.to_string()
        };
        context
            .out
            .warn(&format!("{} is not in the patch: {why}", name(path)));
    }
    match left_out.unread.len() {
        0 => Ok(()),
        count => {
            let hint = "ckptfs diff without --patch lists everything that differs";
            Err(Failure::Verb(hinted(
                Code::Incomplete,
                format!(
                    "the patch lacks {} that cannot be read",
                    plural(count, "path")
                ),
                hint,
            )))
        }
    }
}

/// Prints each change with its sizes, and the sum.
fn print_stat(out: &mut Out, changes: &[Change]) -> io::Result<()> {
    let sizes: Vec<String> = changes.iter().map(sizes).collect();
    let width = sizes.iter().map(String::len).max().unwrap_or(0);
    for (change, sizes) in changes.iter().zip(&sizes) {
        out.bytes(format!("{sizes:>width$}  ").as_bytes())?;
        changes::print(out, std::slice::from_ref(change))?;
    }
    let sum = out.paint(Role::Faint, &sum(changes));
    out.line(&sum)
}

/// Formats the number of changes, and of bytes added and removed.
pub fn sum(changes: &[Change]) -> String {
    let (mut more, mut less) = (0_u64, 0_u64);
    for change in changes {
        let (old, new) = (change.old_size.unwrap_or(0), change.size.unwrap_or(0));
        more += new.saturating_sub(old);
        less += old.saturating_sub(new);
    }
    format!(
        "{}, {} more, {} less",
        changes::count(changes.len() as u64),
        plural(more, "byte"),
        plural(less, "byte")
    )
}

/// Formats the sizes of a file before and after.
pub fn sizes(change: &Change) -> String {
    match (change.old_size, change.size) {
        (None, None) => String::new(),
        (None, Some(new)) => format!("+{new}"),
        (Some(old), None) => format!("-{old}"),
        (Some(old), Some(new)) if old == new => old.to_string(),
        (Some(old), Some(new)) => format!("{old} -> {new}"),
    }
}
