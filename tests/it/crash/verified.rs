//! `verify` reports no findings during the workload of `story`: checkpoints, deletions, gc, merges,
//! kills and takeovers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::crash_workload::{self, CrashWorkload};
use super::load::CrashLoad;
use super::recovery_checks::verified;
use super::usual_seed;
use crate::common::random::{Random, count, is_long, seed};
use crate::common::{Image, Mount, MountOpts, Variant, for_each_variant};

/// Runs per variant.
const RUNS: u64 = 30;
const RUNS_LONG: u64 = 500;
/// Number of concurrent runs.
const AT_ONCE: u64 = 2;
/// Upper bound of the pause between runs, short and long form. Varied so that runs see different
/// states.
const PAUSE_MS: [u64; 2] = [300, 1500];

#[derive(Default)]
struct Runs {
    done: AtomicU64,
    /// Runs that failed because the daemon was killed.
    cut_short: AtomicU64,
    findings: Mutex<Vec<String>>,
}

impl Runs {
    fn verify(&self, mount: &Mount) {
        let output = mount.run(&["verify", "--json"]);
        let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else {
            self.cut_short.fetch_add(1, Ordering::SeqCst);
            println!("{}", String::from_utf8_lossy(&output.stderr).trim());
            return;
        };
        let number = self.done.fetch_add(1, Ordering::SeqCst);
        if report["ok"] != true {
            let finding = format!("run {number}: {}", report["findings"]);
            println!("{finding}");
            self.findings.lock().unwrap().push(finding);
        }
    }
}

fn verify_at_work_finds_nothing(v: Variant) {
    let seed = seed(&format!("verify at work on {v:?}"), usual_seed());
    let pause_ms = PAUSE_MS[usize::from(is_long())];
    let wanted = count("CKPTFS_VERIFIES", RUNS, RUNS_LONG);
    let image = Image::of(v.fs);
    let dir = image.dir("project");
    crash_workload::prepare(&dir);
    let mut opts = MountOpts::new(v.io).packing();
    opts.limit *= 1 + wanted as u32 / 50;
    let mut mount = Mount::start(&dir, &opts);
    let (load, runs) = (CrashLoad::default(), Runs::default());
    thread::scope(|scope| {
        for thread in 0..AT_ONCE {
            let (load, runs, mount) = (&load, &runs, &mount);
            scope.spawn(move || {
                let mut random = Random::new(seed + thread);
                while !load.stopped() && runs.done.load(Ordering::SeqCst) < wanted {
                    thread::sleep(Duration::from_millis(random.below(pause_ms)));
                    let _served = load.served.read().unwrap();
                    runs.verify(mount);
                }
                load.stop();
            });
        }
        let never = |_: &str| true;
        let mut story = CrashWorkload::new(&load, &mount, &never, seed);
        story.cuts = false;
        story.run();
    });
    mount.adopt();
    let count = |number: &AtomicU64| number.load(Ordering::SeqCst);
    println!(
        "{v:?}: {} runs, {} cut short, {} checkpoints",
        count(&runs.done),
        count(&runs.cut_short),
        load.known().len()
    );
    let findings = runs.findings.into_inner().unwrap();
    assert!(findings.is_empty(), "{seed}: {findings:#?}");
    let log = mount.log_json();
    verified(&mount, log.as_array().expect("a list")).unwrap();
    assert_eq!(load.wrong(), Vec::<String>::new(), "CKPTFS_SEED={seed}");
}

for_each_variant! { reflink => verify_at_work_finds_nothing }
