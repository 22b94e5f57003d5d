//! `ckptfs verify`.

use std::path::Path;

use super::findings;
use ckptfs_api::display::word;
use ckptfs_api::{Code, StateName, VerbResult, Verified, VerifyOptions};
use ckptfs_core::engine::check::{CheckOptions, StoreCheck};
use ckptfs_sys as sys;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{self, Failure, Outcome, hinted};
use ckptfs_ui::locate::{self, ServedTree, TreeLocation};
use ckptfs_ui::progress::Bar;

/// Look for damage in the history: check the journal, the index, and that every version is there;
/// mounted or not
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only the versions of this checkpoint: a number, a tag, or `latest`; by default all
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Read every byte of the versions, and compare with the recorded hashes
    #[arg(long)]
    deep: bool,
    /// Repair the store of an unmounted directory, as far as that is safe: rebuild the index, cut
    /// off a torn end, set damaged objects aside. Nothing is destroyed
    #[arg(long, conflicts_with = "id")]
    repair: bool,
    /// Look for damage in this remote: its index, its trees, and with --deep every byte
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "REMOTE", conflicts_with_all = ["id", "repair"])]
    remote: Option<String>,
    /// With --repair: only show what would be repaired
    #[arg(short = 'n', long, requires = "repair")]
    dry_run: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    #[cfg(feature = "remote")]
    if let Some(remote) = &args.remote {
        return super::remote::maintenance::verify(remote, args.deep, context);
    }
    match locate::locate(locate::start(context.dir())?)? {
        TreeLocation::Served(served) if args.repair => {
            let root = served.root.display();
            let hint = format!(
                "verify it while it is mounted: ckptfs verify; or unmount it first: ckptfs umount {}",
                word(&root)
            );
            Err(hinted(Code::InUse, format!("{root} is mounted"), hint).into())
        }
        TreeLocation::Served(served) => mounted(served, args, context),
        TreeLocation::Store { root, .. } => unmounted(&root, args, context),
        other => Err(locate::not_served(&other).into()),
    }
}

fn bar(args: &Args, context: &Context) -> Bar {
    let text = if args.deep {
        "reading every version"
    } else {
        "looking at every version"
    };
    Bar::start(&context.out, text, args.deep)
}

fn mounted(mut served: ServedTree, args: Args, context: &mut Context) -> Outcome {
    let bar = bar(&args, context);
    let mut options = VerifyOptions {
        state: args.id.map(StateName),
        deep: args.deep,
        run: None,
    };
    let found = whole(&bar, || {
        let part = served.client.ask(options.clone())?;
        options.run = Some(part.run);
        Ok(part)
    })?;
    bar.stop();
    findings::print(&found, args.deep, &[], context)?;
    damage_if(!found.findings.is_empty())
}

/// Checks the store of a directory that is not mounted, files that no record names included, and
/// repairs it on request.
fn unmounted(root: &Path, args: Args, context: &mut Context) -> Outcome {
    let bar = bar(&args, context);
    let root = sys::open_root(root).map_err(|cause| error::io_error(root.display(), cause))?;
    let mut check = StoreCheck::begin(
        root,
        &CheckOptions {
            state: args.id.map(StateName),
            deep: args.deep,
            strays: true,
        },
    )?;
    let found = whole(&bar, || Ok(check.step()))?;
    bar.stop();
    let repairable = || found.findings.iter().filter(|one| one.repair.is_some());
    let repaired = match (args.repair, args.dry_run) {
        (false, _) => Vec::new(),
        (true, false) => check.repair()?,
        (true, true) => repairable()
            .filter_map(|one| Some(format!("would {}: {}", one.repair.as_ref()?, one.on)))
            .collect(),
    };
    findings::print(&found, args.deep, &repaired, context)?;
    if !args.repair && repairable().next().is_some() {
        context
            .out
            .talk("to list the repairs: ckptfs verify --repair --dry-run");
    }
    let repairs = args.repair && !args.dry_run;
    damage_if(
        found
            .findings
            .iter()
            .any(|one| !repairs || one.repair.is_none()),
    )
}

fn damage_if(damaged: bool) -> Outcome {
    if damaged {
        Err(Failure::Damage)
    } else {
        Ok(())
    }
}

/// Requests one part after the other, and joins the findings.
pub fn whole(bar: &Bar, mut part: impl FnMut() -> VerbResult<Verified>) -> VerbResult<Verified> {
    let mut findings = Vec::new();
    loop {
        let mut verified = part()?;
        findings.append(&mut verified.findings);
        bar.at(verified.done, verified.total);
        if verified.finished {
            return Ok(Verified {
                findings,
                ..verified
            });
        }
    }
}
