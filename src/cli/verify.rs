//! `ckptfs verify`.

use super::context::Context;
use super::error;
use super::error::{Failure, Outcome};
use super::locate::{self, TreeLocation};
use super::progress::Bar;
use super::{findings, fsck};
use crate::engine::api::{StateName, VerbResult, Verified, VerifyOptions};
use crate::engine::check::{CheckOptions, StoreCheck};
use crate::sys;

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
    if args.repair {
        return fsck::run(args.deep, args.dry_run, context);
    }
    let state = args.id.map(StateName);
    let what = if args.deep {
        "reading every version"
    } else {
        "looking at every version"
    };
    let bar = Bar::start(&context.out, what, args.deep);
    let mut unmounted = false;
    let found = match locate::locate(locate::start(context.dir())?)? {
        TreeLocation::Served(mut served) => {
            let mut options = VerifyOptions {
                state,
                deep: args.deep,
                run: None,
            };
            whole(&bar, || {
                let part = served.client.ask(options.clone())?;
                options.run = Some(part.run);
                Ok(part)
            })?
        }
        TreeLocation::Store { root, .. } => {
            unmounted = true;
            let root =
                sys::open_root(&root).map_err(|cause| error::io_error(root.display(), cause))?;
            let mut check = StoreCheck::begin(
                root,
                &CheckOptions {
                    state,
                    deep: args.deep,
                    strays: true,
                },
            )?;
            whole(&bar, || Ok(check.step()))?
        }
        other => return Err(locate::not_served(&other).into()),
    };
    bar.stop();
    findings::print(&found, args.deep, &[], context)?;
    if found.findings.is_empty() {
        return Ok(());
    }
    if unmounted
        && found
            .findings
            .iter()
            .any(|finding| finding.repair.is_some())
    {
        context.out.talk("to repair what can be repaired: ckptfs verify --repair; to list the repairs: ckptfs verify --repair --dry-run");
    }
    Err(Failure::Damage)
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
