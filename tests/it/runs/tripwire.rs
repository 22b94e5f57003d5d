//! The tripwire: an automatic checkpoint keeps everything that a burst of removals destroys.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::command::sh;
use crate::common::tree::assert_tree_is;
use crate::common::wait::{same, seen, wait_until};
use crate::common::{
    MountOpts, Rig, TreeOpts, Variant, fails, for_each_variant, sample_tree, tree_of,
};

/// The time limit of the tripwire in these tests, long enough for a slow machine to make more than
/// [`COUNT`] removals.
const WITHIN: Duration = Duration::from_secs(2);
const COUNT: usize = 25;

fn start(variant: Variant) -> Rig {
    let opts = MountOpts::new(variant.io).arg(&format!("--tripwire={COUNT}/{}s", WITHIN.as_secs()));
    variant.start_with(opts, |dir| {
        sample_tree(dir);
        fs::create_dir(dir.join("many")).expect("a directory");
        for n in 0..3 * COUNT {
            fs::write(dir.join(format!("many/{n}")), format!("{n}\n")).expect("a file");
        }
    })
}

/// Returns the automatic checkpoints, newest first.
fn automatic(rig: &Rig) -> Vec<u64> {
    let log = rig.mount.log_json();
    let of = |checkpoint: &Value| {
        (checkpoint["reason"]["kind"] == "auto").then(|| checkpoint["id"].as_u64().expect("an id"))
    };
    log.as_array()
        .expect("a log")
        .iter()
        .filter_map(of)
        .collect()
}

/// Waits until the tripwire no longer counts earlier removals.
fn quiet(began: Instant) {
    std::thread::sleep((WITHIN + Duration::from_millis(100)).saturating_sub(began.elapsed()));
}

/// Edits after the last checkpoint, then a removal of everything: one restore recovers all,
/// including the edits.
fn rm_rf_is_undone_by_one_restore(variant: Variant) {
    let rig = start(variant);
    let asked = rig.mount.checkpoint();
    sh(
        rig.path(),
        "echo edited > many/3; echo new > many/new; mkdir many/newer; echo x > many/newer/x; chmod 600 many/4",
    );
    let before = tree_of(rig.path());
    quiet(Instant::now());
    sh(rig.path(), "rm -rf -- *");
    assert!(fs::read_dir(rig.path()).unwrap().count() < 3);
    let marks = automatic(&rig);
    assert_eq!(marks.len(), 1, "{:?}", rig.mount.log_json());
    rig.mount.ok(&["restore", "auto"]);
    assert_tree_is(rig.path(), &before, &TreeOpts::default());
    // `latest` still refers to the requested checkpoint.
    assert_eq!(rig.mount.json(&["show", "latest"])["id"], asked);
    assert_eq!(rig.mount.json(&["show", "auto"])["id"], marks[0]);
}

/// `find -exec rm` with one process per file; `git clean`; truncation; renames over files; rmdir.
fn other_ways_to_destroy_trip_it_too(variant: Variant) {
    let rig = start(variant);
    let first = rig.mount.checkpoint();
    let ways = [
        "find many -type f -exec rm {} \\;",
        "git init -q . && git clean -fdxq many",
        "for f in many/*; do : > $f; done",
        "mkdir tmp; for f in many/*; do echo codemod > tmp/x; mv tmp/x $f; done",
        "for n in $(seq 60); do mkdir many/d$n; done; sleep 0.01; rmdir many/d*",
    ];
    for (n, way) in ways.into_iter().enumerate() {
        let edit = format!("edit {n}");
        let (known, marks) = marks_of(&rig, first, &edit, way);
        let mark = marks
            .last()
            .filter(|_| known == 0)
            .or(marks.first())
            .expect("a mark");
        assert_eq!(
            fs::read_to_string(rig.view(*mark).join("many/7")).expect("the edit"),
            edit + "\n",
            "{way}"
        );
        rig.mount.restore(*mark);
    }
}

/// Edits a file and destroys more than [`COUNT`]; returns the number of earlier marks and the marks
/// after. On a busy machine one process per file may be too slow for a burst; the function then
/// restores the files and repeats.
fn marks_of(rig: &Rig, first: u64, edit: &str, way: &str) -> (usize, Vec<u64>) {
    wait_until(&format!("a mark of {way}"), || {
        sh(rig.path(), &format!("echo {edit} > many/7"));
        quiet(Instant::now());
        let known = automatic(rig).len();
        let began = Instant::now();
        sh(rig.path(), way);
        let (took, marks) = (began.elapsed(), automatic(rig));
        if marks.len() > known {
            return Ok((known, marks));
        }
        assert!(took > WITHIN, "{way}: {:?}", rig.mount.log_json());
        rig.mount.restore(first);
        Err(took)
    })
}

/// Waits until no mark of the tripwire remains, visible or hidden.
fn await_no_mark(rig: &Rig) {
    wait_until("the mark is freed", || {
        let deleted = rig.mount.json(&["log", "--deleted"]);
        same(deleted, Value::Array(Vec::new()))
    });
    assert_eq!(automatic(rig), Vec::<u64>::new());
}

/// Until its burst is confirmed, a mark is not listed, has no directory in `.snapshots`, and does
/// not affect `undo`. After a kill the next daemon frees or confirms it.
fn a_mark_is_seen_when_its_burst_is_confirmed(variant: Variant) {
    let mut rig = start(variant);
    let asked = rig.mount.checkpoint();
    rig.mount.ok(&["tag", &asked.to_string(), "named"]);
    sh(rig.path(), "echo edited > many/3");
    quiet(Instant::now());
    sh(rig.path(), "rm many/1 many/2");
    assert_eq!(automatic(&rig), Vec::<u64>::new());
    let views = fs::read_dir(rig.path().join(".snapshots")).unwrap();
    let mut views: Vec<_> = views.map(|view| view.unwrap().file_name()).collect();
    views.sort();
    assert_eq!(views, [asked.to_string().as_str(), "latest", "named"]);
    rig.mount.ok(&["undo"]);
    rig.mount.kill();
    rig.mount.remount();
    assert_eq!(automatic(&rig), Vec::<u64>::new());
    await_no_mark(&rig);

    sh(rig.path(), "echo edited again > many/3");
    let before = tree_of(rig.path());
    quiet(Instant::now());
    sh(rig.path(), "rm many/4 many/5");
    rig.mount.kill();
    rig.mount.remount();
    sh(rig.path(), "rm -r many");
    // This process started within the time limit, after those of the first shell exited.
    let marks = automatic(&rig);
    let kept = marks.last().expect("a confirmed mark");
    assert_tree_is(&rig.view(*kept), &before, &TreeOpts::default());
}

/// Failed before: `gc` freed content shared by an older checkpoint and an unconfirmed mark,
/// together with the older checkpoint.
fn gc_leaves_what_an_undecided_mark_needs(variant: Variant) {
    let opts = MountOpts::new(variant.io).arg(&format!("--tripwire={COUNT}/60s"));
    let rig = variant.start_with(opts, |dir| {
        for n in 0..5 {
            fs::write(dir.join(n.to_string()), format!("{n}\n")).expect("a file");
        }
    });
    rig.mount.checkpoint();
    // A new file is not a removal, and makes the tree differ from the checkpoint.
    sh(rig.path(), "echo new > new; rm 1 2");
    rig.mount.checkpoint();
    let hidden = rig.mount.json(&["log", "--deleted"]);
    assert_eq!(hidden.as_array().map(Vec::len), Some(1), "a mark: {hidden}");
    rig.mount.ok(&["gc", "--keep-last", "1"]);
    let report = rig.mount.json(&["verify"]);
    assert_eq!(report["findings"], serde_json::json!([]));
}

/// `agent install` replaces a file in the tree, which makes no mark.
fn commands_of_ours_make_no_mark(variant: Variant) {
    let rig = start(variant);
    let asked = rig.mount.checkpoint();
    sh(rig.path(), "mkdir .claude; echo {} > .claude/settings.json");
    quiet(Instant::now());
    rig.mount.ok(&["agent", "install", "claude-code"]);
    assert_eq!(rig.mount.checkpoint(), asked + 1);
}

/// Without a burst the provisional mark is freed, without a trace.
fn a_few_removals_leave_no_checkpoint(variant: Variant) {
    let rig = start(variant);
    let asked = rig.mount.checkpoint();
    sh(rig.path(), "echo edited > many/3");
    quiet(Instant::now());
    sh(rig.path(), "rm many/1 many/2; echo x > many/5");
    await_no_mark(&rig);
    assert_eq!(rig.mount.json(&["show", "latest"])["id"], asked);
    assert_eq!(
        fs::read_to_string(rig.view(asked).join("many/1")).expect("the old content"),
        "1\n"
    );
    assert_eq!(
        fs::read_to_string(rig.view(asked).join("many/3")).expect("the old content"),
        "3\n"
    );
    let link = fs::read_link(rig.path().join(".snapshots/latest")).expect("the link");
    assert_eq!(link, Path::new(&asked.to_string()));
}

/// Without changes since the last checkpoint no mark is needed.
fn a_burst_right_after_a_checkpoint_needs_no_other(variant: Variant) {
    let rig = start(variant);
    let asked = rig.mount.checkpoint();
    sh(rig.path(), "rm -rf many");
    assert!(automatic(&rig).is_empty());
    rig.mount.restore(asked);
    assert_eq!(
        fs::read_dir(rig.path().join("many")).unwrap().count(),
        3 * COUNT
    );
}

/// The threads that serve the kernel make the marks. With concurrent checkpoints of both kinds,
/// restores, mapped files and view reads, no thread blocks forever, and no checkpoint is damaged.
fn marks_are_made_beside_all_that_goes_on(variant: Variant) {
    let rig = variant.start_with(
        MountOpts::new(variant.io).arg("--tripwire=3/100ms"),
        sample_tree,
    );
    let first = rig.mount.checkpoint();
    let kept = tree_of(&rig.view(first));
    let ckptfs = env!("CARGO_BIN_EXE_ckptfs");
    let script = format!(
        "jobs=; end=$((SECONDS+4)); busy() {{ while [ $SECONDS -lt $end ]; do \"$@\" || exit 1; done; }}
         one() {{ mkdir -p a$1; for n in 1 2 3 4; do echo $n > a$1/$n; done; sleep 0.11; echo x > a$1/1; mv a$1/1 a$1/2; rm -r a$1; }}
         for n in 1 2 3; do busy one $n & jobs=\"$jobs $!\"; done
         check() {{ {ckptfs} checkpoint > /dev/null; local name=n$RANDOM$RANDOM; mkdir .snapshots/$name; ls -R .snapshots/$name > /dev/null; }}
         busy check & jobs=\"$jobs $!\"
         back() {{ sleep 0.3; {ckptfs} restore {first} plain.txt > /dev/null; }}
         busy back & jobs=\"$jobs $!\"
         for job in $jobs; do wait $job || exit 1; done"
    );
    let mapped = fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(rig.path().join("mapped"))
        .expect("a file");
    mapped.set_len(1 << 16).expect("a size");
    let mapping = crate::runs::support::Mapping::writable(&mapped, 1 << 16);
    std::thread::scope(|scope| {
        let work = scope.spawn(|| sh(rig.path(), &script));
        for n in 0_usize.. {
            mapping.write(n * 4096 % (1 << 16), &n.to_le_bytes());
            std::thread::sleep(Duration::from_millis(1));
            if work.is_finished() {
                break;
            }
        }
        work.join().expect("all calls succeed");
    });
    drop(mapping);
    assert_tree_is(&rig.view(first), &kept, &TreeOpts::default());
    rig.mount.ok(&["verify"]);
}

/// Failed before: `git checkout .` over a few edited files, `sed -i`, or a script that truncates
/// them lost their only copy.
fn a_few_edited_files_that_are_replaced_trip_it(variant: Variant) {
    let rig = start(variant);
    sh(
        rig.path(),
        "git init -q . && git add many && git -c user.name=n -c user.email=e commit -qm 1",
    );
    rig.mount.checkpoint();
    let ways = [
        "git checkout -q .",
        "sed -i s/edit/lost/ many/[0-7]",
        "for n in 0 1 2 3 4 5 6 7; do : > many/$n; done",
    ];
    for (n, way) in ways.into_iter().enumerate() {
        sh(
            rig.path(),
            &format!("for n in 0 1 2 3 4 5 6 7; do echo edit {n} > many/$n; done"),
        );
        quiet(Instant::now());
        sh(rig.path(), way);
        quiet(Instant::now());
        std::thread::sleep(WITHIN);
        let marks = automatic(&rig);
        assert_eq!(
            fs::read_to_string(rig.view(marks[0]).join("many/7")).expect("the edit"),
            format!("edit {n}\n"),
            "{way}"
        );
    }
    // Repeated replacement of one file, as by an editor, makes no mark.
    let known = automatic(&rig).len();
    sh(
        rig.path(),
        "for n in 1 2 3 4 5 6 7 8; do echo $n > many/new; mv many/new many/3; sleep 0.05; done",
    );
    assert_eq!(automatic(&rig).len(), known);
}

/// Failed before: `undo` after `rm -rf` deleted the requested checkpoint and restored nothing.
fn undo_after_a_burst_offers_what_was_there(variant: Variant) {
    let rig = start(variant);
    rig.mount.checkpoint();
    sh(rig.path(), "echo edited > many/3");
    let before = tree_of(rig.path());
    quiet(Instant::now());
    sh(rig.path(), "rm -rf -- *");
    let mark = automatic(&rig)[0];
    let refused = fails(&mut rig.mount.command(&["undo"]), 60);
    assert!(
        refused.contains(&format!("ckptfs restore {mark}")),
        "{refused}"
    );
    assert_eq!(rig.mount.log_json().as_array().map(Vec::len), Some(2));
    rig.mount.restore(mark);
    assert_tree_is(rig.path(), &before, &TreeOpts::default());
    // Afterwards `undo` reverts the restore.
    rig.mount.ok(&["undo"]);
    assert!(fs::read_dir(rig.path()).unwrap().count() < 3);
}

/// Failed before: with rules that keep nothing, applied continuously, marks and undone checkpoints
/// were deleted within two seconds.
fn retention_leaves_what_was_caught_and_what_was_undone(variant: Variant) {
    let rig = start(variant);
    for (key, value) in [
        ("retention.manual", "true"),
        ("retention.keep-last", "1"),
        ("retention.auto", "1s"),
    ] {
        rig.mount.ok(&["config", "set", key, value]);
    }
    rig.mount.checkpoint();
    sh(rig.path(), "echo edited > many/3");
    quiet(Instant::now());
    sh(rig.path(), "rm -rf many");
    let mark = automatic(&rig)[0];
    let guard = rig.mount.json(&["restore", &mark.to_string()])["guard"]
        .as_u64()
        .expect("a guard");
    let undone = rig.mount.checkpoint();
    rig.mount.ok(&["undo", "--force"]);
    sh(rig.path(), "echo more > many/3");
    let last = rig.mount.checkpoint();
    // `gc` has run once the first checkpoint is gone.
    wait_until("a run", || {
        let log = rig.mount.log_json();
        seen(!log.to_string().contains("\"id\":1,"), log)
    });
    let ids: Vec<u64> = rig
        .mount
        .log_json()
        .as_array()
        .expect("a log")
        .iter()
        .map(|one| one["id"].as_u64().expect("an id"))
        .collect();
    assert_eq!(ids, [last, guard, mark]);
    let hidden = rig.mount.json(&["log", "--deleted"]);
    assert_eq!(hidden[0]["id"], undone);
    // They are deleted when their retention expires.
    for key in ["retention.keep-undone", "tripwire.keep"] {
        rig.mount.ok(&["config", "set", key, "1s"]);
    }
    wait_until("the mark is removed", || {
        same(automatic(&rig), Vec::<u64>::new())
    });
}

/// Returns the free space of the tree's filesystem, in bytes.
fn free(rig: &Rig) -> u64 {
    let free = sh(rig.path(), "df -B1 --output=avail . | tail -1");
    free.trim().parse().expect("a number of bytes")
}

/// Allocates all free space except `left` bytes.
fn fill(rig: &Rig, left: u64) {
    let taken = free(rig) - left;
    sh(rig.path(), &format!("fallocate -l {taken} fill"));
}

/// When space is short no mark is made, so that a removal frees space; an existing mark is freed.
fn removing_frees_space_where_it_is_short(variant: Variant) {
    let rig = start(variant);
    let asked = rig.mount.checkpoint();
    let many = format!(
        "for n in $(seq {}); do head -c 400000 /dev/zero | tr '\\0' x > big$n; done",
        2 * COUNT
    );
    let bytes = 2 * COUNT as u64 * 400_000;

    sh(rig.path(), &many);
    quiet(Instant::now());
    sh(rig.path(), "rm big*");
    let mark = automatic(&rig);
    assert_eq!(mark.len(), 1);
    fill(&rig, 3 << 20);
    wait_until("the mark is freed", || {
        same(automatic(&rig), Vec::<u64>::new())
    });
    let warned = rig.mount.status_json()["warnings"].to_string();
    assert!(
        warned.contains("1 checkpoint made before files were removed was freed"),
        "{warned}"
    );
    wait_until("space is free", || seen(free(&rig) > bytes, free(&rig)));

    sh(rig.path(), "rm fill");
    quiet(Instant::now());
    sh(rig.path(), &many);
    fill(&rig, 3 << 20);
    let warned = rig.mount.status_json()["warnings"].clone();
    // Failed before: one shortage led to two warnings.
    let of_space: Vec<&str> = warned
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|warning| warning.as_str())
        .filter(|text| text.contains("--tripwire") || text.contains(" free on the filesystem of "))
        .collect();
    let both = |text: &&str| text.contains("--tripwire") && text.contains("ckptfs -C ");
    assert!(of_space.len() == 1 && of_space.iter().all(both), "{warned}");
    quiet(Instant::now());
    sh(rig.path(), "rm big*");
    assert_eq!(automatic(&rig), Vec::<u64>::new());
    wait_until("space is free", || seen(free(&rig) > bytes, free(&rig)));
    assert_eq!(rig.mount.json(&["show", "latest"])["id"], asked);
}

/// In a branch, removing inherited files makes whiteouts, which works for some time on a full disk;
/// removing the branch's own files frees space.
fn a_branch_on_a_full_disk_can_remove(variant: Variant) {
    let rig = start(variant);
    rig.mount.checkpoint();
    rig.mount.ok(&["branch", "create", "full"]);
    let branch = rig.path().with_file_name(format!(
        "{}@full",
        rig.path().file_name().expect("a name").to_string_lossy()
    ));
    sh(
        &branch,
        "for n in $(seq 30); do head -c 400000 /dev/zero | tr '\\0' x > big$n; done",
    );
    sh(
        &branch,
        "fallocate -l $(($(df -B1 --output=avail . | tail -1))) fill || true; cat /dev/zero > more 2>/dev/null || true",
    );
    let before = free(&rig);
    assert!(before < 1 << 20, "{before}");
    sh(&branch, "rm many/1*");
    assert!(!branch.join("many/10").exists() && rig.path().join("many/10").exists());
    sh(&branch, "rm big*");
    wait_until("space is free", || {
        seen(free(&rig) > 10_000_000, free(&rig))
    });
    sh(&branch, "rm -r many");
    rig.mount.ok(&["branch", "drop", "full"]);
}

/// Control: with the tripwire off no checkpoint is made.
fn off_is_off(variant: Variant) {
    let rig = variant.start_with(
        MountOpts::new(variant.io).arg("--tripwire=off"),
        sample_tree,
    );
    rig.mount.checkpoint();
    sh(
        rig.path(),
        "for n in $(seq 60); do echo $n > new$n; done; sleep 0.1; rm new*",
    );
    assert!(automatic(&rig).is_empty());
}

for_each_variant! { xfs =>
    gc_leaves_what_an_undecided_mark_needs,
    other_ways_to_destroy_trip_it_too,
    a_few_removals_leave_no_checkpoint,
    a_mark_is_seen_when_its_burst_is_confirmed,
    commands_of_ours_make_no_mark,
    a_burst_right_after_a_checkpoint_needs_no_other,
    a_few_edited_files_that_are_replaced_trip_it,
    undo_after_a_burst_offers_what_was_there,
    retention_leaves_what_was_caught_and_what_was_undone,
    off_is_off,
    removing_frees_space_where_it_is_short,
    a_branch_on_a_full_disk_can_remove,
}
for_each_variant! { reflink => rm_rf_is_undone_by_one_restore }
for_each_variant! { xfs => marks_are_made_beside_all_that_goes_on }
