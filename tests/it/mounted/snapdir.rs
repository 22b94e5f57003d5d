//! A tree with its own `.snapshots`, of snapper or of its user. Failed before: it was inaccessible
//! while the tree was mounted.

use std::fs;
use std::path::Path;

use crate::branch::support::{create, inside};
use crate::common::mount::VERB_SECONDS;
use crate::common::{Image, Mount, MountOpts, Rig, Variant, for_each_variant, succeeds, tool};

for_each_variant! { reflink => another_tool_s_snapshots_stay_in_reach }

/// The alternative name of the snapshot directory.
const PAST: &str = ".past";

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn another_tool_s_snapshots_stay_in_reach(v: Variant) {
    let image = Image::of(v.fs);
    let dir = image.dir("project");
    fs::create_dir_all(dir.join(".snapshots/1/snapshot")).unwrap();
    fs::write(dir.join(".snapshots/1/info.xml"), "snapper's").unwrap();
    fs::write(dir.join("f"), "1").unwrap();
    let refused = Mount::try_start(&dir, &MountOpts::new(v.io));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains(".snapshots is there already") && said.contains("--snapdir-name"),
        "{said}"
    );
    assert!(
        !dir.join(".ckptfs").exists(),
        "a refused mount leaves a store"
    );
    let opts = MountOpts::new(v.io).arg(&format!("--snapdir-name={PAST}"));
    let mut rig = Rig {
        mount: Mount::start(&dir, &opts),
        image,
    };
    rig.mount.checkpoint();
    fs::write(dir.join(".snapshots/1/info.xml"), "changed").unwrap();
    fs::write(dir.join("f"), "2").unwrap();
    shown(&rig, &dir);
    // mkdir(2) makes checkpoints there.
    fs::create_dir(dir.join(PAST).join("named")).unwrap();
    assert_eq!(read(&dir.join(PAST).join("named/f")), "2");
    inside(&dir, &["restore", "1", ".snapshots"]);
    assert_eq!(read(&dir.join(".snapshots/1/info.xml")), "snapper's");
    // A branch has both, and so has a fork of it.
    let branch = create(&rig, "one");
    assert_eq!(read(&branch.join(".snapshots/1/info.xml")), "snapper's");
    fs::write(branch.join("f"), "3").unwrap();
    assert_eq!(read(&branch.join(PAST).join("1/f")), "2");
    assert_eq!(inside(&branch, &["show", "1:f"]), "2");
    let fork = dir.with_file_name("fork");
    inside(&dir, &["fork", "1", fork.to_str().unwrap(), "--mount"]);
    inside(&fork, &["checkpoint"]);
    assert_eq!(read(&fork.join(PAST).join("1/f")), "1");
    assert_eq!(read(&fork.join(".snapshots/1/info.xml")), "snapper's");
    succeeds(
        tool(env!("CARGO_BIN_EXE_ckptfs"), &["umount"]).arg(&fork),
        VERB_SECONDS,
    );
    // The successor and the next mount use the same name.
    rig.mount.replace_worker();
    shown(&rig, &dir);
    rig.mount.umount();
    let mut again = tool(
        env!("CARGO_BIN_EXE_ckptfs"),
        &["mount", "--io", v.io.name()],
    );
    succeeds(again.arg(&dir), VERB_SECONDS);
    rig.mount.adopt();
    shown(&rig, &dir);
    assert_eq!(read(&branch.join(PAST).join("1/f")), "2");
}

/// Asserts that checkpoint 1 is accessible by every path.
fn shown(rig: &Rig, dir: &Path) {
    assert_eq!(read(&dir.join(PAST).join("1/f")), "1");
    let link = fs::read_link(dir.join(".zfs/snapshot")).unwrap();
    assert_eq!(link, Path::new("..").join(PAST));
    for (path, content) in [("1:f", "1"), ("1:", ".snapshots\nf\n")] {
        assert_eq!(inside(dir, &["show", path]), content, "{path}");
    }
    assert!(rig.mount.ok(&["diff", "-p", "1"]).contains("-1"));
    let live: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|one| one.unwrap().file_name())
        .collect();
    assert!(
        !live.iter().any(|name| name == PAST),
        "it is not listed: {live:?}"
    );
    assert!(live.iter().any(|name| name == ".snapshots"), "{live:?}");
}
