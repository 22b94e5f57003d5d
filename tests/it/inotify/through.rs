//! Changes made through the mount yield the same events as on a plain directory.

use std::fs;
use std::path::Path;

use super::support::{Watcher, sh};
use crate::common::{MountOpts, Variant, for_each_variant};

/// Every kind of change, in watched directories.
const CHANGES: &str = "
    echo a > new; echo b >> new; mkdir sub; echo c > d/f; chmod 600 d/f; touch d/f; ln d/f d/hard; ln -s f d/link; mkfifo d/pipe
    mv d/f d/g; mv d/g moved; mv moved d/hard2; truncate -s 100 new; setfattr -n user.a -v 1 new; rm d/hard; rmdir sub; mkdir e; mv e d/e; rmdir d/e
    cp -a d/other d/copy; mv -f d/copy d/other; rm d/other d/link d/hard2 d/pipe; rmdir d; python3 -c 'import mmap,os
f = open(\"new\", \"r+b\"); m = mmap.mmap(f.fileno(), 0); m[0] = 65; m.flush(); os.ftruncate(f.fileno(), 3)' || true
";

fn events(root: &Path) -> Vec<String> {
    let mut watcher = Watcher::all_below(root);
    sh(root, CHANGES);
    fs::write(root.join("the-end"), "").unwrap();
    watcher.expect(&["CREATE the-end", "CLOSE_WRITE the-end"]);
    watcher.said
}

/// Fills the tree in another process: a child that another test forks at this moment would inherit
/// our descriptor and close it while a watcher is active.
fn fill(root: &Path) {
    sh(root, "mkdir d; printf other > d/other");
}

fn the_same_events_as_on_a_plain_directory(v: Variant) {
    // A branch inherits these files.
    let rig = v.start_with(MountOpts::new(v.io), fill);
    let plain = rig.image.dir("plain");
    fill(&plain);
    let (expected, seen) = (events(&plain), events(rig.path()));
    assert!(expected.len() > 30, "{expected:#?}");
    assert_eq!(seen, expected);
}

for_each_variant! { all => the_same_events_as_on_a_plain_directory }
for_each_variant! { branch => the_same_events_as_on_a_plain_directory }
