//! Maintenance of a remote: checks for damage, and deletion by rules.

use serde::Serialize;

use super::super::remotes::names;
use super::super::{config, size};
use super::repository;
use ckptfs_api::display::{count, word};
use ckptfs_api::{CheckpointId, Code, Retention};
use ckptfs_core::engine::retention;
use ckptfs_remote::limits::Limits;
use ckptfs_remote::restic::{OpenPurpose, PushedSnapshot};
use ckptfs_sys as sys;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome, hinted};
use ckptfs_ui::locate;
use ckptfs_ui::progress::Spinner;

/// The arguments of `remote prune`.
#[derive(Debug, clap::Args)]
pub struct Prune {
    /// The remote
    #[arg(value_name = "REMOTE")]
    name: String,
    /// Keep the N newest checkpoints
    #[arg(long, value_name = "N")]
    keep_last: Option<u64>,
    /// Keep one checkpoint per hour, for N hours that have one
    #[arg(long, value_name = "N")]
    keep_hourly: Option<u64>,
    /// Keep one checkpoint per day, for N days that have one
    #[arg(long, value_name = "N")]
    keep_daily: Option<u64>,
    /// Keep one checkpoint per week, for N weeks that have one
    #[arg(long, value_name = "N")]
    keep_weekly: Option<u64>,
    /// Only show what would be forgotten
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask for confirmation (without a terminal, it is never asked for)
    #[arg(short, long)]
    yes: bool,
}

/// The arguments of `remote forget`.
#[derive(Debug, clap::Args)]
pub struct Forget {
    /// The remote
    #[arg(value_name = "REMOTE")]
    name: String,
    /// Numbers of snapshots, as `ckptfs remote log` prints them
    #[arg(value_name = "SNAPSHOT", required = true)]
    snapshots: Vec<String>,
    /// Only show what would be forgotten
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask for confirmation (without a terminal, it is never asked for)
    #[arg(short, long)]
    yes: bool,
}

/// Minimum number of digits of a snapshot's number.
const DIGITS_MIN: usize = 8;

/// Runs `ckptfs remote forget`. Missing snapshots are ignored.
pub fn forget(args: &Forget, context: &mut Context) -> Outcome {
    let names = names()?;
    let remote = repository::open(names.get(&args.name)?, OpenPurpose::Verb)?;
    if let Some(short) = args.snapshots.iter().find(|id| id.len() < DIGITS_MIN) {
        return Err(hinted(
            Code::Ambiguous,
            format!("{short} is too short for the number of a snapshot"),
            format!("ckptfs remote log {} shows them", word(&args.name)),
        )
        .into());
    }
    let is_meant = |one: &PushedSnapshot| {
        let snapshot = &one.snapshot;
        args.snapshots.iter().any(|id| snapshot.starts_with(id))
    };
    let mut gone = remote.pushed(None)?;
    gone.retain(is_meant);
    let what = format!("{} in {}", count(gone.len(), "checkpoint"), args.name);
    if !args.dry_run && !gone.is_empty() {
        let question = format!("Forget {what}?");
        context
            .out
            .go_on(args.yes, &question, "nothing was forgotten")?;
        remote.forget(&gone.iter().collect::<Vec<_>>())?;
    }
    let snapshots: Vec<&str> = gone.iter().map(|one| one.snapshot.as_str()).collect();
    let answer = serde_json::json!({
        "remote": args.name, "forgotten": snapshots, "dry_run": args.dry_run,
    });
    context.out.answer(&answer, |out| {
        let would = if args.dry_run { "would be " } else { "" };
        out.text_line(&format!("{what} {would}forgotten"))
    })
}

/// Result of a prune, in the output of `--json`.
#[derive(Serialize)]
struct Pruned {
    remote: String,
    kept: usize,
    forgotten: Vec<CheckpointId>,
    /// Unneeded bytes, which are freed after a day.
    unneeded_bytes: Option<u64>,
    dry_run: bool,
}

/// Runs `ckptfs remote prune`.
pub fn prune(args: &Prune, context: &mut Context) -> Outcome {
    let names = names()?;
    let named = names.get(&args.name)?;
    let store = repository::store_of(&mut locate::served(context.dir())?)?.unwrap_or_default();
    let configured = ckptfs_core::engine::retention::configured(&config::settings(context.dir())?);
    let rules = Retention {
        keep_last: args.keep_last.or(configured.keep_last),
        keep_hourly: args.keep_hourly.or(configured.keep_hourly),
        keep_daily: args.keep_daily.or(configured.keep_daily),
        keep_weekly: args.keep_weekly.or(configured.keep_weekly),
        keep_within_s: configured.keep_within_s,
        ..Retention::default()
    };
    sys::limit_memory(Limits::new().process());
    let remote = repository::open(named, OpenPurpose::Verb)?;
    let pushed = remote.pushed(Some(&store))?;
    let made = |nanoseconds: i128| i64::try_from(nanoseconds).unwrap_or(i64::MAX);
    let copies: Vec<(i64, bool)> = pushed
        .iter()
        .map(|one| (made(one.created.as_nanosecond()), !one.tags.is_empty()))
        .collect();
    let keeps = retention::keeps(&copies, &rules);
    let gone: Vec<_> = pushed
        .iter()
        .zip(&keeps)
        .filter(|(_, keeps)| !**keeps)
        .map(|(one, _)| one)
        .collect();
    let mut answer = Pruned {
        remote: args.name.clone(),
        kept: pushed.len() - gone.len(),
        forgotten: gone.iter().map(|one| one.checkpoint).collect(),
        unneeded_bytes: None,
        dry_run: args.dry_run,
    };
    if !args.dry_run {
        let question = format!(
            "Forget {} of {} in {}?",
            count(gone.len(), "checkpoint"),
            pushed.len(),
            args.name
        );
        if !gone.is_empty() {
            context
                .out
                .go_on(args.yes, &question, "nothing was forgotten")?;
        }
        let spinner = Spinner::start(&context.out, "freeing");
        let freed = remote.prune(&gone);
        spinner.stop();
        answer.unneeded_bytes = Some(freed?);
    }
    context.out.answer(&answer, |out| {
        let would = if answer.dry_run { "would be " } else { "" };
        let bytes = answer.unneeded_bytes.map_or(String::new(), |bytes| {
            format!("; {} are not needed any more", size::human(bytes))
        });
        out.text_line(&format!(
            "{} {would}forgotten, {} kept{bytes}",
            count(answer.forgotten.len(), "checkpoint"),
            answer.kept
        ))
    })
}

/// Runs `ckptfs verify --remote`.
pub fn verify(name: &str, deep: bool, context: &mut Context) -> Outcome {
    let names = names()?;
    sys::limit_memory(Limits::new().process());
    let remote = repository::open(names.get(name)?, OpenPurpose::Verb)?;
    let spinner = Spinner::start(&context.out, "looking at the remote");
    let found = remote.damage(deep);
    spinner.stop();
    let found = found?;
    let answer = serde_json::json!({ "remote": name, "deep": deep, "damage": found });
    context.out.answer(&answer, |out| {
        for one in &found {
            out.text_line(one)?;
        }
        if found.is_empty() {
            let read = if deep { ", every byte was read" } else { "" };
            out.text_line(&format!("no damage was found in {name}{read}"))?;
        }
        Ok(())
    })?;
    if found.is_empty() {
        return Ok(());
    }
    context.out.talk(&format!(
        "ckptfs push {} sends again what it has not; restic repair, or rustic repair, forgets what is lost",
        word(name)
    ));
    Err(Failure::Damage)
}
