//! Import of foreign snapshot histories.

use std::path::Path;

use crate::common::command::sh;
use crate::common::tree::{Tree, assert_same, tree_without};
use crate::common::{Mount, MountOpts, TreeOpts, Variant, for_each_variant, sample_tree, tree_of};

/// Directories made by `rsync -aHAX --link-dest`.
const SNAPSHOTS: &str = "
    one() { rsync -aHAX ${2:-} project/ snaps/$1/; }
    one 2026-01-01
    echo more >> project/wide/file-001; rm -r project/deep; mkdir project/new; ln project/binary project/new/binary; chmod 600 project/wide/file-002
    one 2026-01-02 --link-dest=../2026-01-01
    one 2026-01-03 --link-dest=../2026-01-02
    rm project/plain.txt project/links/same-again; mv project/wide project/new/; echo x > project/wide; ln -sfn other project/dangling
    one 2026-01-04 --link-dest=../2026-01-03
    ln -s 2026-01-04 snaps/latest";

fn links_do_not_count_across(tree: &Path) -> Tree {
    tree_without(tree, &TreeOpts::default().ignore)
}

fn snapshots_become_checkpoints(v: Variant) {
    let image = crate::common::Image::of(v.fs);
    let dir = image.dir("work");
    std::fs::create_dir(dir.join("project")).expect("mkdir");
    std::fs::create_dir(dir.join("snaps")).expect("mkdir");
    sample_tree(&dir.join("project"));
    sh(&dir, SNAPSHOTS);
    let ckptfs = env!("CARGO_BIN_EXE_ckptfs");
    let listed = sh(&dir, &format!("{ckptfs} import -n snaps"));
    assert!(
        listed.starts_with("2026-01-01\n2026-01-02\n2026-01-03\n2026-01-04\n")
            && !dir.join("snaps-history").exists(),
        "{listed}"
    );
    sh(&dir, &format!("{ckptfs} import snaps"));
    let mount = Mount::start(&dir.join("snaps-history"), &MountOpts::new(v.io));
    for (id, name) in (1..).zip(["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]) {
        assert_same(
            &tree_of(&mount.view(id)),
            &links_do_not_count_across(&dir.join("snaps").join(name)),
        );
        let found = mount.json(&["log", "--label", &format!("Snapshot={name}")]);
        assert_eq!(found[0]["id"], id, "{found}");
    }
    // Files that rsync left unchanged are not copied again: the history has only changes.
    let changed = mount.json(&["diff", "2", "3"]);
    // rsync changes the mtimes of some directories.
    let files: Vec<_> = changed
        .as_array()
        .expect("changes")
        .iter()
        .filter(|change| change["kind"] != "dir")
        .collect();
    assert!(files.is_empty(), "{files:?}");
}

fn snapper_s_are_found_with_their_dates(v: Variant) {
    let image = crate::common::Image::of(v.fs);
    let dir = image.dir("work");
    sh(
        &dir,
        "for n in 9 10; do mkdir -p s/$n/snapshot; echo $n > s/$n/snapshot/f
         echo \"<snapshot><num>$n</num><date>2026-01-1$((n - 9)) 10:00:00</date><description>before &lt;$n&gt;</description></snapshot>\" > s/$n/info.xml; done",
    );
    sh(
        &dir,
        &format!("{} import s --into tree", env!("CARGO_BIN_EXE_ckptfs")),
    );
    let mount = Mount::start(&dir.join("tree"), &MountOpts::new(v.io));
    assert_eq!(
        std::fs::read_to_string(mount.view(1).join("f")).expect("f"),
        "9\n"
    );
    assert_eq!(
        std::fs::read_to_string(mount.view(2).join("f")).expect("f"),
        "10\n"
    );
    let found = mount.json(&["log", "--label", "Date=2026-01-11 10:00:00"]);
    assert_eq!(
        (
            found[0]["id"].as_u64(),
            found[0]["note"]
                .as_str()
                .and_then(|note| note.lines().next())
        ),
        (Some(2), Some("before <10>"))
    );
    // Failed before: imported snapshots had the time of the import, so that a search by date found
    // none, and a daily retention rule kept only one of all.
    assert_eq!(found[0]["created"], "2026-01-11T10:00:00Z");
    assert_eq!(mount.json(&["show", "@{2026-01-10T12:00:00Z}"])["id"], 1);
    assert_eq!(
        mount.json(&["log", "--until", "2026-01-11T00:00:00Z"])[0]["id"],
        1
    );
    let kept = mount.json(&["gc", "--keep-daily", "2", "--dry-run"]);
    assert_eq!(kept["gone"], serde_json::json!([]), "one per day");
}

for_each_variant! { xfs => snapshots_become_checkpoints, snapper_s_are_found_with_their_dates }
