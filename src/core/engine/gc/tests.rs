use std::time::Duration;

use super::super::branch_tests::Tree;
use super::*;
use crate::engine::auto::daemon;

/// Another client deletes checkpoints while `gc` or `du` runs. A record that only those read is
/// obsolete; it ended the run ("a version cannot be read: Stale file handle").
#[test]
fn a_checkpoint_that_goes_while_versions_are_measured_ends_no_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = Tree::open(dir.path(), None);
    tree.create("old", "old").expect("a file");
    tree.checkpoint();
    // The time of birth has the granularity of the kernel's tick: wait for a later one.
    std::thread::sleep(Duration::from_millis(30));
    tree.create("new", "new").expect("a file");
    tree.checkpoint();
    for file in ["old", "new"] {
        tree.write(file, 0, "changed").expect("a change");
    }
    let last = tree.checkpoint();
    tree.write("old", 0, "again").expect("a change");

    let collector = &tree.0.collector;
    let mut run = collector.begin_gc().expect("a run");
    for id in [1, 2] {
        let freed = collector
            .checkpoints
            .free_checkpoint(&daemon(), CheckpointId(id));
        freed.expect("it is deleted");
    }
    let until = Instant::now() + Duration::from_secs(60);
    assert_eq!(collector.work(&daemon(), &mut run, until), Ok(false));
    let GcRun::Measuring(measuring, _) = run else {
        panic!("it is measured");
    };
    let (census, measured, _) = measuring.finish(false);
    let of_last = |at: &usize| {
        let version = census.versions.get(*at);
        version.is_some_and(|version| version.by.end == census.kept.len())
    };
    assert_eq!(
        (census.kept.last(), measured.iter().any(of_last)),
        (Some(&CheckpointId(last)), true)
    );
    tree.0.close();
}
