//! `ckptfs branch list`.

use super::super::size;
use crate::executor;
use ckptfs_api::{BranchInfo, ListBranches};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::output::{Out, width};

/// List the branches: name, base, number of changed paths, space, location
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// List instead the dropped branches that can be brought back
    #[arg(long)]
    dropped: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    context.out.page();
    let all = executor::history(context.dir())?.ask(ListBranches {
        dropped: args.dropped,
        counted: true,
        ..ListBranches::default()
    })?;
    context.out.answer(&all, |out| print(out, &all))
}

fn print(out: &mut Out, all: &[BranchInfo]) -> std::io::Result<()> {
    let base = |branch: &BranchInfo| match (branch.merge_base, branch.base) {
        (Some(merged), _) if merged.of_branch => format!("merged {}", merged.checkpoint),
        (Some(updated), _) => format!("at {}", updated.checkpoint),
        (None, Some(base)) => format!("at {base}"),
        (None, None) => "-".to_owned(),
    };
    let state = |branch: &BranchInfo| match (branch.changed, branch.mounted) {
        (Some(changed), _) => format!("{changed} changed"),
        (None, true) => "mounted".to_owned(),
        (None, false) if branch.dropped => "dropped".to_owned(),
        (None, false) => "not mounted".to_owned(),
    };
    let bytes = |branch: &BranchInfo| branch.bytes.map_or_else(|| "-".to_owned(), size::human);
    let widths = (
        width(all, |branch| branch.name.clone()),
        width(all, base),
        width(all, state),
        width(all, bytes),
    );
    for branch in all {
        let trouble = branch
            .trouble
            .as_ref()
            .map_or_else(String::new, |why| format!("  ({why})"));
        out.text_line(&format!(
            "{:<4$}  {:<5$}  {:<6$}  {:>7$}  {8}{trouble}",
            branch.name,
            base(branch),
            state(branch),
            bytes(branch),
            widths.0,
            widths.1,
            widths.2,
            widths.3,
            branch.path.display(),
        ))?;
    }
    Ok(())
}
