//! Files left out are reported.

use std::path::Path;

use super::support::ImportRig;
use crate::common::command::{sh, tool};
use crate::common::tree::{assert_same, tree};
use crate::common::{Fs, Image, Io, Variant, skip, user};

fn on_xfs(test: fn(Variant)) {
    let variant = Variant {
        fs: Fs::Xfs,
        io: Io::Daemon,
    };
    match variant.unavailable() {
        Some(reason) => skip(&reason),
        None => test(variant),
    }
}

/// Unmounts on drop, because the image below could not be unmounted otherwise.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = tool("umount", &["-l"]).arg(self.0).status();
    }
}

#[test]
fn another_filesystem_below_is_left_out_and_told() {
    on_xfs(|v| {
        let place = ImportRig::new(v);
        sh(
            &place.project(),
            "mkdir sub other; echo 1 > sub/f; mount -t tmpfs none other; echo 2 > other/f",
        );
        let other = place.project().join("other");
        let _mounted = Mounted(&other);
        let output = place.run(&["project", "--into", "tree"]);
        assert_eq!(output.status.code(), Some(1));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
        let left = &told["checkpoints"][0]["left_out"];
        assert_eq!(
            (
                &left[0]["path"],
                &left[0]["why"],
                left.as_array().map(Vec::len)
            ),
            (&"other".into(), &"other-filesystem".into(), Some(1)),
            "{told}"
        );
        assert!(String::from_utf8_lossy(&output.stderr).contains("\"incomplete\""));
        assert_eq!(told["checkpoints"][0]["checkpoint"], 1);
        assert_eq!(sh(&place.tree(), "cat sub/f; ls"), "1\nsub\n");
    });
}

/// As an ordinary user: unreadable files are reported, retried, and unchanged in the tree.
const STORY: &str = r#"
set -e
ckptfs=$1 dir=$2
cd "$dir"
mkdir p p/closed; echo 1 > p/open; echo 2 > p/secret; echo 3 > p/closed/f
"$ckptfs" import p --into t --json > first
echo 22 > p/secret; chmod 0 p/secret p/closed; echo 11 > p/open
for round in 1 2; do
    status=0; "$ckptfs" import p --into t --json > second 2> said || status=$?
    [ $status = 1 ] && grep -q incomplete said
    grep -q '"left_out":\[{"path":"closed","why":"no-permission".*{"path":"secret","why":"no-permission"' second
    grep -q '"removed":0' second
    [ "$(cat t/open t/secret)" = "11
2" ]
done
chmod 600 p/secret; chmod 700 p/closed; echo 33 > p/closed/f
"$ckptfs" import p --into t
[ "$(cat t/open t/secret t/closed/f)" = "11
22
33" ]
echo done
"#;

#[test]
fn what_a_user_may_not_read_is_told_and_stays_as_it_was() {
    on_xfs(|v| {
        if !user::can_mount() {
            return;
        }
        let image = Image::of(v.fs);
        let home = user::home(&image);
        let output = user::runs(STORY, &home, &home);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            output.status.success() && said.contains("done\n"),
            "{}: {said}\n{}",
            output.status,
            sh(&home, "cat first second said 2>/dev/null || true")
        );
    });
}

#[test]
fn a_file_that_is_written_all_the_time_is_whole_or_told() {
    on_xfs(|v| {
        let place = ImportRig::new(v);
        sh(
            &place.project(),
            "for f in $(seq 200); do echo $f > f$f; done; head -c 3000000 /dev/zero > log",
        );
        let mut writer = tool("sh", &["-c", "while :; do echo more >> log; done"]);
        let mut writer = writer
            .current_dir(place.project())
            .spawn()
            .expect("started");
        let output = place.run(&["project", "--into", "tree"]);
        let _ = writer.kill();
        writer.wait().expect("ended");
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
        let left = told["checkpoints"][0]["left_out"]
            .as_array()
            .expect("array")
            .clone();
        assert!(
            left.iter()
                .all(|left| left["path"] == "log" && left["why"] == "changing"),
            "{told}"
        );
        assert_eq!(output.status.success(), left.is_empty());
        // The next import adds the later changes.
        place.bring();
        assert_same(&tree(&place.tree()), &tree(&place.project()));
    });
}
