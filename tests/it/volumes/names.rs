//! Invalid volume names, which engines pass on unchecked.

use serde_json::json;

use crate::common::tree_of;
use crate::volumes::support::{Rig, unavailable};

#[test]
fn what_is_no_name_touches_nothing() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("good", json!({}));
    let before = tree_of(&rig.root);
    let long = "a".repeat(300);
    let bad = [
        "",
        ".",
        "..",
        "../../etc",
        "../good",
        "a/b",
        "/etc",
        "a b",
        " good",
        "good ",
        "-rf",
        ".hidden",
        "_x",
        "a\u{0}b",
        "a\nb",
        "a\\b",
        "ä",
        "%2e%2e",
        "a:b",
        "good@",
        "good@../..",
        "good@1/..",
        "@1",
        "good@-x",
        "good.json/..",
        long.as_str(),
    ];
    for name in bad {
        for call in ["Create", "Get", "Mount", "Unmount", "Path", "Remove"] {
            let said = rig.error(call, &json!({"Name": name, "ID": "i", "Opts": {}}));
            assert!(said.contains("name of a"), "{call} {name:?}: {said}");
        }
    }
    // A file in the pool is not a volume, and names are case-sensitive.
    for name in ["good.json", "GOOD", "locks", "driver.lock"] {
        assert!(
            rig.error("Get", &json!({"Name": name}))
                .starts_with("no such volume"),
            "{name}"
        );
    }
    assert_eq!(
        tree_of(&rig.root).keys().collect::<Vec<_>>(),
        before.keys().collect::<Vec<_>>()
    );
    let longest = "b".repeat(200);
    rig.create(&longest, json!({}));
    rig.mount(&longest, "i");
    rig.unmount(&longest, "i");
    rig.done("Remove", &json!({"Name": longest}));
}
