//! `checkpoint --quiesce` waits for an instant without changes and reports whether it found one.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::wait::{seen, wait_until};
use crate::common::{Variant, for_each_variant};

/// Slightly less than the quiet time that `--quiesce` requires.
const QUIET: Duration = Duration::from_millis(200);

/// Measures the longest gap between two writes of all writers.
struct Gaps {
    began: Instant,
    last_us: AtomicU64,
    longest_us: AtomicU64,
}

impl Gaps {
    fn new() -> Gaps {
        Gaps {
            began: Instant::now(),
            last_us: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
        }
    }

    /// Records the end of a write.
    fn written(&self) {
        let now = self.began.elapsed().as_micros() as u64;
        let before = self.last_us.fetch_max(now, Ordering::SeqCst);
        let gap = now.saturating_sub(before);
        self.longest_us.fetch_max(gap, Ordering::SeqCst);
    }

    /// Restarts the measurement.
    fn forget(&self) {
        self.longest_us.store(0, Ordering::SeqCst);
    }

    fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::SeqCst))
    }
}

/// Writers that never pause, in files kept open; with passthrough the daemon sees none of their
/// writes.
fn writers_that_never_pause_are_told(variant: Variant) {
    let rig = variant.start();
    let (stop, gaps) = (Arc::new(AtomicBool::new(false)), Arc::new(Gaps::new()));
    let writer = |n: u32| {
        let mut file = File::create(rig.path().join(format!("log{n}"))).unwrap();
        let (stop, gaps) = (Arc::clone(&stop), Arc::clone(&gaps));
        std::thread::spawn(move || {
            for count in 1_u64.. {
                file.write_all(&[b'x'; 100]).unwrap();
                gaps.written();
                if stop.load(Ordering::SeqCst) {
                    return file;
                }
                if count % 1000 == 0 {
                    file.set_len(0).unwrap();
                }
            }
            file
        })
    };
    let writers: Vec<_> = (0..3).map(writer).collect();
    // Nothing may change for a quarter of a second; normally one of three writers is scheduled,
    // however busy the machine is. If none was, that instant was quiet.
    let busy = wait_until("no instant is found", || {
        gaps.forget();
        let made = rig.mount.checkpoint_json(&["--quiesce", "5s"]);
        let quiet = made["quiesced"] == true;
        assert!(!quiet || gaps.longest() > QUIET, "{made}");
        seen(!quiet, made.clone()).map(|()| made)
    });
    stop.store(true, Ordering::SeqCst);
    let held: Vec<File> = writers
        .into_iter()
        .map(|writer| writer.join().unwrap())
        .collect();
    assert_eq!(busy["quiesced"], false, "{busy}");
    // Files that are only open do not count as changes.
    let calm = rig.mount.checkpoint_json(&["--quiesce", "60s"]);
    assert_eq!(
        (&calm["quiesced"], &calm["atomic"]),
        (&true.into(), &true.into()),
        "{calm}"
    );
    drop(held);
    assert!(
        rig.mount.checkpoint_json(&[])["quiesced"].is_null(),
        "nobody asked"
    );
}

/// `--quiesce` waits until a writer pauses. On a busy machine the scheduler may also pause it.
fn a_pause_is_waited_for(variant: Variant) {
    let rig = variant.start();
    wait_until("it is made when the writer has paused", || {
        let mut file = File::create(rig.path().join("log")).unwrap();
        let writer = std::thread::spawn(move || {
            let (began, gaps) = (Instant::now(), Gaps::new());
            while began.elapsed() < Duration::from_millis(700) {
                file.write_all(b"x").unwrap();
                gaps.written();
            }
            file.write_all(b"end").unwrap();
            gaps.written();
            gaps.longest()
        });
        let made = rig.mount.checkpoint_json(&["--quiesce", "60s"]);
        assert_eq!(made["quiesced"], true, "{made}");
        let longest = writer.join().unwrap();
        let id = made["id"].as_u64().unwrap();
        let kept = std::fs::read(rig.view(id).join("log")).unwrap();
        let at_the_end = kept.ends_with(b"end");
        assert!(at_the_end || longest > QUIET, "{made}, {longest:?}");
        seen(at_the_end, (made, longest))
    });
}

for_each_variant! { xfs => writers_that_never_pause_are_told, a_pause_is_waited_for }
