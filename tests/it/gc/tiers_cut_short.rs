//! A run by tiers that is cut short, at each of its calls: nothing else is lost, wrong bytes are
//! never shown, and the next run finishes it.

use std::fs::{self, File};
use std::path::Path;

use ckptfs::Client;
use ckptfs::api::Fault;
use ckptfs::internals::sys::Errno;
use ckptfs::internals::sys::fault::{Call, Plan};
use serde_json::json;

use super::story::{Tree, ids, noise, objects, views};
use super::tiers::{assert_whole_but_dropped, configure, dropped};
use crate::common::mount::wait_until;
use crate::common::{Image, Mount, MountOpts, Variant, for_each_variant, tree_of};

for_each_variant! { one => a_tier_that_is_cut_short_is_finished_by_the_next }

const UNIT: usize = 8192;
/// No run of this test makes more calls.
const CALLS_MAX: u64 = 4000;
/// Versions that go.
const VERSIONS: usize = 6;

fn long() -> bool {
    std::env::var_os("CKPTFS_LONG").is_some()
}

fn story(v: Variant, image: &Image, name: &str) -> (Mount, Vec<(u64, Tree)>) {
    let (backing, point) = (image.dir(name), image.dir(&format!("{name}-here")));
    let mut mount = Mount::start(
        &backing,
        &MountOpts {
            mountpoint: Some(point),
            ..MountOpts::new(v.io)
        },
    );
    let root = mount.path().to_owned();
    fs::create_dir(root.join("target")).unwrap();
    for round in 0..4 {
        fs::write(root.join("target/changed"), noise(UNIT, round)).unwrap();
        let _ = fs::remove_file(root.join("target/moved"));
        fs::write(root.join("target/moved"), noise(UNIT, 100 + round)).unwrap();
        fs::write(root.join("source"), noise(UNIT, 200 + round)).unwrap();
        mount.checkpoint();
    }
    configure(&mount, r#"["target/"]"#, "1ms");
    // Nobody is to take over: what is left is what the daemon left.
    mount.kill_holder();
    let kept = views(&mount).into_iter().collect();
    (mount, kept)
}

fn check(shown: &str, mount: &Mount, kept: &[(u64, Tree)]) -> usize {
    let mut gone = 0;
    for (id, then) in kept {
        let now = tree_of(&mount.view(*id));
        assert_whole_but_dropped(&format!("{shown}: {id}"), &now, then);
        assert!(
            dropped(&now).iter().all(|path| path.starts_with("target")),
            "{shown}: {id}: {:?}",
            dropped(&now)
        );
        gone += dropped(&now).len();
    }
    gone
}

fn a_tier_that_is_cut_short_is_finished_by_the_next(v: Variant) {
    let image = Image::in_memory(v.fs, 512 << 20);
    let (whole, kept) = story(v, &image, "whole");
    wait_until("nobody reads what goes", 120, || {
        whole.json(&["gc"])["leftovers"] == json!(0)
    });
    wait_until("nobody reads what goes", 120, || {
        whole.json(&["gc"])["leftovers"] == json!(0)
    });
    assert_eq!(check("a whole run", &whole, &kept), VERSIONS);
    let wanted = sizes(&image.path().join("whole"));
    drop(whole);
    let (mut cuts, mut left, mut part) = (0, 0, 0);
    for (what, plan) in [
        (
            "killed at a removal",
            Plan {
                kill: true,
                ..Plan::nth(1, Errno::EIO).only(Call::Unlink)
            },
        ),
        (
            "killed at a truncation",
            Plan {
                kill: true,
                ..Plan::nth(1, Errno::EIO).only(Call::Truncate)
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
            let Some((leftovers, gone)) =
                cut_short(v, &image, &name, what, Plan { nth, ..plan }, &wanted)
            else {
                break;
            };
            left += u64::from(leftovers > 0);
            part += u64::from(gone > 0 && leftovers > 0);
            cuts += 1;
            nth += match plan.only {
                _ if long() => 1,
                Some(_) => 1 + nth / 3,
                None => 7 + nth,
            };
            assert!(nth < CALLS_MAX, "{what}: it never gets by");
        }
        assert!(nth > 1, "{what}: it was not cut short at all");
    }
    println!(
        "{v:?}: {cuts} times cut short, {left} times versions were left over, {part} times on record"
    );
    assert!(
        left > 0 && part > 0,
        "no run left anything for the next to find"
    );
}

/// Name and size of every object.
fn sizes(backing: &Path) -> usize {
    objects(backing)
        .iter()
        .map(|name| fs::symlink_metadata(backing.join(name)).map_or(0, |meta| meta.len() as usize))
        .sum()
}

/// How many versions the run left that were on record, and how many were dropped; `None`: it was
/// not cut short at all.
fn cut_short(
    v: Variant,
    image: &Image,
    name: &str,
    what: &str,
    plan: Plan,
    wanted: &usize,
) -> Option<(u64, usize)> {
    let shown = format!("{v:?}: {what} {}", plan.nth);
    let (mut mount, kept) = story(v, image, name);
    let backing = image.path().join(name);
    let fault = |plan| {
        Client::connect(File::open(backing.join(".ckptfs")).ok()?)
            .ok()?
            .ask(Fault { plan })
            .ok()
    };
    fault(Some(plan)).expect("the daemon is armed");
    let ran = mount.run(&["gc"]);
    let fired = fault(None).is_none_or(|(_, fired)| fired > 0);
    if plan.kill && fired {
        mount.kill();
        mount.remount();
    } else if !ran.status.success() {
        // What cannot be written any more is mended by the next mount.
        mount.umount();
        mount.remount();
    }
    let gone = check(&shown, &mount, &kept);
    assert_eq!(
        mount.json(&["verify", "--deep"])["findings"],
        json!([]),
        "{shown}"
    );
    let report = mount.json(&["gc"]);
    assert_eq!(check(&shown, &mount, &kept), VERSIONS, "{shown}: {report}");
    // What the sealer is just reading is freed by the run after that.
    wait_until(
        &format!("{shown}: the next run frees what was left: {report}"),
        120,
        || {
            mount.ok(&["gc"]);
            sizes(&backing) == *wanted
        },
    );
    assert_eq!(ids(&mount).len(), kept.len(), "{shown}: {report}");
    drop(mount);
    fired.then(|| (report["leftovers"].as_u64().unwrap_or(0), gone))
}
