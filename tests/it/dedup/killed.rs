//! After a kill of the daemon nothing is lost, and the next run continues.

use crate::common::{Variant, for_each_variant};

for_each_variant! { all => a_kill_in_the_middle_costs_nothing }

#[cfg(debug_assertions)]
fn a_kill_in_the_middle_costs_nothing(v: Variant) {
    use std::fs::File;

    use ckptfs_api::Client;
    use ckptfs_api::Fault;
    use ckptfs_sys::Errno;
    use ckptfs_sys::fault::{CallKind, FaultPlan};

    use super::story::{apart, assert_whole, tell, trees};
    use crate::common::command::check;

    let mut rig = tell(v, "off");
    let before = trees(&rig.mount);
    let calls = if v.fs.has_reflink() {
        vec![(CallKind::Clone, 1), (CallKind::Clone, 4)]
    } else {
        vec![
            (CallKind::Link, 1),
            (CallKind::Rename, 1),
            (CallKind::Unlink, 2),
        ]
    };
    for (call, nth) in calls {
        rig.mount.kill_holder();
        let mut client = Client::connect(File::open(rig.path().join(".ckptfs")).unwrap()).unwrap();
        client
            .ask(Fault {
                plan: Some(FaultPlan {
                    kill: true,
                    ..FaultPlan::nth(nth, Errno::EIO).only(call)
                }),
            })
            .unwrap();
        let output = rig.mount.run(&["gc", "--dedup"]);
        assert!(
            !output.status.success(),
            "no process was killed at {call:?} {nth}"
        );
        rig.mount.kill();
        rig.mount.remount();
        assert_eq!(trees(&rig.mount), before, "after {call:?} {nth}");
        assert_whole(&rig.mount);
    }
    let done = rig.mount.json(&["gc", "--dedup"]);
    assert!(done["shared"]["files"].as_u64() > Some(0), "{done}");
    if v.fs.has_reflink() {
        assert_eq!(apart(rig.path()), 0);
    }
    assert_eq!(trees(&rig.mount), before);
    rig.mount.umount();
    let (status, found) = check(rig.path(), &["verify", "--deep"]);
    assert_eq!(status, 0, "{found}");
}

#[cfg(not(debug_assertions))]
fn a_kill_in_the_middle_costs_nothing(_: Variant) {
    crate::common::skip("only a debug build can be stopped at a call");
}
