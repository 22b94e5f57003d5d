//! Exports as a tar stream, read by tar(1).

use std::fs::File;
use std::path::Path;

use super::support::{copies, copy_at, history};
use crate::common::command::{sh, succeeds};
use crate::common::tree::{assert_same, tree};
use crate::common::{MountOpts, Variant, for_each_variant, sample_tree, tool};

fn a_stream_is_the_tree(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), sample_tree);
    let history = history(&rig);
    let dir = copies(&rig);
    for step in [0, 2] {
        let (id, expected) = &history[step];
        let file = dir.join(format!("{step}.tar"));
        let mut command = rig.mount.command(&["export", &id.to_string(), "-"]);
        let status = command
            .stdout(File::create(&file).expect("file"))
            .status()
            .expect("runs");
        assert!(status.success());
        let size = file.metadata().expect("stat").len();
        assert!(size < 4 << 20, "holes are not in the stream: {size}");
        let to = dir.join(step.to_string());
        sh(&dir, &format!("mkdir {step}"));
        let mut untar = tool(
            "tar",
            &[
                "--xattrs",
                "--xattrs-include=*",
                "--same-owner",
                "--numeric-owner",
                "-xpf",
            ],
        );
        succeeds(untar.arg(&file).arg("-C").arg(&to), 60);
        let mut expected = expected.clone();
        // The format does not support sockets.
        expected.remove(Path::new("socket"));
        assert_same(&copy_at(&to), &expected);
    }
}

for_each_variant! { xfs => a_stream_is_the_tree }
for_each_variant! { xfs => writers_do_not_reach_a_stream }

/// A slow reader blocks the stream when the pipe is full, while everything changes.
fn writers_do_not_reach_a_stream(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sample_tree(dir);
        // More than the pipe and the command buffer, so that the stream spans the changes.
        sh(
            dir,
            "mkdir many; for i in $(seq 900); do head -c 9000 /dev/zero | tr '\\0' a > many/$i; done; ln many/1 many/linked; ln many/900 many/early",
        );
        sh(dir, "head -c 20000000 /dev/zero | tr '\\0' b > large");
    });
    let mut expected = tree(rig.path());
    expected.remove(Path::new("socket"));
    let (id, dir) = (rig.mount.checkpoint().to_string(), copies(&rig));
    let writers = "while [ -e go ]; do for f in many/[0-9]*; do echo changed > $f; done; for f in many/1*; do mv $f $f.x; done; rm -f many/*.x; \
        for i in $(seq 100 199); do echo $i > many/$i; done; chmod 600 many/2*; ln -f binary many/b; echo more >> large; rm -rf deep; done";
    std::fs::write(rig.path().join("go"), "").expect("go");
    let mut child = tool("bash", &["-c", writers])
        .current_dir(rig.path())
        .spawn()
        .expect("spawn");
    let told = [0, 1, 2].map(|round| {
        let to = dir.join(round.to_string());
        std::fs::create_dir(&to).expect("mkdir");
        let mut export = rig.mount.command(&["export", &id, "-"]);
        let mut export = export.stdout(std::process::Stdio::piped()).spawn().expect("runs");
        let mut slow =
            tool("bash", &["-c", "(head -c 3000000; sleep 0.3; cat) | tar --xattrs --xattrs-include='*' --same-owner --numeric-owner -xpf -"]);
        let slow = slow.current_dir(&to).stdin(export.stdout.take().expect("a pipe")).status().expect("runs");
        export.wait().expect("ends").success() && slow.success()
    });
    std::fs::remove_file(rig.path().join("go")).expect("stop");
    child.wait().expect("the writers exit");
    assert_eq!(told, [true; 3]);
    for round in 0..3 {
        assert_same(&copy_at(&dir.join(round.to_string())), &expected);
    }
}
