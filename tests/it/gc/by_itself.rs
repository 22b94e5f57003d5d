//! The daemon thins out the history by itself, if it is told to.

use super::story::{ids, rounds};
use crate::common::wait::{same, wait_until};
use crate::common::{Variant, for_each_variant};

for_each_variant! { xfs => the_daemon_thins_out_by_itself }

fn the_daemon_thins_out_by_itself(v: Variant) {
    let rig = v.start();
    rounds(&rig.mount, 5, 4096);
    rig.mount.ok(&["config", "set", "retention.keep-last", "2"]);
    assert_eq!(ids(&rig.mount).len(), 5, "rules alone do nothing");
    rig.mount.ok(&["config", "set", "retention.auto", "1s"]);
    wait_until("two are left", || same(ids(&rig.mount), [4, 5]));
    // What the file says later counts.
    rig.mount.ok(&["config", "set", "retention.keep-last", "1"]);
    wait_until("one is left", || same(ids(&rig.mount), [5]));
}
