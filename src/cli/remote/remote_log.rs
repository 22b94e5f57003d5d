//! The checkpoints in a remote.

use serde::Serialize;

use super::super::remotes::names;
use super::repository;
use ckptfs_remote::restic::{OpenPurpose, PushedSnapshot};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::output::Role;
use ckptfs_ui::{locate, time};

/// A checkpoint in a remote, in the output of `--json`.
#[derive(Serialize)]
struct ListedSnapshot<'a> {
    checkpoint: u64,
    tags: &'a [String],
    note: &'a str,
    created: String,
    store: &'a str,
    host: &'a str,
    tree: &'a str,
    snapshot: &'a str,
}

/// Prints the checkpoints in a remote, newest first; `all`: of every tree.
pub fn log(name: &str, all: bool, context: &mut Context) -> Outcome {
    let names = names()?;
    let named = names.get(name)?;
    let store = if all {
        None
    } else {
        repository::store_of(&mut locate::served(context.dir())?)?
    };
    let mut pushed = repository::open(named, OpenPurpose::Verb)?.pushed(store.as_deref())?;
    pushed.reverse();
    let out = &mut context.out;
    if out.json {
        let listed: Vec<ListedSnapshot<'_>> = pushed.iter().map(listed).collect();
        return Ok(out.json(&listed)?);
    }
    for one in &pushed {
        let short = one.snapshot.get(..8).unwrap_or(&one.snapshot);
        let id = out.paint(Role::Id, &format!("{:>6}", one.checkpoint.0));
        let tags = if one.tags.is_empty() {
            String::new()
        } else {
            format!(" ({})", out.text(&one.tags.join(", ")))
        };
        let first_line = one.note.lines().next().unwrap_or_default();
        let note = out.text(first_line).into_owned();
        let host = if all {
            format!("{}:{}", one.host, one.root)
        } else {
            one.host.clone()
        };
        let host = out.text(&host).into_owned();
        out.line(&format!(
            "{id}  {}  {short}  {host}{tags}  {note}",
            time::local(&one.created.to_string())
        ))?;
    }
    if pushed.is_empty() {
        out.talk(if all {
            "it has no checkpoint of any tree"
        } else {
            "it has no checkpoint of this tree; --all lists those of other trees"
        });
    }
    Ok(())
}

fn listed(one: &PushedSnapshot) -> ListedSnapshot<'_> {
    ListedSnapshot {
        checkpoint: one.checkpoint.0,
        tags: &one.tags,
        note: &one.note,
        created: one.created.to_string(),
        store: &one.store,
        host: &one.host,
        tree: &one.root,
        snapshot: &one.snapshot,
    }
}
