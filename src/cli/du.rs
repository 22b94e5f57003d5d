//! `ckptfs du`.

use super::size;
use ckptfs_api::{DuOptions, DuReport, StateName, VerbResult};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::locate;
use ckptfs_ui::output::Role;
use ckptfs_ui::progress::Bar;

/// Show the space of each checkpoint: the bytes that deleting only this one frees, and the shared
/// bytes
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this checkpoint: a number, a tag, or `latest`; by default all
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Print sizes in bytes
    #[arg(short, long)]
    bytes: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let bar = Bar::start(&context.out, "measuring versions", false);
    let mut options = DuOptions {
        state: args.id.map(StateName),
        run: None,
    };
    let report = whole(&bar, || {
        let part = served.client.ask(options.clone())?;
        options.run = Some(part.run);
        Ok(part)
    })?;
    bar.stop();
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&report)?);
    }
    let size = |bytes: u64| {
        if args.bytes {
            bytes.to_string()
        } else {
            size::human(bytes)
        }
    };
    out.line(&out.paint(
        Role::Faint,
        &format!(
            "{:>12} {:>12} {:>9}  checkpoint",
            "exclusive", "shared", "versions"
        ),
    ))?;
    for one in &report.checkpoints {
        let deleted = if one.hidden {
            " (deleted; gc frees it)"
        } else {
            ""
        };
        let id = out.paint(Role::Id, &one.id.to_string());
        out.line(&format!(
            "{:>12} {:>12} {:>9}  {id}{deleted}",
            size(one.exclusive_bytes),
            size(one.shared_bytes),
            one.versions
        ))?;
    }
    out.line(&format!(
        "the history alone takes {}",
        size(report.history_bytes)
    ))?;
    if report.outside_bytes > 0 {
        out.line(&format!(
            "another {} is shared with live files, or with files elsewhere",
            size(report.outside_bytes)
        ))?;
    }
    if report.unneeded_bytes > 0 {
        out.line(&format!(
            "{} of it is no longer needed by any checkpoint (ckptfs gc frees it)",
            size(report.unneeded_bytes)
        ))?;
    }
    Ok(())
}

/// Repeats the request until the measurement is finished.
fn whole(bar: &Bar, mut part: impl FnMut() -> VerbResult<DuReport>) -> VerbResult<DuReport> {
    loop {
        let report = part()?;
        bar.at(report.done, report.total);
        if report.finished {
            return Ok(report);
        }
    }
}
