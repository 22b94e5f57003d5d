//! The parent directory is renamed while the tree is mounted. Failed before: `umount` and `branch
//! create` used the path at startup.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::branch::support::{inside, is_mounted};
use crate::common::mount::VERB_SECONDS;
use crate::common::{
    Image, Mount, MountOpts, Variant, for_each_variant, same, succeeds, tool, wait_until,
};

for_each_variant! { reflink => the_directory_above_is_renamed }

/// Renames it back when dropped, because the harness unmounts at the old path.
struct Renamed(PathBuf, PathBuf);

impl Renamed {
    fn new(from: &Path, to: &Path) -> Renamed {
        fs::rename(from, to).expect("a directory above a mount can be renamed");
        Renamed(from.to_owned(), to.to_owned())
    }
}

impl Drop for Renamed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        let _ = fs::rename(&self.1, &self.0);
    }
}

fn json(dir: &Path, arguments: &[&str]) -> Value {
    let said = inside(dir, &[arguments, &["--json"]].concat());
    serde_json::from_str(&said).unwrap_or_else(|_| panic!("{arguments:?}: {said}"))
}

/// Returns the branches by name, with their path and whether they are mounted there.
fn branches(dir: &Path) -> Vec<(String, PathBuf, bool)> {
    let list = json(dir, &["branch", "list"]);
    let one = |branch: &Value| {
        let path = PathBuf::from(branch["path"].as_str().unwrap());
        let mounted = branch["mounted"] == true && is_mounted(&path);
        (branch["name"].as_str().unwrap().to_owned(), path, mounted)
    };
    list.as_array().unwrap().iter().map(one).collect()
}

fn ckptfs(arguments: &[&Path]) {
    succeeds(
        &mut tool(env!("CARGO_BIN_EXE_ckptfs"), arguments),
        VERB_SECONDS,
    );
}

fn the_directory_above_is_renamed(v: Variant) {
    let image = Image::of(v.fs);
    let (old, new) = (image.dir("old"), image.path().join("new"));
    fs::create_dir(old.join("p")).unwrap();
    let mut mount = Mount::start(&old.join("p"), &MountOpts::new(v.io));
    fs::write(mount.path().join("f"), "1").unwrap();
    mount.checkpoint();
    for name in ["one", "two"] {
        mount.ok(&["branch", "create", name, "--no-git"]);
    }
    fs::write(old.join("p@one/own"), "1").unwrap();
    let renamed = Renamed::new(&old, &new);
    let (dir, beside) = (new.join("p"), |name: &str| new.join(format!("p@{name}")));
    let there = |names: &[&str]| -> Vec<(String, PathBuf, bool)> {
        let all = names.iter();
        all.map(|name| (name.to_string(), beside(name), true))
            .collect()
    };
    let works = || {
        let status = json(&dir, &["status"]);
        assert_eq!(status["mount"], dir.to_str().unwrap());
        assert_eq!(status["backing"], dir.to_str().unwrap());
        fs::write(dir.join("f"), "2").unwrap();
        inside(&dir, &["checkpoint"]);
        inside(&dir, &["restore", "1"]);
        assert_eq!(fs::read(dir.join("f")).unwrap(), b"1");
    };
    works();
    assert_eq!(branches(&dir), there(&["one", "two"]));
    inside(&dir, &["branch", "create", "three", "--no-git"]);
    // A dropped branch is restored at its new path.
    inside(&dir, &["branch", "drop", "two"]);
    assert!(!beside("two").exists(), "its directory still exists");
    inside(&dir, &["branch", "restore", "two"]);
    assert_eq!(branches(&dir), there(&["one", "three", "two"]));
    // A successor serves all of it.
    let before = json(&dir, &["status"])["daemon"]["pid"].clone();
    std::thread::sleep(std::time::Duration::from_millis(300));
    crate::common::process::kill(u32::try_from(before.as_u64().unwrap()).unwrap());
    wait_until("another worker has taken over", || {
        same(json(&dir, &["status"])["daemon"]["pid"] != before, true)
    });
    works();
    assert_eq!(branches(&dir), there(&["one", "three", "two"]));
    assert_eq!(fs::read(beside("one").join("own")).unwrap(), b"1");
    // A branch is unmounted and mounted again at its new path.
    ckptfs(&["umount".as_ref(), &beside("one")]);
    inside(&dir, &["branch", "mount", "one"]);
    inside(&dir, &["branch", "drop", "three"]);
    // Another tree can be mounted at the old path.
    fs::create_dir_all(old.join("p")).unwrap();
    ckptfs(&["mount".as_ref(), &old.join("p")]);
    ckptfs(&["umount".as_ref(), &old.join("p")]);
    ckptfs(&["umount".as_ref(), &dir]);
    assert!(!is_mounted(&dir) && !is_mounted(&beside("one")));
    ckptfs(&["mount".as_ref(), &dir]);
    assert_eq!(branches(&dir), there(&["one", "two"]));
    ckptfs(&["umount".as_ref(), &dir]);
    drop(renamed);
    mount.remount();
    assert_eq!(mount.json(&["branch", "list"]).as_array().unwrap().len(), 2);
    mount.umount();
}
