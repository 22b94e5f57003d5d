//! The daemon is killed at the first, second, third ... modifying system call of one operation,
//! until the operation completes.

use std::path::Path;

use crate::common::command::{sh, try_run_limited};
use crate::common::random::is_long;
use crate::common::strace::Strace;
use crate::common::tree::{Tree, TreeOpts, assert_tree_is, compare, tree};
use crate::common::{
    Image, Io, Mount, MountOpts, Variant, for_each_variant, run_limited, skip, tool,
};

/// The modifying system calls of the daemon.
const CALLS: &str = "openat,pwrite64,write,ioctl,renameat2,unlinkat,linkat,symlinkat,mkdirat,mknodat,fchmodat,fchmod,fchownat,utimensat,fsetxattr,\
                     setxattr,removexattr,ftruncate,fallocate,copy_file_range,fsync,fdatasync,syncfs";
/// Upper bound of the calls of an operation.
const CALLS_MAX: u32 = 400;

/// An operation to interrupt; `look` has the states allowed afterwards.
struct Operation {
    what: &'static str,
    script: &'static str,
}

const OPERATIONS: [Operation; 8] = [
    Operation {
        what: "unlink of a file with versions",
        script: "rm y",
    },
    Operation {
        what: "unlink of an open file with versions",
        script: "exec 3<y; rm y",
    },
    Operation {
        what: "rename over a file with versions",
        script: "mv -T x y",
    },
    Operation {
        what: "first write",
        script: "printf z | dd of=y bs=1 seek=1 conv=notrunc status=none",
    },
    Operation {
        what: "first append to a large file",
        script: "echo more >> large",
    },
    Operation {
        what: "checkpoint",
        script: "$CKPTFS checkpoint --tag named",
    },
    Operation {
        what: "delete",
        script: "$CKPTFS delete --now --yes 2",
    },
    Operation {
        what: "restore",
        script: "$CKPTFS restore 1",
    },
];

/// Setup of each operation: a checkpoint is made after each script.
const BEFORE: &str = "mkdir -p d/e; echo x > x; echo y > y; echo f > d/e/f; ln y d/hard; seq 40000 > large; setfattr -n user.a -v 1 x";
const BETWEEN: &str = "echo changed > x; mv d/e e; rm d/hard; echo n > new; chmod 600 y; echo more >> large; setfattr -n user.a -v 2 x";

fn killed_at_each_call(v: Variant) {
    if !try_run_limited(&mut tool("strace", &["-V"]), 60)
        .is_ok_and(|output| output.status.success())
    {
        return skip("strace is not installed");
    }
    let image = Image::of(v.fs);
    let mut mounts = 0;
    // The short form divides the operations among the I/O paths.
    let (from, every) = if is_long() {
        (0, 1)
    } else {
        (usize::from(v.io == Io::Daemon), 2)
    };
    for operation in OPERATIONS.iter().skip(from).step_by(every) {
        let mut nth = 1;
        while killed_at(v, &image.dir(&format!("project-{mounts}")), operation, nth) {
            mounts += 1;
            let step = if is_long() {
                1
            } else {
                nth.next_power_of_two()
            };
            nth += step;
            assert!(nth < CALLS_MAX, "{} never completes", operation.what);
        }
        mounts += 1;
        println!("{v:?}: {}, killed at calls up to {nth}", operation.what);
        assert!(nth > 1, "{}: the daemon was never killed", operation.what);
    }
}

/// Kills the daemon at the N-th call of an operation and checks the result. Returns `false` if
/// there were fewer calls.
fn killed_at(v: Variant, root: &Path, operation: &Operation, nth: u32) -> bool {
    let mut mount = Mount::start(root, &MountOpts::new(v.io).packing());
    let mut states: Vec<(u64, Tree)> = Vec::new();
    for script in [BEFORE, BETWEEN] {
        sh(root, script);
        states.push((mount.checkpoint(), tree(root)));
    }
    sh(root, "echo after > x.after");
    let before = tree(root);
    // No successor may change the state left by the daemon.
    mount.kill_holder();
    if !operation_killed(&mount, operation.script, nth) {
        return false;
    }
    mount.kill();
    mount.remount();
    let shown = format!("{}, killed at call {nth}", operation.what);
    look(&mount, operation, &states, &before, &shown);
    true
}

/// Checks that everything is in the state before or after the operation.
fn look(mount: &Mount, operation: &Operation, states: &[(u64, Tree)], before: &Tree, shown: &str) {
    eprintln!("{shown}");
    let log = mount.log_json();
    let ids: Vec<u64> = log
        .as_array()
        .expect("a list")
        .iter()
        .rev()
        .filter_map(|entry| entry["id"].as_u64())
        .collect();
    for (id, tree) in states.iter().filter(|(id, _)| ids.contains(id)) {
        assert_tree_is(&mount.view(*id), tree, &TreeOpts::default());
    }
    let allowed: &[&[u64]] = match operation.what {
        "checkpoint" | "restore" => &[&[1, 2], &[1, 2, 3]],
        "delete" => &[&[1, 2], &[1]],
        _ => &[&[1, 2]],
    };
    assert!(
        allowed.contains(&ids.as_slice()),
        "{shown}: the checkpoints are {ids:?}"
    );
    let now = tree(mount.path());
    let opts = TreeOpts::default();
    let same = |a: &Tree| compare(&now, a, &opts).is_empty();
    match operation.what {
        "checkpoint" | "delete" => assert!(same(before), "{shown}: the tree has changed"),
        // A restore that began is completed. The guard is made first: after a kill right behind it
        // the tree is unchanged.
        "restore" if ids.len() == 3 => {
            let wrong = compare(&now, &states[0].1, &opts);
            assert!(
                wrong.is_empty() || same(before),
                "{shown}: neither the checkpoint nor the state before: {wrong:?}"
            );
            assert_tree_is(&mount.view(3), before, &opts);
        }
        "restore" => assert!(same(before), "{shown}: the tree has changed"),
        _ => {
            let touched: Vec<String> = compare(&now, before, &opts);
            let others: Vec<&String> = touched
                .iter()
                .filter(|line| {
                    !["\"x\"", "\"y\"", "\"large\"", "\"\""]
                        .iter()
                        .any(|name| line.starts_with(name))
                })
                .collect();
            assert!(others.is_empty(), "{shown}: {others:?}");
        }
    }
    if ids.len() == 3 && operation.what == "checkpoint" {
        assert_tree_is(&mount.view(3), before, &opts);
        assert_eq!(log[0]["tags"][0], "named", "{shown}");
    }
    // The first checkpoint can be restored.
    mount.restore(ids[0]);
    assert_tree_is(mount.path(), &states[0].1, &opts);
}

/// Runs `script` with strace attached to the daemon. Returns `true` if the daemon was killed.
pub fn operation_killed(mount: &Mount, script: &str, nth: u32) -> bool {
    let log = mount.path().with_extension("strace.log");
    let strace = Strace::kills(mount.pid(), CALLS, nth, &log);
    let ckptfs = format!(
        "{} -C {}",
        env!("CARGO_BIN_EXE_ckptfs"),
        mount.path().display()
    );
    let script = script.replace("$CKPTFS", &ckptfs);
    let _ = run_limited(tool("bash", &["-c", &script]).current_dir(mount.path()), 60);
    strace.has_killed(mount)
}

for_each_variant! { xfs => killed_at_each_call }
