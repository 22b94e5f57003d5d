//! Files open for writing, as recorded by a checkpoint.

use super::support::WriterRig;
use crate::common::command::sh;
use crate::common::{Variant, for_each_variant};

for_each_variant! { reflink => what_was_open_for_writing_is_in_the_record }

fn what_was_open_for_writing_is_in_the_record(v: Variant) {
    let mut stage = WriterRig::start(v, |dir| {
        drop(sh(dir, "mkdir d; echo a > d/a; echo b > b; echo c > c"))
    });
    let mut alice = stage.begins("alice");
    alice.does("open($h{a}, '>>', 'd/a') or die; open($h{c}, '<', 'c') or die; open($h{n}, '>', 'new') or die");
    stage.does("bob", "add('b', 1)");
    let first = stage.rig.mount.checkpoint().to_string();
    alice.does("close($_) for values %h; %h = ()");
    stage.rig.mount.all_is_closed();
    let second = stage.rig.mount.checkpoint().to_string();
    let pid = alice.pid();
    let check = |stage: &WriterRig| {
        let open = stage.rig.mount.json(&["show", &first])["open_at_cut"].clone();
        let list: Vec<(String, u64)> = open["files"]
            .as_array()
            .expect("files")
            .iter()
            .map(|one| {
                (
                    one["path"].as_str().expect("a path").to_owned(),
                    one["by"]["pid"].as_u64().expect("a number"),
                )
            })
            .collect();
        assert_eq!(
            list,
            [
                ("d/a".to_owned(), u64::from(pid)),
                ("new".to_owned(), u64::from(pid))
            ]
        );
        assert_eq!(
            (&open["files"][0]["by"]["name"], &open["more"]),
            (&"alice".into(), &0.into())
        );
        assert!(stage.rig.mount.json(&["show", &second])["open_at_cut"].is_null());
    };
    check(&stage);
    stage.rig.mount.kill();
    stage.rig.mount.remount();
    check(&stage);
    drop(alice);
    // Files beyond the limit are only counted.
    let mut many = stage.begins("many");
    many.does("for (1 .. 80) { open($h{$_}, '>', \"f$_\") or die }");
    let id = stage.rig.mount.checkpoint().to_string();
    let open = stage.rig.mount.json(&["show", &id])["open_at_cut"].clone();
    assert_eq!(
        (open["files"].as_array().map(Vec::len), &open["more"]),
        (Some(64), &16.into())
    );
    drop(many);
}
