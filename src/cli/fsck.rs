//! `ckptfs fsck`, and `ckptfs verify --repair`.

use super::context::Context;
use super::error::{Failure, Outcome, hinted};
use super::locate::{self, Located};
use super::progress::Bar;
use super::{error, findings, verify};
use crate::engine::api::{Code, Damage};
use crate::engine::check::{CheckOptions, INDEX_MADE, StoreCheck};
use crate::engine::word::word;
use crate::store::check::DamageKind;
use crate::sys;

/// Check the store of a directory that is not mounted, and repair what can be repaired safely
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Read every byte of every version, and compare with the recorded hashes
    #[arg(long)]
    deep: bool,
    /// Repair what is safe to repair: rebuild the index, cut off a torn end, set damaged objects
    /// aside. Nothing is destroyed
    #[arg(long)]
    repair: bool,
    /// Rebuild the index from the journal, whatever was found
    #[arg(long)]
    rebuild_index: bool,
    /// Only show what would be repaired
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl Args {
    /// Returns the arguments that repair all findings.
    pub fn repair(deep: bool, dry_run: bool) -> Args {
        Args {
            deep,
            repair: true,
            rebuild_index: false,
            dry_run,
        }
    }
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let root = match locate::locate(locate::start(context.dir())?)? {
        Located::Store { root, .. } => root,
        Located::Served(served) => {
            let root = served.root.display();
            let hint = format!(
                "verify it while it is mounted: ckptfs verify; or unmount it first: ckptfs umount {}",
                word(&root)
            );
            return Err(hinted(Code::InUse, format!("{root} is mounted"), hint).into());
        }
        other => return Err(locate::not_served(&other).into()),
    };
    let shown = root.display().to_string();
    let root = sys::open_root(&root).map_err(|cause| error::io_error(&shown, cause))?;
    let bar = Bar::start(&context.out, "checking the store", args.deep);
    let mut check = StoreCheck::begin(
        root,
        &CheckOptions {
            state: None,
            deep: args.deep,
            strays: true,
        },
    )?;
    let found = verify::whole(&bar, || Ok(check.step()))?;
    bar.stop();
    let repaired = if args.dry_run {
        found
            .findings
            .iter()
            .filter_map(|finding| {
                finding
                    .repair
                    .as_ref()
                    .map(|repair| format!("would {repair}: {}", finding.on))
            })
            .collect()
    } else if args.repair || args.rebuild_index {
        check.repair(args.repair, args.rebuild_index)?
    } else {
        Vec::new()
    };
    let rebuilt = repaired.iter().any(|said| said == INDEX_MADE);
    let of_index = |kind| {
        matches!(
            kind,
            DamageKind::IndexMissing | DamageKind::IndexUnreadable | DamageKind::IndexWrong
        )
    };
    let left: Vec<&Damage> = found
        .findings
        .iter()
        .filter(|finding| {
            !(args.repair && !args.dry_run && finding.repair.is_some()
                || rebuilt && of_index(finding.kind))
        })
        .collect();
    findings::print(&found, args.deep, &repaired, context)?;
    if left.is_empty() {
        return Ok(());
    }
    if !args.repair && left.iter().any(|finding| finding.repair.is_some()) {
        context
            .out
            .talk("some of it can be repaired: ckptfs verify --repair (add --dry-run to see how)");
    }
    Err(Failure::Damage)
}
