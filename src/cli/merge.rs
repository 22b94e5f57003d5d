//! `ckptfs merge`.

mod tool;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use self::tool::MergeTool;
use super::branch::drop::drop_branch;
use super::restore::TimesArg;
use ckptfs_api::display::{count, word};
use ckptfs_api::{
    ConflictKind, DropBranch, Merge, MergeAnswer, MergeConflict, MergePolicy, MergeSide, Merged,
    StateName, Times, TreePath, VerbResult,
};
use ckptfs_ui::changes::{self, ListAllArg};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome};
use ckptfs_ui::interrupt::Interrupt;
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::output::Out;
use ckptfs_ui::tree_path::in_tree;
use ckptfs_ui::{locate, time};

/// Merge the changes of a branch since it began, or since it was last merged or updated
///
/// Changes of only one side are taken from that side; files that both changed are merged line by
/// line. If something conflicts, nothing is changed and the conflicts are listed. The current state
/// is saved as a checkpoint first; `ckptfs undo` reverts the merge.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A branch; with --base a checkpoint: a number, a tag, or `latest`
    #[arg(value_name = "WHAT")]
    what: String,
    /// Only these paths, and paths below them; relative to the working directory
    #[arg(value_name = "PATHS")]
    paths: Vec<PathBuf>,
    /// Merge the changes from checkpoint ID to checkpoint WHAT, on another line of this tree's
    /// history
    #[arg(long, value_name = "ID")]
    base: Option<String>,
    #[command(flatten)]
    policy: PolicyArgs,
    /// The modification time of changed files: `now` (the default), so that build tools rebuild
    /// from them, or `kept`, their time on the other side
    #[arg(long, value_enum, value_name = "WHICH")]
    times: Option<TimesArg>,
    /// Drop the branch after the merge; `ckptfs branch restore` brings it back, until gc
    #[arg(long, conflicts_with_all = ["base", "paths", "dry_run"])]
    drop: bool,
    /// Only list the changes and the conflicts
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    listed: ListAllArg,
}

/// Resolution of conflicts.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub struct PolicyArgs {
    /// Resolve conflicts with the target's version
    #[arg(long)]
    ours: bool,
    /// Resolve conflicts with the source's version, even if that is a removal
    #[arg(long)]
    theirs: bool,
    /// Resolve conflicts between lines by keeping both versions, with git's conflict markers
    #[arg(long)]
    markers: bool,
    /// Keep the target's version, and store the source's next to it as NAME.WHAT
    #[arg(long)]
    keep_both: bool,
    /// Run CMD to merge the content of files that both changed, like git's merge drivers: %O, %A,
    /// %B are files with the base, the target's version, and the source's; the result is left in
    /// %A; %P is the path, %L the length of a marker, %S, %X, %Y the names of the three. Exit
    /// status 0: merged; 1 to 127: conflicts remain; otherwise it failed
    #[arg(long, value_name = "CMD")]
    tool: Option<OsString>,
}

impl PolicyArgs {
    pub fn policy(&self) -> Option<MergePolicy> {
        let known = [
            (self.ours, MergePolicy::Ours),
            (self.theirs, MergePolicy::Theirs),
            (self.markers, MergePolicy::Markers),
            (self.keep_both, MergePolicy::KeepBoth),
        ];
        let said = known.into_iter().find(|(said, _)| *said);
        said.map(|(_, policy)| policy)
    }
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let paths: Vec<TreePath> = args
        .paths
        .iter()
        .map(|path| in_tree(&served.root, &served.cwd, path))
        .collect::<VerbResult<_>>()?;
    let mut ask = Merge {
        what: args.what.clone(),
        base: args.base.map(StateName),
        paths,
        policy: args.policy.policy(),
        times: args.times.map(Times::from),
        answers: Vec::new(),
        dry_run: args.dry_run,
    };
    let interrupt = Interrupt::gives_up(&served.client)?;
    if let Some(command) = &args.policy.tool {
        let Some(answers) = answered(
            command,
            &ask,
            (&mut served, &interrupt),
            args.listed,
            context,
        )?
        else {
            return Ok(());
        };
        ask.answers = answers;
    }
    let merged = interrupt.ask(&mut served.client, ask, "merging", &context.out)?;
    tell(&merged, args.listed, context)?;
    interrupt.end(&context.out)?;
    is_whole(&merged, "ckptfs undo", &context.out)?;
    if args.drop {
        let ask = DropBranch {
            name: args.what,
            force: false,
            dry_run: false,
        };
        let dropped = drop_branch(&mut served, ask, &context.out)?;
        let name = &dropped.branch.name;
        context.out.talk(&format!(
            "dropped {name}; to bring it back, until gc frees it: ckptfs branch restore {}",
            word(name)
        ));
    }
    Ok(())
}

/// Succeeds if no conflict is left; `back` is the command that reverts the operation.
///
/// # Errors
/// `Failure::No` if the merge was refused, or if files contain conflict markers.
pub fn is_whole(merged: &Merged, back: &str, out: &Out) -> Outcome {
    let marked = merged.conflicts.iter().filter(|conflict| conflict.marked);
    match marked.count() {
        _ if merged.refused => Err(Failure::No),
        0 => Ok(()),
        files => {
            if !merged.dry_run {
                out.talk(&format!(
                    "conflict markers were written into {}: resolve them there, or take everything back: {back}",
                    count(files, "file")
                ));
            }
            Err(Failure::No)
        }
    }
}

/// Formats the outcome of a conflict, as the end of its line.
pub fn outcome(conflict: &MergeConflict, merged: &Merged) -> &'static str {
    match conflict.settled && !merged.refused {
        _ if conflict.tool => " (left to the tool)",
        true if conflict.marked && merged.dry_run => " (conflict markers would be written)",
        true if conflict.marked => " (conflict markers written)",
        true => " (settled)",
        false => "",
    }
}

fn tell(merged: &Merged, listed: ListAllArg, context: &mut Context) -> Outcome {
    if context.out.json {
        Ok(context.out.json(merged)?)
    } else {
        print_merged(merged, listed, context)?;
        context.out.line(&summary(merged))?;
        if let Some(before) = merged.merged_by.and_then(|by| by.checked_sub(1)) {
            context.out.talk(&format!(
                "to merge it again, take that merge back first: ckptfs undo --to {}",
                word(before)
            ));
        }
        Ok(())
    }
}

/// Returns the results of the tool for files with conflicting content. `None`: this is a dry run,
/// and its result is printed.
///
/// # Errors
/// Conflicts are left, which are printed; those of the tool, and of the merge.
fn answered(
    command: &OsStr,
    ask: &Merge,
    (served, interrupt): (&mut ServedTree, &Interrupt),
    listed: ListAllArg,
    context: &mut Context,
) -> Outcome<Option<Vec<MergeAnswer>>> {
    let dry = Merge {
        dry_run: true,
        ..ask.clone()
    };
    let mut would = interrupt.ask(&mut served.client, dry.clone(), "merging", &context.out)?;
    let tool = MergeTool::new(command, &ask.what, would.base, &served.cwd)?;
    let versions = tool::versions(&mut served.client, &dry)?;
    let known: BTreeSet<&TreePath> = versions.iter().map(|version| &version.path).collect();
    for conflict in &mut would.conflicts {
        conflict.tool = conflict.what == ConflictKind::Content && known.contains(&conflict.path);
    }
    would.refused = would.conflicts.iter().any(|conflict| !conflict.tool);
    if would.refused || ask.dry_run {
        would.dry_run = ask.dry_run;
        tell(&would, listed, context)?;
        return if would.refused {
            Err(Failure::No)
        } else {
            Ok(None)
        };
    }
    if versions.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let mut answers = Vec::new();
    for version in &versions {
        interrupt.check(&context.out)?;
        let answer = tool.merge(version, interrupt);
        interrupt.check(&context.out)?;
        answers.extend(answer?);
    }
    let settled: BTreeSet<&TreePath> = answers.iter().map(|answer| &answer.path).collect();
    for conflict in &mut would.conflicts {
        (conflict.tool, conflict.settled) = (false, settled.contains(&conflict.path));
    }
    if settled.len() < versions.len() {
        (would.refused, would.dry_run) = (true, false);
        tell(&would, listed, context)?;
        return Err(Failure::No);
    }
    // A dry run reports changes made since, before anything is done, and finds a daemon that took
    // over.
    let would = Merge {
        answers: answers.clone(),
        ..dry
    };
    interrupt.ask(&mut served.client, would, "merging", &context.out)?;
    Ok(Some(answers))
}

/// Prints the changes and the conflicts, one line each.
pub fn print_merged(merged: &Merged, listed: ListAllArg, context: &mut Context) -> Outcome {
    if !merged.refused || merged.dry_run {
        listed.print(&mut context.out, &merged.changes)?;
    }
    for conflict in &merged.conflicts {
        let mut line = b"! ".to_vec();
        line.extend_from_slice(&context.out.name(&conflict.path.0));
        let outcome = outcome(conflict, merged);
        line.extend_from_slice(format!(": {}{outcome}\n", why(conflict)).as_bytes());
        context.out.bytes(&line)?;
    }
    Ok(())
}

/// Describes a conflict.
pub fn why(conflict: &MergeConflict) -> String {
    let by = |removed: &str| match conflict.by {
        Some(MergeSide::Ours) => format!("{removed} here"),
        _ => format!("{removed} there"),
    };
    match conflict.what {
        ConflictKind::Moved => "moved to different places".to_owned(),
        ConflictKind::Removed => format!(
            "{}, changed {}",
            by("removed"),
            if conflict.by == Some(MergeSide::Ours) {
                "there"
            } else {
                "here"
            }
        ),
        ConflictKind::Name => "different things have this name here and there".to_owned(),
        ConflictKind::Directory => format!("its directory was {}", by("removed")),
        ConflictKind::Cycle => "directories moved into each other".to_owned(),
        ConflictKind::Content => "content changed here and there".to_owned(),
        ConflictKind::Mode => "permissions changed here and there".to_owned(),
        ConflictKind::Owner => "owner changed here and there".to_owned(),
        ConflictKind::Xattr => format!(
            "extended attribute {:?} changed here and there",
            String::from_utf8_lossy(conflict.xattr.as_ref().map_or(b"", |name| &name.0))
        ),
    }
}

/// Formats the number of unresolved conflicts, without those left to a tool.
pub fn clashes(merged: &Merged) -> String {
    let left = |conflict: &&MergeConflict| !conflict.settled && !conflict.tool;
    match merged.conflicts.iter().filter(left).count() {
        1 => "1 conflict".to_owned(),
        many => format!("{many} conflicts"),
    }
}

/// Formats the message that names the options to resolve conflicts.
pub fn settle_by(clash: &str) -> String {
    format!(
        "nothing was changed: {clash}; resolve with --ours, --theirs, --markers, --keep-both or --tool"
    )
}

fn summary(merged: &Merged) -> String {
    let (what, changes) = (&merged.what, changes::count(merged.changes.len() as u64));
    let clash = clashes(merged);
    match merged.guard {
        _ if merged.refused && merged.dry_run => {
            format!("merge of {what} would make {changes}, but for {clash}")
        }
        _ if merged.dry_run && merged.merged_by.is_none() => {
            format!("merge of {what} would make {changes}")
        }
        _ if merged.refused => settle_by(&clash),
        Some(guard) => format!(
            "merged {what}: {changes} in {}; the previous state is checkpoint {guard}",
            time::duration(merged.duration_us)
        ),
        None => match merged.merged_by {
            Some(operation) => format!(
                "nothing to merge: {what} was merged already (operation {operation}), and has nothing new since"
            ),
            None => format!("nothing to merge: the tree has everything from {what}"),
        },
    }
}
