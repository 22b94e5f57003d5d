//! Exports as a tar stream, read by the real tar.

use std::fs::File;
use std::path::Path;

use super::support::{assert_same, copies, copy_at, history};
use crate::common::command::{sh, succeeds};
use crate::common::{MountOpts, Variant, for_each_variant, sample_tree, tool};

fn a_stream_is_the_tree(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), sample_tree);
    let history = history(&rig);
    let dir = copies(&rig);
    for step in [0, 2] {
        let (id, expected) = &history[step];
        let file = dir.join(format!("{step}.tar"));
        let mut command = rig.mount.command(&["export", &id.to_string(), "-"]);
        let status = command.stdout(File::create(&file).expect("file")).status().expect("runs");
        assert!(status.success());
        let size = file.metadata().expect("stat").len();
        assert!(size < 4 << 20, "holes are not in the stream: {size}");
        let to = dir.join(step.to_string());
        sh(&dir, &format!("mkdir {step}"));
        let mut untar = tool("tar", &["--xattrs", "--xattrs-include=*", "--same-owner", "--numeric-owner", "-xpf"]);
        succeeds(untar.arg(&file).arg("-C").arg(&to), 60);
        let mut expected = expected.clone();
        // The format has none.
        expected.remove(Path::new("socket"));
        assert_same(&copy_at(&to), &expected);
    }
}

for_each_variant! { one => a_stream_is_the_tree }
