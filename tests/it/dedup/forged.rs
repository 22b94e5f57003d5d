//! Forged hashes: files with different content are never shared, and nothing changes.

use std::fs::File;
use std::sync::Arc;

use super::story::{places, tell, trees};
use crate::common::{Variant, for_each_variant};
use ckptfs_core::history::timeline::Timeline;
use ckptfs_store::Store;
use ckptfs_store::record::ObjectHash;

for_each_variant! { all => what_differs_is_not_shared_whatever_its_hash_says }

/// Records, for each object of an unmounted store, the hash of the first object of the same size,
/// in the journal and thus in the index.
fn forge(dir: &std::path::Path) -> usize {
    let (store, _) = Store::open(File::open(dir).unwrap(), false).unwrap();
    let store = Arc::new(store);
    let (timeline, _) = Timeline::open(Arc::clone(&store)).unwrap();
    let mut hashes = std::collections::BTreeMap::new();
    let mut forged = 0;
    for epoch in store
        .layers
        .epochs()
        .unwrap()
        .into_iter()
        .filter(|epoch| *epoch < timeline.epochs.epoch())
    {
        let mut objects = Vec::new();
        for object in store.layers.list(epoch).unwrap() {
            let Ok(Some((size, hash))) = store.layers.hash(object, |_| true) else {
                continue;
            };
            let first = *hashes.entry(size).or_insert(hash);
            forged += usize::from(first != hash);
            objects.push(ObjectHash {
                object,
                size,
                hash: first,
            });
        }
        timeline.contents.add_hashes(epoch, &objects, true).unwrap();
    }
    forged
}

fn what_differs_is_not_shared_whatever_its_hash_says(v: Variant) {
    let mut rig = tell(v, "off");
    let before = trees(&rig.mount);
    rig.mount.umount();
    assert!(forge(rig.path()) > 3, "nothing was forged");
    rig.mount.remount();
    let was = places(rig.path());
    let plan = rig.mount.json(&["gc", "--dedup", "--dry-run"]);
    assert_eq!(places(rig.path()), was);
    let done = rig.mount.json(&["gc", "--dedup"]);
    assert_eq!(done["shared"], plan["shared"], "{plan} {done}");
    assert_eq!(trees(&rig.mount), before, "a forged hash changed something");
    // Among objects with one hash, equal ones are still shared.
    let again = rig.mount.json(&["gc", "--dedup"]);
    assert_eq!(again["shared"]["files"], 0, "{again}");
    if v.fs.has_reflink() {
        assert_eq!(super::story::apart(rig.path()), 0);
    }
}
