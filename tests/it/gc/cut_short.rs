//! A run that is cut short, at each of its calls: nothing that is kept is lost, and the next run
//! finishes it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use ckptfs::Client;
use ckptfs::api::Fault;
use ckptfs::internals::sys::Errno;
use ckptfs::internals::sys::fault::{Call, Plan};

use super::story::{Tree, ids, objects, rounds, views};
use crate::common::tree::assert_tree_is;
use crate::common::{Image, Mount, MountOpts, TreeOpts, Variant, for_each_variant};

for_each_variant! { reflink => a_run_that_is_cut_short_is_finished_by_the_next }

const UNIT: usize = 8192;
/// No run of this test makes more calls.
const CALLS_MAX: u64 = 4000;
const KEPT: [u64; 3] = [2, 5, 6];

fn long() -> bool {
    std::env::var_os("CKPTFS_LONG").is_some()
}

/// A tree beside its mount, so that its daemon can be armed.
struct Beside {
    mount: Mount,
    kept: BTreeMap<u64, Tree>,
}

impl Beside {
    fn new(v: Variant, image: &Image, name: &str) -> Beside {
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
        // Nobody is to take over: what is left is what the daemon left.
        mount.kill_holder();
        Beside { mount, kept }
    }

    fn fault(&self, backing: &Path, plan: Option<Plan>) -> Option<(u64, u64)> {
        Client::connect(File::open(backing.join(".ckptfs")).ok()?)
            .ok()?
            .ask(Fault { plan })
            .ok()
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
    // What is there when nothing was cut short.
    let whole = Beside::new(v, &image, "whole");
    assert!(whole.mount.run(&["gc", "--keep-last=2"]).status.success());
    let wanted = objects(&image.path().join("whole")).len();
    assert_eq!(ids(&whole.mount), KEPT);
    whole.check("a whole run");
    drop(whole);
    let (mut kills, mut failures, mut left) = (0, 0, 0);
    for (what, plan) in [
        (
            "killed at a removal",
            Plan {
                kill: true,
                ..Plan::nth(1, Errno::EIO).only(Call::Unlink)
            },
        ),
        (
            "killed at a write",
            Plan {
                kill: true,
                ..Plan::nth(1, Errno::EIO).only(Call::Write)
            },
        ),
        ("failed at a call", Plan::nth(1, Errno::EIO)),
        (
            "killed at a call",
            Plan {
                kill: true,
                ..Plan::nth(1, Errno::EIO)
            },
        ),
    ] {
        let mut nth = 1;
        loop {
            let name = format!("{}-{nth}", what.replace(' ', "-"));
            let Some(leftovers) = cut_short(v, &image, &name, what, Plan { nth, ..plan }, wanted)
            else {
                break;
            };
            left += u64::from(leftovers > 0);
            (kills, failures) = if plan.kill {
                (kills + 1, failures)
            } else {
                (kills, failures + 1)
            };
            let step = if long() {
                1
            } else if plan.only.is_some() {
                1 + nth / 3
            } else {
                5 + nth
            };
            nth += step;
            assert!(nth < CALLS_MAX, "{what}: it never gets by");
        }
        assert!(nth > 1, "{what}: it was not cut short at all");
    }
    println!(
        "{v:?}: {kills} times killed, {failures} calls failed, {left} times versions were left over, {wanted} objects are kept each time"
    );
    assert!(left > 0, "no run left anything for the next to find");
}

/// How many versions the run left that nobody needed; `None`: it was not cut short at all.
fn cut_short(
    v: Variant,
    image: &Image,
    name: &str,
    what: &str,
    plan: Plan,
    wanted: usize,
) -> Option<u64> {
    let shown = format!("{v:?}: {what} {}", plan.nth);
    let mut story = Beside::new(v, image, name);
    let backing = image.path().join(name);
    story
        .fault(&backing, Some(plan))
        .expect("the daemon is armed");
    let ran = story.mount.run(&["gc", "--keep-last=2"]);
    let fired = match story.fault(&backing, None) {
        Some((_, fired)) => fired > 0,
        None => true,
    };
    if plan.kill && fired {
        story.mount.kill();
        story.mount.remount();
    } else if !ran.status.success() {
        // What cannot be written any more is mended by the next mount.
        story.mount.umount();
        story.mount.remount();
    }
    story.check(&shown);
    let report = story.mount.json(&["gc", "--keep-last=2"]);
    assert_eq!(ids(&story.mount), KEPT, "{shown}: {report}");
    assert_eq!(
        objects(&backing).len(),
        wanted,
        "{shown}: the next run frees what was left: {report}"
    );
    story.check(&shown);
    story.mount.umount();
    fs::remove_dir_all(&backing).expect("the tree is ours");
    fired.then(|| report["leftovers"].as_u64().unwrap_or(0))
}
