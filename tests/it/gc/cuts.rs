//! Runs that are cut short, at each of their calls.

use std::fs::File;
use std::path::Path;

use ckptfs::Client;
use ckptfs::api::Fault;
use ckptfs::internals::sys::Errno;
use ckptfs::internals::sys::fault::{Call, Plan};

use crate::common::Mount;
use crate::common::random::is_long;

/// No run of these tests makes more calls.
const CALLS_MAX: u64 = 4000;

/// Has a run killed at these calls, and then killed and failed at any, at the first, the second, the
/// third ... until it gets by; the short form leaves out ever more, `stride` at least of any.
/// `cut` is given a name, what is done, and when; `false`: the run was not cut short.
pub fn at_each_call(
    calls: &[(&str, Call)],
    stride: u64,
    mut cut: impl FnMut(&str, &str, Plan) -> bool,
) {
    let any = Plan::nth(1, Errno::EIO);
    let kill = |plan: Plan| Plan { kill: true, ..plan };
    let chosen = calls
        .iter()
        .map(|(what, call)| (*what, kill(any.only(*call))));
    let all = [("failed at a call", any), ("killed at a call", kill(any))];
    for (what, plan) in chosen.chain(all) {
        let mut nth = 1;
        while cut(
            &format!("{}-{nth}", what.replace(' ', "-")),
            &format!("{what} {nth}"),
            Plan { nth, ..plan },
        ) {
            nth += match plan.only {
                _ if is_long() => 1,
                Some(_) => 1 + nth / 3,
                None => stride + nth,
            };
            assert!(nth < CALLS_MAX, "{what}: it never gets by");
        }
        assert!(nth > 1, "{what}: it was not cut short at all");
    }
}

/// Runs a verb with that at its daemon; what was cut short is mounted again. `false`: it was not.
pub fn cut_short(mount: &mut Mount, backing: &Path, plan: Plan, verb: &[&str]) -> bool {
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
        // What cannot be written any more is mended by the next mount.
        mount.umount();
        mount.remount();
    }
    fired
}
