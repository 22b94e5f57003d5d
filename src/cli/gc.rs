//! `ckptfs gc`.

use super::freeing::freeing;
use super::{config, dedup, size};
use ckptfs_api::display::{count, word};
use ckptfs_api::{CheckpointId, Code, GcOptions, GcReason, GcReport, Retention, Rule, VerbResult};
use ckptfs_core::engine::settings::{self, Value, parse_value};
use ckptfs_daemon::VerbExecutor;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Outcome, hinted};
use ckptfs_ui::listing;
use ckptfs_ui::output::{Out, Role, can_ask};
use ckptfs_ui::progress::Bar;

/// Thin out the history by rules, and free what no checkpoint needs; this cannot be undone
///
/// A checkpoint is kept if any rule keeps it, on the command line or in the configuration. Without
/// rules, only deleted ones are freed. Pinned and tagged checkpoints and the newest are always
/// kept. Works without a mount.
#[derive(Debug, clap::Args)]
#[command(mut_group("sharing", |sharing| sharing.requires("dedup")))]
pub struct Args {
    /// Only show what would be deleted, and how many bytes would be freed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Keep the N newest checkpoints
    #[arg(long, value_name = "N")]
    keep_last: Option<String>,
    /// Keep checkpoints no older than D: "30d", "1h 30m"
    #[arg(long, value_name = "D")]
    keep_within: Option<String>,
    /// Keep one checkpoint per hour, for N hours that have one
    #[arg(long, value_name = "N")]
    keep_hourly: Option<String>,
    /// Keep one checkpoint per day, for N days that have one
    #[arg(long, value_name = "N")]
    keep_daily: Option<String>,
    /// Keep one checkpoint per week, for N weeks that have one
    #[arg(long, value_name = "N")]
    keep_weekly: Option<String>,
    /// Keep checkpoints that this remote does not have: see `ckptfs push`
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "REMOTE")]
    keep_unpushed: Option<String>,
    /// Free the oldest checkpoints until the history takes no more than this: "10G"
    #[arg(long, value_name = "BYTES")]
    max_size: Option<String>,
    /// Do not apply the `tiers` of the configuration
    #[arg(long)]
    no_tiers: bool,
    /// Delete nothing: share the space of versions with the same content
    #[arg(long, conflicts_with_all = ["keep_last", "keep_within", "keep_hourly", "keep_daily", "keep_weekly", "max_size", "no_tiers"])]
    dedup: bool,
    #[command(flatten)]
    sharing: dedup::Sharing,
    /// List every checkpoint, with the rule that keeps it or the reason for its deletion; with
    /// --dedup every skipped file
    #[arg(short, long)]
    verbose: bool,
    /// Do not ask for confirmation (without a terminal, it is never asked for)
    #[arg(short, long)]
    yes: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    if args.dedup {
        let Args {
            dry_run,
            sharing,
            verbose,
            ..
        } = args;
        let asked = dedup::Args {
            dry_run,
            sharing,
            verbose,
        };
        return dedup::run(asked, context);
    }
    #[allow(unused_mut)]
    let mut retention = retention(&args, context)?;
    #[cfg(feature = "remote")]
    if let Some(remote) = &args.keep_unpushed {
        retention.keep_ids = super::remote::unpushed(remote, context)?;
    }
    let mut history = freeing(context.dir())?;
    let ask = !args.yes && can_ask();
    let plan = if args.dry_run || ask {
        Some(whole(&mut history, asked(&retention, true), context)?)
    } else {
        None
    };
    if let Some(plan) = plan.as_ref().filter(|_| args.dry_run) {
        return print(plan, &args, context);
    }
    if let Some(plan) = plan {
        let dropped: u64 = plan.tiers.iter().map(|tier| tier.versions).sum();
        if plan.gone.is_empty() && plan.leftovers == 0 && dropped == 0 {
            return print(&plan, &args, context);
        }
        let of_kept = if dropped > 0 {
            format!(
                ", drop the content of {} from others",
                count(dropped, "version")
            )
        } else {
            String::new()
        };
        let what = format!(
            "{}{of_kept}, free {}?",
            checkpoints("Delete", plan.gone.len()),
            size::human(plan.freed_bytes)
        );
        context.out.go_on(false, &what, "nothing was freed")?;
    }
    let report = whole(&mut history, asked(&retention, false), context)?;
    print(&report, &args, context)
}

/// Returns the rules of the command line, and for others those of the configuration.
fn retention(args: &Args, context: &Context) -> VerbResult<Retention> {
    let of = |name: &str, text: &Option<String>| -> VerbResult<Option<Value>> {
        let (Some(text), Some(key)) = (text, settings::find(name)) else {
            return Ok(None);
        };
        let flag = name.trim_start_matches("retention.");
        parse_value(key, text).map(Some).map_err(|why| {
            let hint = format!(
                "for example: ckptfs gc --{} {}",
                word(flag),
                word(key.kind.example())
            );
            hinted(Code::BadValue, format!("--{flag}: {why}"), hint)
        })
    };
    let number = |value: Option<Value>| match value {
        Some(Value::Number(number)) => Some(number),
        Some(Value::Span(span, _)) => Some(span.as_secs()),
        Some(Value::Text(_) | Value::Flag(_)) | None => None,
    };
    let configured = ckptfs_core::engine::retention::configured(&config::settings(context.dir())?);
    Ok(Retention {
        keep_ids: Vec::new(),
        manual: configured.manual,
        keep_last: number(of("retention.keep-last", &args.keep_last)?).or(configured.keep_last),
        keep_within_s: number(of("retention.keep-within", &args.keep_within)?)
            .or(configured.keep_within_s),
        keep_hourly: number(of("retention.keep-hourly", &args.keep_hourly)?)
            .or(configured.keep_hourly),
        keep_daily: number(of("retention.keep-daily", &args.keep_daily)?).or(configured.keep_daily),
        keep_weekly: number(of("retention.keep-weekly", &args.keep_weekly)?)
            .or(configured.keep_weekly),
        max_bytes: number(of("retention.max-size", &args.max_size)?).or(configured.max_bytes),
        tiers: if args.no_tiers {
            Vec::new()
        } else {
            configured.tiers
        },
    })
}

fn asked(retention: &Retention, dry_run: bool) -> GcOptions {
    GcOptions {
        retention: retention.clone(),
        dry_run,
        ..GcOptions::default()
    }
}

/// Repeats the request until the run is finished.
pub fn whole(
    history: &mut VerbExecutor,
    mut options: GcOptions,
    context: &Context,
) -> VerbResult<GcReport> {
    let mut bar = Bar::start(&context.out, "measuring versions", false);
    let mut freeing = false;
    loop {
        let report = history.ask(options.clone())?;
        if report.freeing && !freeing {
            freeing = true;
            bar.stop();
            bar = Bar::start(&context.out, "freeing", false);
        }
        bar.at(report.done, report.total);
        if report.finished {
            bar.stop();
            return Ok(report);
        }
        options.run = Some(report.run);
    }
}

fn checkpoints(verb: &str, count: usize) -> String {
    format!(
        "{verb} {count} checkpoint{}",
        if count == 1 { "" } else { "s" }
    )
}

fn rule(rule: Rule) -> &'static str {
    match rule {
        Rule::Pinned => "pinned",
        Rule::Asked => "made on request",
        Rule::Branch => "a branch is based on it",
        Rule::Named => "not pushed",
        Rule::Tagged => "tagged",
        Rule::Newest => "the newest",
        Rule::Undo => "undo may need it",
        Rule::Last => "keep-last",
        Rule::Within => "keep-within",
        Rule::Hourly => "keep-hourly",
        Rule::Daily => "keep-daily",
        Rule::Weekly => "keep-weekly",
        Rule::NoRule => "no rule deletes anything",
    }
}

fn print(report: &GcReport, args: &Args, context: &mut Context) -> Outcome {
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(report)?);
    }
    let option = (!args.verbose).then_some("-v");
    let (shown, more) = listing::fitting(out, &report.gone, 4, option);
    for gone in shown {
        let why = match gone.why {
            GcReason::Deleted => "it was deleted",
            GcReason::NoRule => "no rule keeps it",
            GcReason::MaxSize => "max-size",
        };
        let sign = out.paint(Role::Bad, if report.dry_run { "would go" } else { "gone" });
        let id = out.paint(Role::Id, &gone.id.to_string());
        out.line(&format!("{sign} {id}  {}  {why}", size::human(gone.bytes)))?;
    }
    if let Some(more) = more {
        out.line(&more)?;
    }
    if args.verbose {
        for kept in &report.kept {
            let rules: Vec<&str> = kept.rules.iter().map(|one| rule(*one)).collect();
            let (sign, id) = (
                out.paint(Role::Good, "stays"),
                out.paint(Role::Id, &kept.id.to_string()),
            );
            out.line(&format!("{sign} {id}  {}", rules.join(", ")))?;
        }
    }
    if report.leftovers > 0 {
        let verb = if report.dry_run { "would go: " } else { "" };
        out.line(&format!(
            "{verb}{}  {}",
            count(report.leftovers, "unneeded version"),
            size::human(report.leftover_bytes)
        ))?;
    }
    for tier in report
        .tiers
        .iter()
        .filter(|tier| tier.versions > 0 || tier.linked > 0)
    {
        let verb = if report.dry_run {
            "would be dropped"
        } else {
            "dropped"
        };
        let linked = if tier.linked > 0 {
            format!("; {} kept because of hard links", tier.linked)
        } else {
            String::new()
        };
        let paths = tier.paths.join(", ");
        let line = format!(
            "{verb}: {} in {}  {}{linked}",
            count(tier.versions, "version"),
            out.text(&paths),
            size::human(tier.bytes)
        );
        out.line(&line)?;
    }
    out.line(&summary(report))?;
    warn(report, out);
    Ok(())
}

fn summary(report: &GcReport) -> String {
    let left = report.history_bytes.saturating_sub(report.freed_bytes);
    let done = if report.dry_run {
        "would be deleted"
    } else {
        "deleted"
    };
    let freed = if report.dry_run {
        "would be freed"
    } else {
        "freed"
    };
    format!(
        "{} {done}, {} kept; {} {freed}, the history takes {}",
        checkpoints("", report.gone.len()).trim_start(),
        report.kept.len() + report.changed.len(),
        size::human(report.freed_bytes),
        size::human(left)
    )
}

fn warn(report: &GcReport, out: &Out) {
    if report.held_bytes > 0 {
        out.talk(&format!(
            "{} of that is still open and will be free when it is closed, mostly within seconds",
            size::human(report.held_bytes)
        ));
    }
    if report.over_bytes > 0 {
        let over = size::human(report.over_bytes);
        out.warn(&format!("the history is {over} over its limit: the rest is pinned, tagged or the newest (ckptfs du shows what takes the space)"));
    }
    if !report.changed.is_empty() {
        let ids: Vec<String> = report.changed.iter().map(CheckpointId::to_string).collect();
        out.warn(&format!(
            "pinned, tagged or brought back meanwhile, so kept: {}",
            ids.join(", ")
        ));
    }
}
