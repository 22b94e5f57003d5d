//! The filters of `ckptfs log`.

use std::path::PathBuf;

use crate::executor;
use ckptfs_api::{Code, Query, VerbResult};
use ckptfs_sys as sys;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome, hinted};
use ckptfs_ui::listing::print_checkpoints;
use ckptfs_ui::locate;
use ckptfs_ui::tree_path::in_tree;

/// Selects the checkpoints that `log` lists.
#[derive(Debug)]
pub struct Search {
    pub filters: Filters,
    /// Lists at most this many.
    pub max_count: Option<usize>,
    /// Lists those that changed this path or something below it.
    pub path: Option<PathBuf>,
}

/// Conditions on checkpoints; all of them must hold.
#[derive(Debug, Default, PartialEq, clap::Args)]
pub struct Filters {
    /// With a tag that matches TAG; `*` matches any text
    #[arg(short, long, value_name = "TAG")]
    tag: Option<String>,
    /// With TEXT in the note, ignoring case
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// With the line `KEY: VALUE` in the note; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Made at TIME or later: `2h`, `10min ago`, `yesterday`, `2026-11-21 10:00`, RFC 3339
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Made at TIME or earlier
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Made by this user: a name or a number
    #[arg(long, value_name = "USER")]
    author: Option<String>,
    /// Only pinned checkpoints
    #[arg(long)]
    pinned: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .ok_or_else(|| format!("{text:?} has no '='"))
}

/// Returns the number of a user.
fn user(name: &str) -> VerbResult<u32> {
    if let Ok(uid) = name.parse() {
        return Ok(uid);
    }
    let unknown = || {
        hinted(
            Code::UnknownUser,
            format!("there is no user {name:?}"),
            "a number works too: ckptfs log --author 1000",
        )
    };
    sys::user_id(name).ok_or_else(unknown)
}

/// Lists the checkpoints that `search` selects. Fails with [`Code::NotFound`] if there are none.
pub fn run(search: Search, context: &mut Context) -> Outcome {
    let filters = search.filters;
    let mut query = Query {
        tag: filters.tag,
        note: filters.note,
        labels: filters.labels,
        since: filters.since,
        until: filters.until,
        limit: search.max_count,
        pinned: filters.pinned,
        counted: true,
        uid: filters.author.as_deref().map(user).transpose()?,
        ..Query::default()
    };
    let found = match &search.path {
        Some(path) => {
            let mut served = locate::served(context.dir())?;
            query.path = Some(in_tree(&served.root, &served.cwd, path)?);
            served.client.ask(query)?
        }
        None => executor::history(context.dir())?.ask(query)?,
    };
    if context.out.json {
        context.out.json(&found)?;
    } else {
        print_checkpoints(&found, &mut context.out)?;
    }
    if found.is_empty() {
        Err(none(context)?)
    } else {
        Ok(())
    }
}

/// Returns the failure of a search without results.
fn none(context: &Context) -> VerbResult<Failure> {
    if context.out.json {
        return Ok(Failure::No);
    }
    Err(hinted(
        Code::NotFound,
        "no checkpoint matches",
        "to list all of them: ckptfs log",
    ))
}
