//! A merge reads only changed files.

use super::support::{changes, lines_with, merge};
use crate::common::{MountOpts, Variant, for_each_variant};
use ckptfs_sys::Errno;
use ckptfs_sys::fault::{CallKind, FaultPlan};

/// Returns the stat(2) calls of a merge of 60 files, of which 20 changed on both sides, in a tree
/// with `untouched` other files.
fn calls(v: Variant, untouched: u32) -> u64 {
    let base = format!(
        "mkdir -p d u; for i in $(seq 60); do seq 20 > d/$i; done; for i in $(seq {untouched}); do echo $i > u/$i; done"
    );
    // The sealer reads the attributes of every file once the tree is idle.
    let rig = lines_with(
        v,
        MountOpts::new(v.io).arg("--seal=off"),
        &base,
        "for i in $(seq 60); do echo more >> d/$i; done",
        "for i in $(seq 20); do e s/^3$/three/ d/$i; done",
    );
    rig.fault(Some(FaultPlan::nth(0, Errno::EIO).only(CallKind::Stat)));
    let (merged, done) = merge(&rig, &[]);
    let (calls, _) = rig.fault(None);
    assert!(done && changes(&merged).len() == 60, "{merged}");
    println!(
        "{untouched} files untouched: {calls} calls, {} us",
        merged["duration_us"]
    );
    calls
}

fn a_merge_reads_what_was_touched(v: Variant) {
    let (few, many) = (calls(v, 10), calls(v, 2000));
    assert!(
        many < few + few / 10,
        "{few} calls, and {many} with more files"
    );
}

for_each_variant! { xfs => a_merge_reads_what_was_touched }
