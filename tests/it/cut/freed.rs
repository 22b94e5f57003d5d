//! Captures of a file that remains open, while marks of the tripwire are made and removed. The
//! model tests the other ways to free the newest checkpoint (`model::cases::carried_over_*`).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use crate::common::command::sh;
use crate::common::wait::{seen, wait_until};
use crate::common::{Io, MountOpts, Variant, for_each_variant};

for_each_variant! { xfs => marks_leave_one_generation_of_captures }

const REMOVED: usize = 4;

/// Processes remove one file each, so that marks are made and removed. A mark leaves the capture
/// that the next checkpoint may carry; the next mark frees it.
fn marks_leave_one_generation_of_captures(v: Variant) {
    let opts = MountOpts::new(v.io).arg("--tripwire=25/100ms");
    let rig = v.start_with(opts, |dir| {
        fs::write(dir.join("held"), [b'o'; 60_000]).unwrap();
        (0..REMOVED).for_each(|number| fs::write(dir.join(format!("old{number}")), "x").unwrap());
    });
    let first = rig.mount.checkpoint();
    let held = OpenOptions::new()
        .write(true)
        .open(rig.path().join("held"))
        .unwrap();
    for number in 0..REMOVED {
        held.write_all_at(number.to_string().as_bytes(), 7).unwrap();
        sh(rig.path(), &format!("rm old{number}"));
        wait_until("the mark is removed", || {
            let log = rig.mount.log_json();
            seen(log.as_array().unwrap().len() == 1, log)
        });
    }
    if v.io == Io::Passthrough {
        // A thread removes what the last mark freed.
        wait_until("two captures of the file are left", || {
            let captures = sh(rig.path(), "find .ckptfs/layers -name '*.c' | wc -l");
            seen(captures.trim() == "2", captures)
        });
    }
    let now = fs::read(rig.path().join("held")).unwrap();
    let next = rig.mount.checkpoint();
    assert!(next > first + 1, "no mark was created");
    held.write_all_at(b"later", 0).unwrap();
    assert_eq!(fs::read(rig.view(next).join("held")).unwrap(), now);
}
