//! `ckptfs tag`.

use crate::executor;
use ckptfs_api::display::word;
use ckptfs_api::{ChangeTags, CheckpointInfo, Code, Query, Retag, StateName};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Outcome, hinted};
use ckptfs_ui::listing::print_checkpoints;
use ckptfs_ui::locate;

/// Give a checkpoint tags, remove or rename one; without arguments list them
///
/// A tag can be used in place of a checkpoint's number, and is a name in .snapshots.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The checkpoint: a number, a tag, `latest`, `latest~2`, `@{10min ago}`
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// The tags
    #[arg(value_name = "TAG")]
    tags: Vec<String>,
    /// Remove these tags (all arguments); their checkpoints stay
    #[arg(short, long, conflicts_with_all = ["rename", "force"])]
    delete: bool,
    /// Rename the tag: -m OLD NEW
    #[arg(short = 'm', long)]
    rename: bool,
    /// Move tags from other checkpoints
    #[arg(short, long)]
    force: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let Some(id) = args.id else {
        return list(context);
    };
    if args.delete {
        return remove(std::iter::once(id).chain(args.tags).collect(), context);
    }
    match args.tags.as_slice() {
        [] => {
            let hint = format!(
                "to add one: ckptfs tag {0} TAG; to see those it has: ckptfs show {0}",
                word(&id)
            );
            return Err(hinted(Code::Usage, "no tag is given", hint).into());
        }
        [new] if args.rename => return rename(id, new.clone(), args.force, context),
        _ if args.rename => {
            let hint = "ckptfs tag -m OLD NEW";
            return Err(hinted(Code::Usage, "a tag can have only one new name", hint).into());
        }
        _ => {}
    }
    let mut served = locate::served(context.dir())?;
    let retag = Retag {
        add: args.tags,
        remove: Vec::new(),
        force: args.force,
    };
    let tagged = served.client.ask(ChangeTags {
        state: StateName(id),
        retag,
    })?;
    print(&tagged, context)
}

/// Lists the tagged checkpoints.
fn list(context: &mut Context) -> Outcome {
    let tagged = executor::history(context.dir())?.ask(Query {
        tag: Some("*".to_owned()),
        counted: true,
        ..Query::default()
    })?;
    match context.out.json {
        true => Ok(context.out.json(&tagged)?),
        false => print_checkpoints(&tagged, &mut context.out),
    }
}

/// Removes tags from their checkpoints.
pub fn remove(tags: Vec<String>, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    for tag in tags {
        let retag = Retag {
            remove: vec![tag.clone()],
            ..Retag::default()
        };
        let state = StateName(tag);
        let untagged = served.client.ask(ChangeTags { state, retag })?;
        print(&untagged, context)?;
    }
    Ok(())
}

/// Renames a tag.
pub fn rename(old: String, new: String, force: bool, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let retag = Retag {
        add: vec![new],
        remove: vec![old.clone()],
        force,
    };
    let state = StateName(old);
    let renamed = served.client.ask(ChangeTags { state, retag })?;
    print(&renamed, context)
}

/// Prints a checkpoint and its tags.
fn print(tagged: &CheckpointInfo, context: &mut Context) -> Outcome {
    let tags = if tagged.tags.is_empty() {
        "has no tag".to_owned()
    } else {
        format!("is tagged {}", tagged.tags.join(", "))
    };
    context.out.answer(tagged, |out| {
        out.text_line(&format!("checkpoint {} {tags}", tagged.id))
    })
}
