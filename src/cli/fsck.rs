//! `ckptfs fsck`.

use super::error::{Failure, Outcome, hinted};
use super::locate::{self, Located};
use super::progress::Bar;
use super::{Context, error, findings, verify};
use crate::engine::check::{CheckOptions, StoreCheck};
use crate::sys;

/// Check the store of a directory that is not mounted, and repair what can be repaired safely
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Read every byte of every version, and compare it with the hash that the sealer took
    #[arg(long)]
    deep: bool,
    /// Do what is safe: make the index anew, save a torn end, set damaged objects aside. Nothing is destroyed
    #[arg(long)]
    repair: bool,
    /// Make the index from the journal, whatever was found
    #[arg(long)]
    rebuild_index: bool,
    /// Only tell what would be repaired
    #[arg(short = 'n', long)]
    dry_run: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let root = match locate::locate(locate::start(context.dir())?)? {
        Located::Store { root } => root,
        Located::Served(served) => {
            let root = served.root.display();
            let hint = format!("verify it while it is mounted: ckptfs verify; or unmount it first: ckptfs umount {root}");
            return Err(hinted("in-use", format!("{root} is mounted"), hint).into());
        }
        other => return Err(locate::not_served(&other).into()),
    };
    let shown = root.display().to_string();
    let root = sys::open_root(&root).map_err(|cause| error::io_error(&shown, cause))?;
    let bar = Bar::start(&context.out, "checking the store", args.deep);
    let mut check = StoreCheck::begin(root, &CheckOptions { state: None, deep: args.deep, strays: true })?;
    let found = verify::whole(&bar, || Ok(check.step()))?;
    bar.stop();
    let repaired = if args.dry_run {
        found.findings.iter().filter_map(|finding| finding.repair.as_ref().map(|repair| format!("would {repair}: {}", finding.on))).collect()
    } else if args.repair || args.rebuild_index {
        check.repair(args.repair, args.rebuild_index)?
    } else {
        Vec::new()
    };
    let left = found.findings.iter().any(|finding| !(args.repair && !args.dry_run && finding.repair.is_some()));
    findings::print(&found, args.deep, &repaired, context)?;
    if !left {
        return Ok(());
    }
    if !args.repair && found.findings.iter().any(|finding| finding.repair.is_some()) {
        context.out.talk("some of it can be repaired: ckptfs fsck --repair (what it would do: --repair --dry-run)");
    }
    Err(Failure::Damage)
}
