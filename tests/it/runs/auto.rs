//! Automatic checkpoints at intervals and after changes cease.

use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

use serde_json::Value;

use crate::common::wait::{seen, wait_until};
use crate::common::{MountOpts, Rig, Variant, for_each_variant};

fn automatic(rig: &Rig, trigger: &str) -> Vec<u64> {
    let log = rig.mount.log_json();
    let of = |checkpoint: &Value| {
        (checkpoint["reason"]["trigger"] == trigger)
            .then(|| checkpoint["id"].as_u64().expect("an id"))
    };
    log.as_array()
        .expect("a log")
        .iter()
        .filter_map(of)
        .collect()
}

/// Time for several rounds.
const SEVERAL_ROUNDS: Duration = Duration::from_millis(1200);

fn something_changed_and_it_was_time(variant: Variant) {
    let rig = variant.start_with(MountOpts::new(variant.io).arg("--auto-every=300ms"), |_| {});
    let asked = rig.mount.checkpoint();
    // On a busy machine one may already exist for the new tree.
    let before = automatic(&rig, "interval");
    std::thread::sleep(SEVERAL_ROUNDS);
    assert_eq!(automatic(&rig, "interval"), before, "nothing has changed");
    fs::write(rig.path().join("a"), "1").unwrap();
    // A checkpoint may fall between the creation of the file and the write.
    let made = wait_until("a checkpoint of it is made", || {
        let made = automatic(&rig, "interval");
        let newest = made.first().map(|id| fs::read(rig.view(*id).join("a")));
        let whole = matches!(&newest, Some(Ok(content)) if content == b"1");
        seen(whole, newest).map(|()| made)
    });
    std::thread::sleep(SEVERAL_ROUNDS);
    assert_eq!(
        automatic(&rig, "interval"),
        made,
        "nothing has changed since"
    );
    assert_eq!(
        rig.mount.json(&["show", "latest"])["id"],
        asked,
        "it is not `latest`"
    );
}

/// The writer keeps its file open: with passthrough its writes make no request.
fn it_became_quiet_after_a_change(variant: Variant) {
    let rig = variant.start_with(MountOpts::new(variant.io).arg("--auto-quiet=1s"), |_| {});
    rig.mount.checkpoint();
    let mut file = File::create(rig.path().join("log")).unwrap();
    for _ in 0..60 {
        file.write_all(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(30));
    }
    file.write_all(b"end").unwrap();
    wait_until("a checkpoint is made", || {
        let made = automatic(&rig, "quiet");
        let whole =
            |id: &u64| fs::read(rig.view(*id).join("log")).is_ok_and(|log| log.ends_with(b"end"));
        seen(made.iter().any(whole), made)
    });
    let made = automatic(&rig, "quiet");
    std::thread::sleep(2 * SEVERAL_ROUNDS);
    assert_eq!(automatic(&rig, "quiet"), made, "it stays quiet");
    drop(file);
}

for_each_variant! { xfs => something_changed_and_it_was_time, it_became_quiet_after_a_change }
