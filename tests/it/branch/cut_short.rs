//! The daemon is killed at a call of a change that copies up, or of a branch drop. The next mount
//! shows the branch in the state before or after the operation, and nothing else has changed.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::support::{create, listed, place, verified};
use crate::common::command::{sh, try_run_limited};
use crate::common::random::{Random, is_long, seed};
use crate::common::tree::{Tree, TreeOpts, compare, tree, try_tree_without};
use crate::common::{Below, Io, MountOpts, Rig, Variant, for_each_variant, scratch, tool};
use ckptfs_sys::Errno;
use ckptfs_sys::fault::FaultPlan;

for_each_variant! { xfs => copying_up_is_killed_at_calls, dropping_is_killed_at_calls }

/// Inherited files, in a directory for each kill.
const INHERITED: &str = "mkdir -p d/e empty; echo f > f; echo g > d/g; echo h > d/e/h; seq 40000 > large; ln f d/f2; ln -s to link; mkfifo fifo;
    setfattr -n user.a -v 1 d/g; cp /bin/true program; chmod 640 d/g; touch -d 2020-01-01 f d/g link large";

/// Changes with one relevant system call each.
const CHANGES: [&str; 15] = [
    "echo more >> d/e/h",
    "printf x | dd of=large bs=1 seek=9 conv=notrunc status=none",
    "truncate -s 3 d/g",
    "chmod 600 f",
    "chmod 700 d",
    "touch -h -d 2021-01-01 link",
    "setfattr -n user.b -v 2 d/g",
    "rm f",
    "rm program",
    "mv d moved",
    "mv d/f2 d/e/f3",
    "mv f d/g",
    "rmdir empty",
    "ln d/g d/e/g2",
    "chown 7 fifo",
];

/// Killed at each of their calls in the short form too, because of two former bugs.
///
/// - Killed between the record of a copy-up and its rename, the next mount treated the inode, which
///   was still inherited, as an own file open for writing. It captured the daemon's source without
///   its extended attributes.
/// - Killed between the exchange of a rename over a file and the move into the layer, the next
///   mount left no whiteout at the source name, and the base's file became visible there.
const EACH: [&str; 2] = [CHANGES[2], CHANGES[11]];

/// Runs a change and reports whether it succeeded. A background thread may have hit the fault and
/// ended the daemon before the change.
fn changed(root: &Path, change: &str) -> bool {
    let mut shell = tool("bash", &["-c", change]);
    let done = try_run_limited(shell.current_dir(root), 60);
    done.is_ok_and(|done| done.status.success())
}

/// A tree with one directory per change, and its backing directory, which the branch hides and
/// which is visible through a separate mount.
struct KilledBranch {
    // Dropped before the image.
    below: Below,
    rig: Rig,
    /// The parent's tree, which the branch's checkpoint must show.
    parent: Tree,
    id: u64,
}

impl KilledBranch {
    fn new(v: Variant, directories: usize) -> KilledBranch {
        let mut opts = MountOpts::new(v.io).packing();
        opts.branch = true;
        opts.limit *= if is_long() { 16 } else { 4 };
        let rig = v.start_with(opts, |dir| {
            for number in 0..directories {
                let one = dir.join(number.to_string());
                fs::create_dir(&one).unwrap();
                sh(&one, INHERITED);
            }
        });
        let below = rig.image.below();
        let parent = tree(rig.mount.parent());
        let id = rig.mount.checkpoint();
        KilledBranch {
            below,
            rig,
            parent,
            id,
        }
    }

    /// Returns the number of modifying calls of a change, measured in a separate directory.
    fn calls(&self, number: usize, change: &str) -> u64 {
        let root = self.rig.path().join(number.to_string());
        self.rig.fault(Some(FaultPlan::nth(0, Errno::ENOSPC)));
        assert!(changed(&root, change), "{change}");
        self.rig.fault(None).0
    }

    /// Kills the daemon at a call of a change and checks the result.
    fn kill(&mut self, number: usize, change: &str, nth: u64) -> &'static str {
        let shown = format!("{change}, killed at call {nth}");
        let root = self.rig.path().join(number.to_string());
        self.rig.mount.kill_holder();
        let plan = FaultPlan {
            kill: true,
            ..FaultPlan::nth(nth, Errno::ENOSPC)
        };
        self.rig.fault(Some(plan));
        let answered = changed(&root, change);
        self.rig.mount.kill();
        self.rig.mount.remount();
        let now = tree(&root);
        // Between the rename and the call that restores the time a directory has another time.
        let opts = TreeOpts {
            dir_mtime: false,
            ..TreeOpts::default()
        };
        let before = compare(&now, &self.inherited(number), &opts);
        let found = if before.is_empty() {
            assert!(!answered, "{shown}: it succeeded without a change");
            "as before"
        } else {
            self.is_after(&now, change, &format!("{shown}: {before:?}"));
            "as after"
        };
        self.all_else_is_as_it_was(number, &shown);
        found
    }

    fn inherited(&self, number: usize) -> Tree {
        tree(&self.rig.mount.parent().join(number.to_string()))
    }

    /// Checks that the change is complete; its times are unspecified.
    fn is_after(&self, now: &Tree, change: &str, shown: &str) {
        let plain = scratch();
        sh(plain.path(), INHERITED);
        sh(plain.path(), change);
        let opts = TreeOpts {
            mtime: false,
            dir_mtime: false,
            ..TreeOpts::default()
        };
        let wrong = compare(now, &tree(plain.path()), &opts);
        assert!(wrong.is_empty(), "{shown}\nnor as after: {wrong:?}");
    }

    fn all_else_is_as_it_was(&self, number: usize, shown: &str) {
        let (rig, opts) = (&self.rig, TreeOpts::default());
        // The other directories are checked at the end.
        let sample = |root: &Path, number: usize| {
            let found = try_tree_without(&root.join(number.to_string()), &[]);
            let wrong = found.map_or_else(
                |it| vec![it],
                |it| compare(&it, &self.inherited(number), &opts),
            );
            assert!(
                wrong.is_empty(),
                "{shown}: {} {number}: {wrong:?}",
                root.display()
            );
        };
        sample(&rig.view(self.id), number);
        sample(rig.path(), number + 1);
        for place in ["tmp/branch", "tmp/restore"] {
            let left = fs::read_dir(rig.path().join(".ckptfs").join(place));
            let left = left.map_or(0, |entries| entries.count());
            assert_eq!(left, 0, "{shown}: {place}");
        }
        let left = self.needless(number);
        assert!(left.is_empty(), "{shown}: {left:?}");
    }

    /// Returns useless whiteouts, which hide no name of the base, and leftover temporary names.
    fn needless(&self, number: usize) -> Vec<PathBuf> {
        let name = self.rig.path().file_name().expect("a name");
        let tree = self.below.path().join(name).join(".ckptfs/tree");
        let below = tree.join(number.to_string());
        let inherited = self.inherited(number);
        let mut dirs = vec![below.clone()];
        let mut found = Vec::new();
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                let meta = entry.metadata().expect("it was listed");
                let path = entry.path();
                let inner = path.strip_prefix(&below).expect("below it").to_owned();
                let hides = meta.file_type().is_char_device() && meta.rdev() == 0;
                // A renamed directory has another path in the base.
                let was = inner
                    .strip_prefix("moved")
                    .map_or(inner.clone(), |rest| Path::new("d").join(rest));
                let secret = entry.file_name().to_string_lossy().starts_with(".ckptfs-");
                if secret || hides && !inherited.contains_key(&was) {
                    found.push(inner);
                }
                if meta.is_dir() {
                    dirs.push(path);
                }
            }
        }
        found
    }
}

fn copying_up_is_killed_at_calls(v: Variant) {
    let mut random = Random::new(seed("calls of copying up", 1));
    let mut subject = KilledBranch::new(
        v,
        if is_long() {
            900
        } else {
            CHANGES.len() * 3 + 64
        },
    );
    let (mut next, mut found) = (0, std::collections::BTreeMap::<&str, u32>::new());
    // The short form divides the changes among the I/O paths.
    let mine = |(at, _): &(usize, &&str)| is_long() || (at % 2 == 0) == (v.io == Io::Passthrough);
    for (_, change) in CHANGES.iter().enumerate().filter(mine) {
        let calls = subject.calls(next, change);
        next += 1;
        let nths = match is_long() || EACH.contains(change) {
            true => (1..=calls).collect(),
            false => vec![1 + random.below(calls)],
        };
        for nth in nths {
            *found.entry(subject.kill(next, change, nth)).or_default() += 1;
            next += 1;
        }
    }
    println!("{v:?}: {found:?}");
    let rig = &subject.rig;
    let parent = compare(
        &tree(rig.mount.parent()),
        &subject.parent,
        &TreeOpts::default(),
    );
    assert!(parent.is_empty(), "{parent:?}");
    let view = compare(
        &tree(&rig.view(subject.id)),
        &subject.parent,
        &TreeOpts::default(),
    );
    assert!(view.is_empty(), "{view:?}");
    for dir in [rig.path(), rig.mount.parent()] {
        super::support::inside(dir, &["verify"]);
    }
    rig.mount.restore(subject.id);
    let branch = compare(&tree(rig.path()), &subject.parent, &TreeOpts::default());
    assert!(branch.is_empty(), "{branch:?}");
}

/// The location of a branch after a kill.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BranchLocation {
    AtItsPlace,
    InTheTrash,
}

/// Checks that the branch is complete at one of the two places and that the parent is unchanged.
fn found(rig: &Rig, shown: &str, [parent, branch]: [&Tree; 2]) -> BranchLocation {
    let all = rig.mount.json(&["branch", "list", "--dropped"]);
    let dropped = all.as_array().expect("an array").len();
    let there = listed(rig, "one").is_some();
    assert_eq!(dropped + usize::from(there), 1, "{shown}: {all}");
    let one = place(rig, "one");
    let found = if there {
        BranchLocation::AtItsPlace
    } else {
        assert!(!one.exists(), "{shown}: its path exists");
        rig.mount.ok(&["branch", "restore", "one"]);
        BranchLocation::InTheTrash
    };
    for (root, before) in [(&*one, branch), (rig.path(), parent)] {
        let wrong = compare(&tree(root), before, &TreeOpts::default());
        assert!(wrong.is_empty(), "{shown}: {}: {wrong:?}", root.display());
    }
    found
}

/// `branch drop`, `branch restore`, and `undo` of each, killed at their calls.
fn dropping_is_killed_at_calls(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |dir| drop(sh(dir, INHERITED)));
    let one = create(&rig, "one");
    sh(&one, "echo more >> d/e/h; rm f; mv d moved; echo new > new");
    let whole = [tree(rig.path()), tree(&one)];
    let whole = [&whole[0], &whole[1]];
    let mut random = Random::new(seed("calls of dropping", 1));
    // Preparatory verbs, the verb, and its result.
    let drop_it: &[&str] = &["branch", "drop", "one"];
    let bring_back: &[&str] = &["branch", "restore", "one"];
    let undo: &[&str] = &["undo"];
    let verbs = [
        (&[][..], drop_it, BranchLocation::InTheTrash),
        (&[drop_it][..], bring_back, BranchLocation::AtItsPlace),
        (&[drop_it][..], undo, BranchLocation::AtItsPlace),
        (&[drop_it, bring_back][..], undo, BranchLocation::InTheTrash),
    ];
    for (first, verb, after) in verbs {
        let begin = |rig: &Rig| first.iter().for_each(|verb| drop(rig.mount.ok(verb)));
        begin(&rig);
        rig.fault(Some(FaultPlan::nth(0, Errno::ENOSPC)));
        rig.mount.ok(verb);
        let (calls, _) = rig.fault(None);
        assert_eq!(found(&rig, "not killed", whole), after);
        // One more: the engine is closed after the answer.
        let nths: Vec<u64> = match is_long() {
            true => (1..=calls + 1).collect(),
            false => (0..2).map(|_| 1 + random.below(calls)).collect(),
        };
        let mut seen = std::collections::BTreeMap::<BranchLocation, u32>::new();
        for nth in nths {
            let shown = format!("{verb:?} after {first:?}, killed at call {nth} of {calls}");
            begin(&rig);
            rig.mount.kill_holder();
            let plan = FaultPlan {
                kill: true,
                ..FaultPlan::nth(nth, Errno::ENOSPC)
            };
            rig.fault(Some(plan));
            let answered = rig.mount.run(verb).status.success();
            rig.mount.kill();
            rig.mount.remount();
            let found = found(&rig, &shown, whole);
            assert!(!answered || found == after, "{shown}: it succeeded");
            *seen.entry(found).or_default() += 1;
        }
        println!("{v:?}: {verb:?} after {first:?}: {calls} calls, {seen:?}");
    }
    verified(rig.path());
    verified(&one);
}
