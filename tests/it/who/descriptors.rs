//! Descriptors that are retained, inherited, mapped, or opened without a write.

use std::fs::OpenOptions;
use std::io::Write;

use super::support::{WriterRig, told};
use crate::common::command::sh;
use crate::common::{Io, Variant, for_each_variant};

for_each_variant! { reflink =>
    opened_and_left_alone_is_not_written,
    a_descriptor_that_was_handed_on,
    a_mapping_that_outlives_its_descriptor,
    a_file_held_open_over_a_checkpoint,
    a_file_held_open_over_a_takeover,
}

fn opened_and_left_alone_is_not_written(v: Variant) {
    let stage = WriterRig::start(v, |dir| drop(sh(dir, "echo a > a; echo b > b")));
    stage.rig.mount.checkpoint();
    stage.does("alice", "add('a', 1)");
    stage.does("bob", "sysopen(my $f, 'a', O_RDWR) or die; my $l = <$f>; close($f); sysopen($f, 'b', O_WRONLY) or die; close($f)");
    stage.rig.mount.all_is_closed();
    assert_eq!(stage.told(), told(&[("a", &["alice"])]));
    // The same while the other process has it open, in both orders.
    stage.rig.mount.checkpoint();
    let (mut alice, mut bob) = (stage.begins("alice"), stage.begins("bob"));
    bob.does("sysopen($h, 'a', O_RDWR) or die");
    bob.does("close($h)");
    stage.rig.mount.all_is_closed();
    alice.does("add('a', 2)");
    alice.does("sysopen($h, 'b', O_WRONLY | O_APPEND) or die");
    bob.does("add('b', 3)");
    alice.does("close($h)");
    drop((alice, bob));
    let now = stage.told();
    assert_eq!(now["a"], told(&[("a", &["alice"])])["a"]);
    if v.io == Io::Daemon {
        assert_eq!(now["b"], told(&[("b", &["bob"])])["b"]);
    } else {
        // It changed while alice had write access, so she counts as a writer.
        assert_eq!(now["b"], told(&[("b", &["alice", "bob"])])["b"]);
    }
}

/// With passthrough the process that opened the file counts; with daemon I/O, the one that writes.
fn a_descriptor_that_was_handed_on(v: Variant) {
    let stage = WriterRig::start(v, |dir| drop(sh(dir, "echo a > a")));
    stage.rig.mount.checkpoint();
    let file = OpenOptions::new()
        .append(true)
        .open(stage.path("a"))
        .expect("a file");
    let mut command = stage.program("bob");
    command
        .args(["-e", "print 'by bob'"])
        .stdout(file.try_clone().expect("a descriptor"));
    assert!(command.status().expect("perl runs").success());
    drop(file);
    let names = &stage.told()["a"];
    assert_eq!(names.len(), 1);
    assert_eq!(names.contains("bob"), v.io == Io::Daemon, "{names:?}");
    assert_eq!(stage.get("a"), "a\nby bob");
}

fn a_mapping_that_outlives_its_descriptor(v: Variant) {
    let stage = WriterRig::start(v, |dir| {
        drop(sh(dir, "head -c 8192 /dev/zero > m; echo b > b"))
    });
    stage.rig.mount.checkpoint();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(stage.path("m"))
        .expect("a file");
    // SAFETY: the kernel chooses the address; the mapping is not used after the unmap below, and
    // the file is not truncated.
    let at = unsafe {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        mmap(
            std::ptr::null_mut(),
            8192,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &file,
            0,
        )
        .expect("a mapping")
    };
    drop(file);
    // SAFETY: within the mapping.
    unsafe { at.cast::<u8>().write_volatile(1) };
    stage.does("bob", "add('b', 1)");
    let ours = std::fs::read_to_string("/proc/self/comm").expect("a name");
    let expected = told(&[("b", &["bob"]), ("m", &[ours.trim_end()])]);
    let before = stage.told();
    // The file is still mapped at the next checkpoint, and a later store is attributed to this
    // process.
    let id = stage.rig.mount.checkpoint().to_string();
    let open = stage.rig.mount.json(&["show", &id])["open_at_cut"].clone();
    // SAFETY: as above.
    unsafe { at.cast::<u8>().add(4096).write_volatile(1) };
    stage.does("bob", "add('b', 1)");
    let after = stage.told();
    // SAFETY: unmaps exactly the mapping, which is no longer referenced.
    unsafe { rustix::mm::munmap(at, 8192) }.expect("a mapping");
    assert_eq!((before, after), (expected.clone(), expected));
    assert_eq!(
        (&open["files"][0]["path"], &open["files"][0]["by"]["pid"]),
        (&"m".into(), &std::process::id().into()),
        "{open}"
    );
}

fn a_file_held_open_over_a_checkpoint(v: Variant) {
    let stage = WriterRig::start(v, |dir| drop(sh(dir, "echo log > log; echo quiet > quiet")));
    let mut alice = stage.begins("alice");
    alice.does(
        "open($h{l}, '>>', 'log') or die; open($h{q}, '>>', 'quiet') or die; $h{l}->autoflush(1)",
    );
    stage.rig.mount.checkpoint();
    alice.does("print { $h{l} } \"one\\n\"; 1");
    assert_eq!(stage.told(), told(&[("log", &["alice"])]));
    stage.rig.mount.checkpoint();
    let mut late = OpenOptions::new()
        .append(true)
        .open(stage.path("quiet"))
        .expect("a file");
    late.write_all(b"not alice").expect("write");
    drop(late);
    alice.does("print { $h{l} } \"two\\n\"; 1");
    alice.does("close($h{q}); close($h{l})");
    drop(alice);
    assert_eq!(stage.told()["log"], told(&[("log", &["alice"])])["log"]);
}

/// After a takeover the worker still attributes open files: the next checkpoint lists them, and
/// writes in the next epoch are attributed.
fn a_file_held_open_over_a_takeover(v: Variant) {
    let mut stage = WriterRig::start(v, |dir| drop(sh(dir, "echo a > a; echo b > b")));
    stage.rig.mount.checkpoint();
    let mut alice = stage.begins("alice");
    alice.does("open($h{a}, '>>', 'a') or die; $h{a}->autoflush(1)");
    stage.rig.mount.replace_worker();
    let id = stage.rig.mount.checkpoint().to_string();
    let open = stage.rig.mount.json(&["show", &id])["open_at_cut"].clone();
    assert_eq!(
        (
            &open["files"][0]["path"],
            &open["files"][0]["by"]["name"],
            &open["more"]
        ),
        (&"a".into(), &"alice".into(), &0.into())
    );
    alice.does("print { $h{a} } \"one\\n\"; 1");
    stage.does("bob", "add('b', 1)");
    assert_eq!(stage.told(), told(&[("a", &["alice"]), ("b", &["bob"])]));
    alice.does("close($h{a})");
}
