//! A killed import yields the same result when repeated.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::support::{ImportRig, Rng};
use crate::common::command::sh;
use crate::common::tree::{assert_same, tree};
use crate::common::wait::wait_until;
use crate::common::{Mount, MountOpts, Variant, for_each_variant};

/// Enough files for a kill in between.
const FILES: u32 = 900;
const ROUNDS: u64 = 4;

fn fill(place: &ImportRig) {
    let script = format!(
        "for d in $(seq 30); do mkdir d$d; for f in $(seq {}); do echo $d $f > d$d/f$f; done; ln d$d/f1 l$d; done",
        FILES / 30
    );
    sh(&place.project(), &script);
}

/// Returns the number of paths below a directory, as far as it can be read.
fn paths(place: &ImportRig, below: &str) -> u64 {
    let count = format!("find {below} -path '*/.ckptfs' -prune -o -print 2>/dev/null | wc -l");
    sh(place.image.path(), &count)
        .trim()
        .parse()
        .expect("a number")
}

fn start(place: &ImportRig) -> Child {
    let mut command = place.command(&["project", "--into", "tree"]);
    // A process group, so that the kill includes the `mount` that it started.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started")
}

/// Kills the import with SIGKILL; returns whether it had already exited.
fn kill(mut child: Child) -> bool {
    let ended = child.try_wait().expect("wait").is_some();
    let group = i32::try_from(child.id()).expect("a process id");
    let _ = ckptfs_sys::kill_group(group, 9);
    child.wait().expect("wait");
    ended
}

fn a_new_tree_is_finished_by_running_it_again(v: Variant) {
    let place = ImportRig::new(v);
    fill(&place);
    let expected = tree(&place.project());
    let (mut cut_short, mut rng) = (0, Rng::new(7));
    for round in 0..ROUNDS {
        let child = start(&place);
        let begun = Instant::now();
        let wanted = rng.below(u64::from(FILES));
        // Half of the runs are killed after a number of files, the others near the end.
        let ends = round % 2 == 1;
        while if ends {
            !place.tree().join(".ckptfs/format").exists()
        } else {
            paths(&place, "tree") < wanted
        } && begun.elapsed() < Duration::from_secs(60)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        if ends {
            // While the tree is mounted, imported into or unmounted.
            std::thread::sleep(Duration::from_millis(rng.below(250)));
        }
        if !kill(child) {
            cut_short += 1;
            if place.tree().join(".ckptfs/importing").exists() {
                let refused = Mount::try_start(&place.tree(), &MountOpts::new(place.io));
                let said = String::from_utf8_lossy(&refused.stderr).into_owned();
                assert!(
                    !refused.status.success() && said.contains("ckptfs import"),
                    "a partly imported tree is served: {said}"
                );
            }
        }
        let made = place.bring();
        assert_eq!(made["left_out"], serde_json::json!([]), "{made}");
        assert_same(&tree(&place.tree()), &expected);
        let mut mount = place.adopted();
        let newest = made["checkpoint"].as_u64().expect("a checkpoint");
        assert_same(&tree(&mount.view(newest)), &expected);
        assert_eq!(mount.json(&["verify", "--deep"])["ok"], true);
        mount.umount();
        assert_eq!(place.bring()["unchanged"], true);
        sh(place.image.path(), "rm -rf tree");
    }
    assert!(
        cut_short >= ROUNDS / 2,
        "only {cut_short} were killed before their end"
    );
}

fn a_tree_that_is_there_is_finished_by_running_it_again(v: Variant) {
    let place = ImportRig::new(v);
    fill(&place);
    place.bring();
    let first = tree(&place.project());
    let mount = place.mount();
    sh(&place.tree(), "echo mine > mine");
    let mine = tree(&place.tree());
    let mut rng = Rng::new(11);
    for round in 0..ROUNDS {
        sh(
            &place.project(),
            &format!(
                "for d in d?; do for f in $d/f*; do echo {round} >> $f; done; done; mkdir r{round}; mv d1{round}/* r{round}; rm l3"
            ),
        );
        sh(&place.project(), "ln d3/f1 l3");
        let expected = tree(&place.project());
        let before = mount.log_json().as_array().map_or(0, Vec::len);
        let child = start(&place);
        if round == 0 {
            // Changes by others get a checkpoint before anything is modified.
            wait_until("the guard", || {
                mount.log_json().as_array().map_or(0, Vec::len) > before
            });
        }
        std::thread::sleep(Duration::from_millis(rng.below(60)));
        kill(child);
        let made = place.bring();
        assert_same(&tree(&place.tree()), &expected);
        assert_same(
            &tree(&mount.view(made["checkpoint"].as_u64().expect("a checkpoint"))),
            &expected,
        );
        assert_same(&tree(&mount.view(1)), &first);
        assert_same(&tree(&mount.view(2)), &mine);
        assert_eq!(
            sh(&place.tree(), "ls -A .ckptfs/tmp/restore"),
            "",
            "the stage is empty"
        );
    }
    assert_eq!(mount.json(&["verify", "--deep"])["ok"], true);
}

for_each_variant! { xfs => a_new_tree_is_finished_by_running_it_again, a_tree_that_is_there_is_finished_by_running_it_again }
