//! A tier interrupted at each of its calls loses nothing else, never shows wrong content, and is
//! completed by the next run.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::interrupted_runs::{at_each_call, cut_short};
use super::story::{ids, objects, views};
use super::tiers::{assert_whole_but_dropped, configure, dropped};
use crate::common::space::noise;
use crate::common::tree::Tree;
use crate::common::wait::{same, wait_longer};
use crate::common::{Image, Mount, MountOpts, Variant, for_each_variant, tree_of};
use ckptfs_sys::fault::{CallKind, FaultPlan};

for_each_variant! { xfs => a_tier_that_is_cut_short_is_finished_by_the_next }

const UNIT: usize = 8192;
/// Versions to drop.
const VERSIONS: usize = 6;

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
    // No takeover: the store remains as the daemon left it.
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
    for _ in 0..2 {
        wait_longer("no process reads the versions to be dropped", 120, || {
            same(whole.json(&["gc"])["leftovers"].clone(), 0)
        });
    }
    assert_eq!(check("a whole run", &whole, &kept), VERSIONS);
    let wanted = sizes(&image.path().join("whole"));
    drop(whole);
    let (mut cuts, mut left, mut part) = (0, 0, 0);
    let calls = [
        ("killed at a removal", CallKind::Unlink),
        ("killed at a truncation", CallKind::Truncate),
        ("killed at a write", CallKind::Write),
    ];
    at_each_call(&calls, 7, |name, what, plan| {
        let shown = format!("{v:?}: {what}");
        let Some((leftovers, gone)) = cut(v, &image, name, &shown, plan, wanted) else {
            return false;
        };
        left += u64::from(leftovers > 0);
        part += u64::from(gone > 0 && leftovers > 0);
        cuts += 1;
        true
    });
    println!(
        "{v:?}: {cuts} times interrupted, {left} times versions were left over, {part} times on record"
    );
    assert!(left > 0 && part > 0, "no run left anything to the next one");
}

/// Returns the total size of all objects.
fn sizes(backing: &Path) -> usize {
    objects(backing)
        .iter()
        .map(|name| fs::symlink_metadata(backing.join(name)).map_or(0, |meta| meta.len() as usize))
        .sum()
}

/// Returns the number of recorded versions that the run left, and the number of dropped files, or
/// `None` if it was not interrupted.
fn cut(
    v: Variant,
    image: &Image,
    name: &str,
    shown: &str,
    plan: FaultPlan,
    wanted: usize,
) -> Option<(u64, usize)> {
    let (mut mount, kept) = story(v, image, name);
    let backing = image.path().join(name);
    let fired = cut_short(&mut mount, &backing, plan, &["gc"]);
    let gone = check(shown, &mount, &kept);
    assert_eq!(
        mount.json(&["verify", "--deep"])["findings"],
        json!([]),
        "{shown}"
    );
    let report = mount.json(&["gc"]);
    assert_eq!(check(shown, &mount, &kept), VERSIONS, "{shown}: {report}");
    // A version that the sealer is reading is freed by a later run.
    wait_longer(
        &format!("{shown}: the next run frees the rest: {report}"),
        120,
        || {
            mount.ok(&["gc"]);
            sizes(&backing) == wanted
        },
    );
    assert_eq!(ids(&mount).len(), kept.len(), "{shown}: {report}");
    drop(mount);
    fired.then(|| (report["leftovers"].as_u64().unwrap_or(0), gone))
}
