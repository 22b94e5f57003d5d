//! A `gc` interrupted at each of its calls loses nothing that is kept, and the next run completes
//! it.

use std::collections::BTreeMap;
use std::fs;

use super::interrupted_runs::{at_each_call, cut_short};
use super::story::{ids, objects, rounds, views};
use crate::common::tree::{Tree, assert_tree_is};
use crate::common::{Image, Mount, MountOpts, TreeOpts, Variant, for_each_variant};
use ckptfs_sys::fault::{CallKind, FaultPlan};

for_each_variant! { reflink => a_run_that_is_cut_short_is_finished_by_the_next }

const UNIT: usize = 8192;
const KEPT: [u64; 3] = [2, 5, 6];

/// A backing directory mounted elsewhere, so that faults can be injected into its daemon.
struct InterruptRig {
    mount: Mount,
    kept: BTreeMap<u64, Tree>,
}

impl InterruptRig {
    fn new(v: Variant, image: &Image, name: &str) -> InterruptRig {
        let (backing, point) = (image.dir(name), image.dir(&format!("{name}-here")));
        let mut mount = Mount::start(
            &backing,
            &MountOpts {
                mountpoint: Some(point),
                ..MountOpts::new(v.io).packing()
            },
        );
        rounds(&mount, 6, UNIT);
        mount.ok(&["tag", "2", "stays"]);
        let mut kept = views(&mount);
        kept.retain(|id, _| KEPT.contains(id));
        // No takeover: the store remains as the daemon left it.
        mount.kill_holder();
        InterruptRig { mount, kept }
    }

    fn check(&self, shown: &str) {
        let now = ids(&self.mount);
        assert!(KEPT.iter().all(|id| now.contains(id)), "{shown}: {now:?}");
        for (id, tree) in &self.kept {
            assert_tree_is(&self.mount.view(*id), tree, &TreeOpts::default());
        }
    }
}

fn a_run_that_is_cut_short_is_finished_by_the_next(v: Variant) {
    let image = Image::in_memory(v.fs, 512 << 20);
    // The store after an uninterrupted run.
    let whole = InterruptRig::new(v, &image, "whole");
    assert!(whole.mount.run(&["gc", "--keep-last=2"]).status.success());
    let wanted = objects(&image.path().join("whole")).len();
    assert_eq!(ids(&whole.mount), KEPT);
    whole.check("a whole run");
    drop(whole);
    let (mut kills, mut failures, mut left) = (0, 0, 0);
    let calls = [
        ("killed at a removal", CallKind::Unlink),
        ("killed at a write", CallKind::Write),
    ];
    at_each_call(&calls, 5, |name, what, plan| {
        let shown = format!("{v:?}: {what}");
        let Some(leftovers) = cut(v, &image, name, &shown, plan, wanted) else {
            return false;
        };
        left += u64::from(leftovers > 0);
        *(if plan.kill { &mut kills } else { &mut failures }) += 1;
        true
    });
    println!(
        "{v:?}: {kills} times killed, {failures} calls failed, {left} times versions were left over, {wanted} objects remain each time"
    );
    assert!(left > 0, "no run left anything to the next one");
}

/// Returns the number of unneeded versions that the run left, or `None` if it was not interrupted.
fn cut(
    v: Variant,
    image: &Image,
    name: &str,
    shown: &str,
    plan: FaultPlan,
    wanted: usize,
) -> Option<u64> {
    let mut story = InterruptRig::new(v, image, name);
    let backing = image.path().join(name);
    let fired = cut_short(&mut story.mount, &backing, plan, &["gc", "--keep-last=2"]);
    story.check(shown);
    let report = story.mount.json(&["gc", "--keep-last=2"]);
    assert_eq!(ids(&story.mount), KEPT, "{shown}: {report}");
    assert_eq!(
        objects(&backing).len(),
        wanted,
        "{shown}: the next run frees the rest: {report}"
    );
    story.check(shown);
    story.mount.umount();
    fs::remove_dir_all(&backing).expect("the tree can be removed");
    fired.then(|| report["leftovers"].as_u64().unwrap_or(0))
}
