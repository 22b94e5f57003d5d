//! `checkpoint --quiesce`: it waits for an instant at which nothing is being changed, and says
//! whether it found one.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Variant, for_each_variant};

/// Writers that never pause, in files that they hold open; with passthrough the daemon sees none of
/// their writes.
fn writers_that_never_pause_are_told(variant: Variant) {
    let rig = variant.start();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = |n: u32| {
        let mut file = File::create(rig.path().join(format!("log{n}"))).unwrap();
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            for count in 1_u64.. {
                file.write_all(&[b'x'; 100]).unwrap();
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
    // For a quarter of a second nothing must change: one of three will be let write, however busy
    // the machine is.
    let busy = rig.mount.checkpoint_json(&["--quiesce", "5s"]);
    stop.store(true, Ordering::SeqCst);
    let held: Vec<File> = writers
        .into_iter()
        .map(|writer| writer.join().unwrap())
        .collect();
    assert_eq!(busy["quiesced"], false, "{busy}");
    // Files that are only held open are nothing in flight.
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

/// Who waits gets the moment at which a writer pauses.
fn a_pause_is_waited_for(variant: Variant) {
    let rig = variant.start();
    let mut file = File::create(rig.path().join("log")).unwrap();
    let writer = std::thread::spawn(move || {
        let began = std::time::Instant::now();
        while began.elapsed() < std::time::Duration::from_millis(700) {
            file.write_all(b"x").unwrap();
        }
        file.write_all(b"end").unwrap();
        file
    });
    let made = rig.mount.checkpoint_json(&["--quiesce", "60s"]);
    assert_eq!(made["quiesced"], true, "{made}");
    drop(writer.join().unwrap());
    let id = made["id"].as_u64().unwrap();
    let kept = std::fs::read(rig.view(id).join("log")).unwrap();
    assert!(
        kept.ends_with(b"end"),
        "it was made when the writer had paused"
    );
}

for_each_variant! { xfs => writers_that_never_pause_are_told, a_pause_is_waited_for }
