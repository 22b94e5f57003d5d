//! Fault injection: each system call of a change fails in turn.

use super::{CALLER, Seen, Tree, Unnumbered, branched};
use crate::engine::request::{RenameMode, Service, XattrMode};
use ckptfs_sys::fault::{FaultPlan, arm_thread, disarm_thread};
use ckptfs_sys::{Errno, SysResult};

/// A change of a branch and its preparation.
struct Deed {
    before: fn(&Tree),
    call: fn(&Tree) -> SysResult<()>,
}

const NOTHING: fn(&Tree) = |_| {};
const WITHOUT_F: fn(&Tree) = |tree| tree.unlink("f").expect("removed");

const DEEDS: [Deed; 11] = [
    Deed {
        before: NOTHING,
        call: |tree| tree.write("a/b/h", 5, "!"),
    },
    Deed {
        before: NOTHING,
        call: |tree| tree.unlink("a/g"),
    },
    Deed {
        before: NOTHING,
        call: |tree| tree.rename("a", "e/z", RenameMode::Replace),
    },
    Deed {
        before: NOTHING,
        call: |tree| tree.rename("a/b/h", "f", RenameMode::Replace),
    },
    Deed {
        before: NOTHING,
        call: |tree| tree.rename("a/b", "f", RenameMode::Exchange),
    },
    Deed {
        before: NOTHING,
        call: |tree| tree.rmdir("a/b/c"),
    },
    Deed {
        before: NOTHING,
        call: |tree| {
            let node = tree.node("a/g")?;
            tree.0
                .setxattr(CALLER, node, b"user.y", b"2", XattrMode::Any)
        },
    },
    Deed {
        before: NOTHING,
        call: |tree| {
            let (node, (dir, name)) = (tree.node("a/g")?, tree.place("e/l")?);
            tree.0.link(CALLER, node, dir, name).map(drop)
        },
    },
    Deed {
        before: WITHOUT_F,
        call: |tree| tree.mkdir("f"),
    },
    Deed {
        before: WITHOUT_F,
        call: |tree| tree.create("f", ""),
    },
    Deed {
        before: WITHOUT_F,
        call: |tree| tree.rename("a/b", "f", RenameMode::Replace),
    },
];

/// Returns the state of a tree, with the numbers of inherited inodes only.
fn told(tree: &Tree) -> Vec<(String, Option<u64>, Unnumbered)> {
    let known = |number: u64| Some(number).filter(|number| number >> 56 == 0);
    let row =
        |(path, seen): (String, Seen)| (path, known(seen.1), (seen.0, seen.2, seen.3, seen.4));
    tree.seen().into_iter().map(row).collect()
}

/// Whichever system call fails during a change, the branch is in the state before or after it, and
/// remains so at the next mount.
#[test]
fn a_change_of_which_a_call_fails_is_made_or_not() {
    // CKPTFS_EACH=1 tests every call.
    let each = std::env::var("CKPTFS_EACH").ok();
    let each: u64 = each.and_then(|each| each.parse().ok()).unwrap_or(11);
    let (place, parent, branch) = branched();
    branch.close();
    let whole = told(&parent);
    let dir = place.path().join("b");
    let fresh = || {
        std::fs::remove_dir_all(&dir).expect("removed");
        std::fs::create_dir(&dir).expect("a directory");
        let branch = Tree::open(&dir, Some((&parent, 1)));
        assert_eq!(branch.checkpoint(), 1);
        branch
    };
    for (number, deed) in DEEDS.iter().enumerate() {
        let branch = fresh();
        (deed.before)(&branch);
        let before = told(&branch);
        (deed.call)(&branch).expect("done");
        let after = told(&branch);
        branch.close();
        for nth in (1 + number as u64 % each..).step_by(each as usize) {
            let branch = fresh();
            (deed.before)(&branch);
            arm_thread(FaultPlan::nth(nth, Errno::EIO));
            let done = (deed.call)(&branch);
            let failed = disarm_thread().failed > 0;
            let now = told(&branch);
            assert!(
                now == after || (done.is_err() && now == before),
                "deed {number}, call {nth}: {done:?}\n{now:?}"
            );
            branch.close();
            let branch = Tree::open(&dir, Some((&parent, 1)));
            assert_eq!(
                told(&branch),
                now,
                "deed {number}, call {nth}, mounted again"
            );
            branch.close();
            if !failed {
                break;
            }
        }
    }
    assert_eq!(told(&parent), whole);
}
