//! A mount that records an absence (changes made while nothing was mounted) is interrupted by a
//! kill at each of its system calls, or by a power cut. Nothing was served, so the next mount
//! starts over and includes changes made since the interruption. All older views are exact.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::disk::ImageHost;
use super::usual_seed;
use crate::common::command::sh;
use crate::common::random::{Random, count, is_long, seed};
use crate::common::tree::{
    Tree, TreeOpts, assert_tree_is, compare, tree, tree_of, try_tree_without,
};
use crate::common::{
    Fs, Image, Io, Mount, MountOpts, Variant, for_each_variant, mount, run_limited, skip, tool,
};

/// Upper bound of the calls of a mount.
const CALLS_MAX: u64 = 4000;
/// Distance between the calls tried in the short form.
const STRIDE: u64 = 40;
/// A `sys::fault::Plan` with SIGKILL instead of an error.
fn killed_at(nth: u64) -> (String, String) {
    let plan = format!(
        r#"{{"nth":{nth},"errno":5,"only":null,"lasting":false,"half":false,"pause_ms":0,"kill":true}}"#
    );
    ("CKPTFS_FAULT_FOR_TESTS".into(), plan)
}

fn apart(v: Variant) -> MountOpts {
    let mut opts = MountOpts::new(v.io);
    opts.env.push(("CKPTFS_AUTO_ABSENCE".into(), "on".into()));
    opts
}

const FILL: &str =
    "mkdir -p d/e/f lost keep; for i in 1 2 3 4; do echo $i > d/f$i; echo $i > lost/l$i; done; echo g > d/e/g; echo h > d/e/f/h; ln d/f3 d/e/hard
    ln -s f1 d/link; echo k > keep/k; setfattr -n user.a -v 1 d/f4";

fn served(root: &Path, round: u64) {
    sh(
        root,
        &format!(
            "rm -rf new* d/made* d/back* d/e/moved*; echo {round} > keep/k; mkdir -p lost d/e/f; for i in 1 2 3 4; do echo {round} > d/f$i; echo {round} > lost/l$i; done; echo {round} > d/e/f/h"
        ),
    );
}

fn away(root: &Path, round: u64) {
    sh(
        root,
        &format!(
            "sed -i s/$/{round}/ d/f1; echo x >> d/f2; rm -r lost; mv d/e d/e{round}; mv d/e{round} d/e; mv d/e/f/h d/e/moved{round}; chmod 600 d/f3
            mkdir -p new{round}/er; mv d/f4 new{round}/er/; echo n > new{round}/n; echo 4 > d/f4"
        ),
    );
}

fn again(root: &Path, round: u64) {
    sh(
        root,
        &format!(
            "echo again >> d/f1; rm d/f2 new{round}/n; mkdir lost; echo {round} > lost/l1; mv new{round}/er/f4 d/back{round}; chmod 644 d/f3; echo more > keep/k"
        ),
    );
}

/// Returns the id and trigger of the two newest checkpoints, newest first.
fn newest(log: &Value) -> Vec<(u64, String)> {
    let entry = |entry: &Value| {
        (
            entry["id"].as_u64().expect("a number"),
            entry["reason"]["trigger"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        )
    };
    log.as_array()
        .expect("a list")
        .iter()
        .take(2)
        .map(entry)
        .collect()
}

fn is_taken_in(log: &Value) -> bool {
    newest(log)
        .first()
        .is_some_and(|(_, trigger)| trigger == "absence")
}

/// Reports whether the checkpoint that ends the absence is only in the journal's tail: the kill
/// came between the two calls of an append (ADR 11). The next mount repairs the segment. `log`
/// without a mount writes nothing and does not show the checkpoint yet.
fn is_in_tail(root: &Path) -> bool {
    const NOTE: &[u8] = b"changed while not mounted";
    let journal = tree_of(&root.join(".ckptfs/journal"));
    let tails = journal
        .iter()
        .filter(|(name, _)| name.to_string_lossy().starts_with("tail-"));
    tails.into_iter().any(|(_, tail)| {
        let frames: Vec<u8> = tail.xattrs.values().flatten().copied().collect();
        frames.windows(NOTE.len()).any(|part| part == NOTE)
    })
}

fn a_mount_is_killed_at_each_call(v: Variant) {
    if !cfg!(debug_assertions) {
        return skip("only a debug build can be killed at a call");
    }
    let image = Image::of(v.fs);
    let root = image.dir("project");
    sh(&root, FILL);
    let opts = apart(v);
    let mut mount = Mount::start(&root, &opts);
    // On a busy machine the default of two seconds may be too short for the captures of an unmount.
    mount.ok(&["config", "set", "umount.keep", "all"]);
    let (stride, mut nth) = if is_long() {
        (1, 1)
    } else {
        (STRIDE, 1 + u64::from(v.io == Io::Daemon) * STRIDE / 2)
    };
    let mut asked: Vec<(u64, Tree)> = Vec::new();
    let (mut begun, mut begun_again) = (0, 0);
    loop {
        served(&root, nth);
        asked.push((mount.checkpoint(), tree(&root)));
        sh(
            &root,
            &format!("echo unkept{nth} > d/e/f/h; rm d/f4; echo {nth} > d/f4; mkdir d/made{nth}"),
        );
        let left = tree(&root);
        mount.umount();
        away(&root, nth);
        let mut killed = opts.clone().arg("--no-holder");
        killed.env.push(killed_at(nth));
        let output = Mount::try_start(&root, &killed);
        // The daemon still serves because it did not reach that call, or it died after it had
        // mounted.
        let served = mount::minor_of(&root).is_some();
        assert!(served || !output.status.success(), "{output:?}");
        if served {
            mount::abort(&root);
            run_limited(&mut tool("umount", &["-l".as_ref(), root.as_os_str()]), 60);
        }
        let in_tail = !served && is_in_tail(&root);
        let over = served || in_tail || is_taken_in(&mount.log_json());
        if !over && begun % 2 == 1 {
            again(&root, nth);
            begun_again += 1;
        }
        begun += 1;
        mount.remount();
        assert_taken_in(&mount, nth, &left, &asked);
        let made_by = mount.log_json()[0]["by"]["pid"].as_u64();
        assert!(
            !in_tail || made_by != Some(mount.pid().into()),
            "killed at call {nth}: the absence was not recorded"
        );
        if over {
            break;
        }
        nth += stride;
        assert!(nth < CALLS_MAX, "the changes are never recorded");
    }
    println!(
        "{v:?}: killed at calls up to {nth}, {begun_again} times with changes before the next mount"
    );
    assert!(begun_again > 2, "the comparison has more calls than that");
}

/// Checks that the changes of the absence lie between two checkpoints, of which the first shows
/// `left`, the tree at the unmount.
fn assert_taken_in(mount: &Mount, nth: u64, left: &Tree, asked: &[(u64, Tree)]) {
    let found = tree(mount.path());
    let shown = format!("killed at call {nth}");
    let names = newest(&mount.log_json());
    let [(after, absence), (before, unmount)] = names.as_slice() else {
        panic!("{shown}: {names:?}")
    };
    assert_eq!(
        (absence.as_str(), unmount.as_str()),
        ("absence", "unmount"),
        "{shown}"
    );
    eprintln!("{shown}: {before} {after}");
    assert_tree_is(&mount.view(*before), left, &TreeOpts::default());
    assert_tree_is(&mount.view(*after), &found, &TreeOpts::default());
    for (id, tree) in asked.iter().rev().take(2) {
        assert_tree_is(&mount.view(*id), tree, &TreeOpts::default());
    }
    let verified = mount.run(&["verify"]);
    assert!(
        verified.status.success(),
        "{shown}: {}",
        String::from_utf8_lossy(&verified.stdout)
    );
}

/// Cuts per variant.
const CUTS: u64 = 4;
const CUTS_LONG: u64 = 100;
/// Includes the captures of an unmount.
const DISK_BYTES: u64 = 1 << 30;
/// Upper bound from the start of a mount to the power cut.
const MOUNT_MS: u64 = 160;

fn power_cuts_while_an_absence_is_taken_in(v: Variant) {
    let mut random = Random::new(seed(
        &format!("power cuts in a mount on {v:?}"),
        usual_seed(),
    ));
    let host = ImageHost::new();
    let opts = apart(v);
    let (mut exact, mut begun, mut wrong) = (0, 0, Vec::new());
    let cuts = count("CKPTFS_CUTS", CUTS, CUTS_LONG);
    for number in 0..cuts {
        let (image, cut) = (
            host.format_sized(v.fs, &format!("disk-{number}.img"), DISK_BYTES),
            host.file(&format!("cut-{number}.img")),
        );
        let mut states = Vec::new();
        {
            let disk = host.mount(v.fs, &image);
            let dir = disk.path().join("project");
            fs::create_dir(&dir).unwrap();
            sh(&dir, FILL);
            let mut mount = Mount::start(&dir, &opts);
            for round in 0..2 {
                served(&dir, round);
                states.push((mount.checkpoint(), tree(&dir)));
            }
            sh(&dir, "echo unkept > d/e/f/h");
            mount.umount();
            away(&dir, number);
            if number.is_multiple_of(2) {
                sh(&dir, "sync -f .");
            }
            thread::scope(|scope| {
                scope.spawn(|| mount.remount());
                thread::sleep(Duration::from_millis(random.below(MOUNT_MS)));
                disk.freeze(&cut);
            });
        }
        let disk = host.mount(v.fs, &cut);
        let root = disk.path().join("project");
        let mount = Mount::start(&root, &opts);
        begun += usize::from(is_taken_in(&mount.log_json()));
        for (id, state) in &states {
            match try_tree_without(&mount.view(*id), &[]) {
                Ok(found) if compare(&found, state, &TreeOpts::default()).is_empty() => exact += 1,
                Ok(found) => wrong.push(format!(
                    "cut {number}, view {id}: {:?}",
                    compare(&found, state, &TreeOpts::default())
                )),
                // An error is reported, not wrong data.
                Err(problem) => println!("cut {number}, view {id}: {problem}"),
            }
        }
        drop(mount);
        drop(disk);
        [image, cut]
            .iter()
            .for_each(|file| fs::remove_file(file).unwrap());
    }
    println!(
        "{v:?}: {cuts} cuts, {exact} of {} views exact, {begun} absences recorded",
        2 * cuts
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(exact > 0);
}

/// Without reflink an unmount makes copies.
#[test]
fn a_mount_without_reflink_is_killed_at_each_call() {
    let v = Variant {
        fs: Fs::Ext4,
        io: Io::Daemon,
    };
    match v.unavailable() {
        Some(reason) => skip(&reason),
        None => a_mount_is_killed_at_each_call(v),
    }
}

for_each_variant! { xfs => a_mount_is_killed_at_each_call }
for_each_variant! { reflink => power_cuts_while_an_absence_is_taken_in }
