//! Warnings of `status` about a full filesystem.

use std::fs;

use serde_json::Value;

use super::full::FullDisk;
use crate::common::{Image, Variant, for_each_variant};

for_each_variant! { all => a_full_disk_is_told }

fn warnings(full: &FullDisk, word: &str) -> Vec<String> {
    let status = full.mount.status_json();
    let warnings = status["warnings"].as_array().expect("a list").clone();
    let texts = warnings.iter().map(Value::to_string);
    texts.filter(|text| text.contains(word)).collect()
}

/// Failed before: `status` had no warning while writes failed with ENOSPC.
fn a_full_disk_is_told(v: Variant) {
    let full = FullDisk::new(Image::in_memory(v.fs, 320 << 20), v.io);
    for number in 0..20 {
        fs::write(full.path(&format!("f{number}")), vec![1; 1 << 20]).expect("a file");
    }
    full.mount.checkpoint();
    assert_eq!(warnings(&full, "filesystem"), Vec::<String>::new());
    full.fill();
    let told = warnings(&full, "filesystem");
    let says = |text: &str| told.iter().any(|told| told.contains(text));
    assert!(
        says("is full") || says(" are free on the filesystem"),
        "{told:?}"
    );
    assert!(says(" du` shows what the history takes"), "{told:?}");
    let metrics = full.mount.ok(&["status", "--metrics"]);
    let free = metrics
        .lines()
        .find(|line| line.starts_with("ckptfs_filesystem_avail_bytes{"))
        .and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    assert!(free.is_some_and(|free| free < 8 << 20), "{metrics}");
    // A change fails if its capture finds no space. The warning remains when space is available
    // again.
    let refused = (0..20).any(|number| {
        let changed = fs::write(full.path(&format!("f{number}")), vec![2; 1 << 20]);
        changed.is_err()
    });
    assert!(refused, "nothing failed on a full disk");
    full.free();
    let told = warnings(&full, "filesystem");
    assert!(
        !told.iter().any(|told| told.contains("is full")),
        "{told:?}"
    );
    println!("{v:?}: {told:?}");
    if v.fs == crate::common::Fs::Ext4 {
        // Without reflink a capture needs as much space as the file.
        assert!(
            told.iter().any(|told| told.contains("was full ")),
            "{told:?}"
        );
    }
}
