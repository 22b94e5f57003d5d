//! Import into an existing tree: only differences are copied, and nothing is lost.

use std::path::Path;

use super::support::{ImportRig, Rng};
use crate::common::command::sh;
use crate::common::random::{count, seed};
use crate::common::tree::{Tree, assert_same, tree};
use crate::common::{Variant, for_each_variant, sample_tree};

fn what_has_not_changed_makes_no_checkpoint(v: Variant) {
    let place = ImportRig::new(v);
    sample_tree(&place.project());
    place.bring();
    let again = place.bring();
    assert_eq!(
        (&again["checkpoint"], &again["unchanged"], &again["made"]),
        (&1.into(), &true.into(), &0.into()),
        "{again}"
    );
    // Mounted, unmounted, and after a remount.
    let mut mount = place.mount();
    assert_eq!(place.bring()["unchanged"], true);
    mount.umount();
    assert_eq!(place.bring()["unchanged"], true);
    // The tag is added to the existing checkpoint.
    let told = place.import(&["project", "--into", "tree", "--tag", "same"]);
    assert_eq!(told["checkpoints"][0]["checkpoint"], 1, "{told}");
    mount.remount();
    assert_eq!(mount.json(&["show", "same"])["id"], 1);
    // Changed in place, with the old size and times: only its ctime differs.
    sh(
        &place.project(),
        "touch -r plain.txt ref; printf 'A LINE\\n' 1<> plain.txt; touch -r ref plain.txt; rm ref",
    );
    let again = place.bring();
    assert_eq!(
        (&again["checkpoint"], &again["unchanged"]),
        (&2.into(), &false.into()),
        "{again}"
    );
    place.assert_equal();
    assert_eq!(
        std::fs::read_to_string(mount.view(1).join("plain.txt")).expect("read"),
        "a line\n"
    );
}

fn what_a_daemon_has_served_since_is_known_to_it(v: Variant) {
    let place = ImportRig::new(v);
    sample_tree(&place.project());
    place.bring();
    let mut mount = place.mount();
    let said = place.tree().join(".ckptfs/imported-in");
    let unchanged = || assert_eq!(place.bring()["unchanged"], true);
    unchanged();
    let first = std::fs::read_to_string(&said).expect("the daemon is recorded");
    unchanged();
    let changes = [
        "echo mine > plain.txt",
        "chmod 600 plain.txt",
        "setfattr -n user.mine -v 1 plain.txt",
        "echo new > new",
        "rm plain.txt",
        "mkdir -p mine/dir",
        "mv plain.txt other.txt",
        "touch -r /etc plain.txt",
        "printf X | dd of=plain.txt conv=notrunc status=none; touch -r /etc plain.txt",
    ];
    for change in changes {
        sh(&place.tree(), change);
        let again = place.bring();
        assert_eq!(again["unchanged"], false, "{change}: {again}");
        place.assert_equal();
        // The first import compares and records the daemon; the second only queries it.
        unchanged();
        unchanged();
        assert!(
            std::fs::read_to_string(&said).expect("read").ends_with(
                first
                    .split_once(' ')
                    .expect("words")
                    .1
                    .split_once(' ')
                    .expect("words")
                    .1
            )
        );
    }
    // The change is in a checkpoint already, so nothing is dirty.
    sh(&place.tree(), "echo mine > plain.txt");
    mount.checkpoint();
    assert_eq!(place.bring()["unchanged"], false);
    place.assert_equal();
    unchanged();
    // Additions to and removals from the source.
    for change in [
        "mkdir -p wide/new",
        "rmdir wide/new",
        "chmod 711 wide",
        "touch new",
    ] {
        sh(&place.project(), change);
        assert_eq!(place.bring()["unchanged"], false, "{change}");
        place.assert_equal();
        unchanged();
    }
    // Another daemon has no record of earlier changes.
    mount.umount();
    sh(&place.tree(), "echo unserved > new");
    mount.remount();
    assert_eq!(place.bring()["unchanged"], false);
    place.assert_equal();
}

fn a_record_that_is_lost_or_damaged_costs_only_time(v: Variant) {
    let place = ImportRig::new(v);
    sample_tree(&place.project());
    place.bring();
    let record = place.tree().join(".ckptfs/imported");
    let whole = std::fs::read(&record).expect("record");
    let damages: [&dyn Fn() -> Option<Vec<u8>>; 4] = [
        &|| None,
        &|| Some(Vec::new()),
        &|| Some(whole[..whole.len() / 2].to_vec()),
        &|| {
            let mut bytes = whole.clone();
            let at = bytes.len() / 3;
            bytes[at] ^= 1;
            Some(bytes)
        },
    ];
    for (round, damage) in damages.iter().enumerate() {
        match damage() {
            None => std::fs::remove_file(&record).expect("remove"),
            Some(bytes) => std::fs::write(&record, bytes).expect("write"),
        }
        let again = place.bring();
        assert_eq!(
            (&again["unchanged"], &again["made"]),
            (&true.into(), &0.into()),
            "{round}: {again}"
        );
        std::fs::write(
            place.project().join("plain.txt"),
            format!("round {round}\n"),
        )
        .expect("write");
        match damage() {
            None => std::fs::remove_file(&record).expect("remove"),
            Some(bytes) => std::fs::write(&record, bytes).expect("write"),
        }
        // A full comparison yields the same result as the record.
        assert_eq!(place.bring()["unchanged"], false);
        place.assert_equal();
    }
    // A symbolic link in place of the record is not followed.
    std::fs::write(place.image.path().join("mine"), "mine").expect("write");
    std::fs::remove_file(&record).expect("remove");
    std::os::unix::fs::symlink(place.image.path().join("mine"), &record).expect("link");
    place.bring();
    assert_eq!(
        std::fs::read_to_string(place.image.path().join("mine")).expect("read"),
        "mine"
    );
    assert!(!record.is_symlink());
}

fn what_was_changed_in_the_tree_is_a_checkpoint_before_it_goes(v: Variant) {
    let place = ImportRig::new(v);
    sample_tree(&place.project());
    place.bring();
    let mut mount = place.mount();
    sh(
        &place.tree(),
        "echo mine > plain.txt; mkdir mine; echo x > mine/f; rm -r deep; chmod 700 wide",
    );
    let mine = tree(&place.tree());
    let told = place.bring();
    let guard = told["guard"].as_u64().expect("a guard");
    place.assert_equal();
    assert_same(&tree(&mount.view(guard)), &mine);
    mount.restore(guard);
    assert_same(&tree(&place.tree()), &mine);
    // The same for changes made while unmounted, whose previous state no checkpoint has.
    place.bring();
    mount.umount();
    sh(
        &place.tree(),
        "echo unseen > unseen; rm wide/file-001; echo unseen >> wide/file-002",
    );
    let unseen = tree(&place.tree());
    let told = place.bring();
    let guard = told["guard"].as_u64().expect("a guard");
    place.assert_equal();
    mount.remount();
    assert_same(&tree(&mount.view(guard)), &unseen);
}

const NAMES: [&str; 7] = ["a", "b", "c", "d/x", "d/y", "e/z", "d/s/t"];

/// Makes one random change; impossible ones are skipped.
fn change(root: &Path, rng: &mut Rng) {
    let name = |rng: &mut Rng| NAMES[rng.below(NAMES.len() as u64) as usize];
    let (one, other, number) = (name(rng), name(rng), rng.below(100_000));
    let script = match rng.below(14) {
        // Never opens a FIFO, which has no reader.
        0 | 1 => format!("[ -p {one} ] || echo {number} > {one}"),
        2 => format!(
            "[ -f {one} ] && [ ! -L {one} ] && printf %s {number} | dd of={one} conv=notrunc bs=1 seek=$(({number} % 40)) 2>/dev/null"
        ),
        3 => format!("rm -rf {one}"),
        4 => format!("mkdir -p {one}"),
        5 => format!("ln -f {one} {other}"),
        6 => format!("ln -sfn to-{number} {one}"),
        7 => format!("mv -T {one} {other}"),
        8 => format!("rm -rf {one}; mkfifo {one}"),
        9 => format!("chmod {}55 {one}", number % 8),
        10 => format!("[ -f {one} ] && setfattr -n user.k -v {number} {one}"),
        11 => format!("touch -d @{number}.123456789 {one}"),
        12 => format!("rm -rf d e; mkdir -p d/s e; echo {number} > d/s/t"),
        _ => format!("[ -f {one} ] && truncate -s $(({number} * 3)) {one}"),
    };
    sh(
        root,
        &format!("mkdir -p d/s e 2>/dev/null; {{ {script}; }} 2>/dev/null || true"),
    );
}

fn after_any_changes_the_tree_is_the_source(v: Variant) {
    let rounds = count("CKPTFS_ROUNDS", 6, 6);
    let mut rng = Rng::new(seed(&format!("imports on {v:?}"), 20_260_102));
    let place = ImportRig::new(v);
    sh(
        &place.project(),
        "mkdir -p d/s e; for f in a b c d/x e/z d/s/t; do echo $f > $f; done",
    );
    place.bring();
    let mut mount = place.mount();
    let mut told: Vec<(u64, Tree)> = Vec::new();
    for round in 0..rounds {
        for _ in 0..1 + rng.below(5) {
            change(&place.project(), &mut rng);
        }
        let mounted = rng.below(3) > 0;
        if rng.below(2) == 0 {
            for _ in 0..1 + rng.below(3) {
                change(&place.tree(), &mut rng);
            }
        }
        if !mounted {
            mount.umount();
        }
        let made = place.bring();
        place.assert_equal();
        // Nothing is left to do.
        let again = place.bring();
        assert_eq!(
            (&again["unchanged"], &again["checkpoint"]),
            (&true.into(), &made["checkpoint"]),
            "round {round}: {made}\n{again}"
        );
        told.push((
            made["checkpoint"].as_u64().expect("a checkpoint"),
            tree(&place.project()),
        ));
        if !mounted {
            mount.remount();
        }
        // Earlier checkpoints are unchanged.
        for (id, then) in &told {
            assert_same(&tree(&mount.view(*id)), then);
        }
    }
    assert_eq!(mount.json(&["verify", "--deep"])["ok"], true);
}

fn a_series_that_grew_goes_on(v: Variant) {
    let place = ImportRig::new(v);
    let root = place.image.path();
    sh(
        root,
        "mkdir -p snaps/2026-01-01 snaps/2026-01-02; echo 1 > snaps/2026-01-01/f; echo 2 > snaps/2026-01-02/f",
    );
    assert_eq!(
        place.import(&["snaps", "--into", "tree"])["checkpoints"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    let told = place.import(&["snaps", "--into", "tree"]);
    assert_eq!(
        (&told["checkpoints"], &told["known"]),
        (
            &serde_json::json!([]),
            &serde_json::json!(["2026-01-01", "2026-01-02"])
        ),
        "{told}"
    );
    sh(
        root,
        "mkdir snaps/2026-01-03; cp -a snaps/2026-01-02/f snaps/2026-01-03/f",
    );
    let told = place.import(&["snaps", "--into", "tree"]);
    assert_eq!(
        told["checkpoints"][0]["checkpoint"], 3,
        "each snapshot becomes one checkpoint, even without a change: {told}"
    );
    let mount = place.mount();
    assert_eq!(
        std::fs::read_to_string(mount.view(1).join("f")).expect("read"),
        "1\n"
    );
    assert_same(&tree(&mount.view(3)), &tree(&root.join("snaps/2026-01-03")));
}

for_each_variant! { xfs => what_has_not_changed_makes_no_checkpoint, a_series_that_grew_goes_on, a_record_that_is_lost_or_damaged_costs_only_time }
for_each_variant! { reflink => what_was_changed_in_the_tree_is_a_checkpoint_before_it_goes, what_a_daemon_has_served_since_is_known_to_it }
for_each_variant! { all => after_any_changes_the_tree_is_the_source }
