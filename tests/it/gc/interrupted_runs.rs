//! Runs interrupted at each of their calls.

use std::fs::File;
use std::path::Path;

use crate::common::Mount;
use crate::common::random::is_long;
use ckptfs_api::{Client, Fault};
use ckptfs_sys::Errno;
use ckptfs_sys::fault::{CallKind, FaultPlan};

/// No run of these tests makes more calls.
const CALLS_MAX: u64 = 4000;

/// Kills a run at the Nth of each of `calls`, then fails it, then kills it at the Nth call of any
/// kind. N grows from 1 until the run completes. The short form skips increasingly many calls, for
/// any kind at least `stride`. `cut` receives a name, a description and the plan, and returns
/// `false` if the run was not interrupted.
pub fn at_each_call(
    calls: &[(&str, CallKind)],
    stride: u64,
    mut cut: impl FnMut(&str, &str, FaultPlan) -> bool,
) {
    let any = FaultPlan::nth(1, Errno::EIO);
    let kill = |plan: FaultPlan| FaultPlan { kill: true, ..plan };
    let chosen = calls
        .iter()
        .map(|(what, call)| (*what, kill(any.only(*call))));
    let all = [("failed at a call", any), ("killed at a call", kill(any))];
    for (what, plan) in chosen.chain(all) {
        let mut nth = 1;
        while cut(
            &format!("{}-{nth}", what.replace(' ', "-")),
            &format!("{what} {nth}"),
            FaultPlan { nth, ..plan },
        ) {
            nth += match plan.only {
                _ if is_long() => 1,
                Some(_) => 1 + nth / 3,
                None => stride + nth,
            };
            assert!(nth < CALLS_MAX, "{what}: it never completes");
        }
        assert!(nth > 1, "{what}: it was never interrupted");
    }
}

/// Runs a verb with a fault plan, and remounts after an interruption. Returns `false` if the plan
/// did not fire.
pub fn cut_short(mount: &mut Mount, backing: &Path, plan: FaultPlan, verb: &[&str]) -> bool {
    let fault = |plan| {
        Client::connect(File::open(backing.join(".ckptfs")).ok()?)
            .ok()?
            .ask(Fault { plan })
            .ok()
    };
    fault(Some(plan)).expect("the daemon is armed");
    let ran = mount.run(verb);
    let fired = fault(None).is_none_or(|(_, fired)| fired > 0);
    if plan.kill && fired {
        mount.kill();
        mount.remount();
    } else if !ran.status.success() {
        // The next mount repairs a journal that cannot be written.
        mount.umount();
        mount.remount();
    }
    fired
}
