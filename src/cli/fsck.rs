//! `ckptfs verify --repair`.

use super::context::Context;
use super::error::{Failure, Outcome, hinted};
use super::locate::{self, TreeLocation};
use super::progress::Bar;
use super::{error, findings, verify};
use crate::engine::api::{Code, Damage};
use crate::engine::check::{CheckOptions, INDEX_MADE, StoreCheck};
use crate::engine::display::word;
use crate::store::check::DamageKind;
use crate::sys;

/// Checks the store of a directory that is not mounted and repairs it; with `dry_run` only reports
/// the repairs.
pub fn run(deep: bool, dry_run: bool, context: &mut Context) -> Outcome {
    let root = match locate::locate(locate::start(context.dir())?)? {
        TreeLocation::Store { root, .. } => root,
        TreeLocation::Served(served) => {
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
    let bar = Bar::start(&context.out, "checking the store", deep);
    let mut check = StoreCheck::begin(
        root,
        &CheckOptions {
            state: None,
            deep,
            strays: true,
        },
    )?;
    let found = verify::whole(&bar, || Ok(check.step()))?;
    bar.stop();
    let repaired = if dry_run {
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
    } else {
        check.repair()?
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
            !(!dry_run && finding.repair.is_some() || rebuilt && of_index(finding.kind))
        })
        .collect();
    findings::print(&found, deep, &repaired, context)?;
    if left.is_empty() {
        return Ok(());
    }
    Err(Failure::Damage)
}
