//! `ckptfs config set retention.*`, and `write`: prints the checkpoints that the rules of retention
//! delete.

pub use super::config::Args;
use super::{config, gc};
use ckptfs_api::{GcOptions, GcReason, VerbResult};
use ckptfs_core::engine::settings::Setting;
use ckptfs_daemon::VerbExecutor;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::locate::{TreeLocation, locate, start};

/// Runs `ckptfs config`.
pub fn run(args: Args, context: &mut Context) -> Outcome {
    let sets_retention = args.sets("retention.");
    config::run(args, context)?;
    if sets_retention {
        // The key is already set, so a failure is only a warning.
        print(context).unwrap_or_else(|error| context.out.warn(&error.message));
    }
    Ok(())
}

/// Requests a dry run by the current rules from the daemon, and prints the result. Without a daemon
/// it prints the command for a dry run, because a plan made here would open the store.
fn print(context: &Context) -> VerbResult<()> {
    let settings = config::retention_settings(context.dir())?;
    let retention = ckptfs_core::engine::retention::configured(&settings);
    if !retention.has_rules() && retention.max_bytes.is_none() {
        return Ok(());
    }
    let TreeLocation::Served(served) = locate(start(context.dir())?)? else {
        let hint = "to see which checkpoints these rules remove: ckptfs gc --dry-run";
        context.out.talk(hint);
        return Ok(());
    };
    let auto = settings.get("retention.auto");
    let options = GcOptions {
        retention,
        dry_run: true,
        automatic: auto.is_some(),
        ..GcOptions::default()
    };
    let plan = gc::whole(&mut VerbExecutor::Daemon(served.client), options, context)?;
    let gone = plan
        .gone
        .iter()
        .filter(|gone| gone.why != GcReason::Deleted);
    let ids: Vec<String> = gone.map(|gone| gone.id.to_string()).collect();
    let many = ids.len();
    let which = match many {
        0 => "no checkpoint".to_owned(),
        1 => format!("checkpoint {}", ids.concat()),
        2..=10 => format!("{many} checkpoints: {}", ids.join(", ")),
        _ => format!(
            "{many} checkpoints, from {} on",
            ids.first().map_or("", String::as_str)
        ),
    };
    let run = match auto {
        Some(Setting { value: every, .. }) => format!("the daemon, which runs gc every {every},"),
        None => "`ckptfs gc`".to_owned(),
    };
    context
        .out
        .talk(&format!("with these rules {run} deletes {which}"));
    Ok(())
}
