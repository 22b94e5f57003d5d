//! Large files, and files with many extents.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::support::{noise, sh, tree};
use super::{rss, size};
use crate::common::{MountOpts, Variant, for_each_variant};

for_each_variant! { all => a_sparse_file_of_a_tebibyte }
for_each_variant! { xfs => a_file_in_very_many_extents }

/// Every filesystem supports this file size: ext4 up to 16 TiB. A tmpfs does not count holes.
const TEBIBYTE: u64 = 1 << 40;

fn at(path: &Path, offset: u64) -> [u8; 4] {
    let mut bytes = [0; 4];
    File::open(path)
        .and_then(|file| file.read_exact_at(&mut bytes, offset))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    bytes
}

fn put_at(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|file| file.write_all_at(bytes, offset))
        .expect("write");
}

fn a_sparse_file_of_a_tebibyte(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |_| {});
    let path = rig.path().join("huge");
    File::create(&path)
        .and_then(|file| file.set_len(TEBIBYTE))
        .expect("truncate");
    let places = [0, TEBIBYTE / 2 + 1, TEBIBYTE - 4];
    for offset in places {
        put_at(&path, offset, b"then");
    }
    let before = rss(&rig.mount, "with the file");
    let id = rig.mount.checkpoint();
    sh(rig.path(), "touch -r huge then");
    for offset in places {
        put_at(&path, offset, b"now!");
    }
    for offset in places {
        assert_eq!(
            (at(&path, offset), at(&rig.view(id).join("huge"), offset)),
            (*b"now!", *b"then"),
            "{offset}"
        );
    }
    assert_eq!(
        fs::metadata(rig.view(id).join("huge")).expect("stat").len(),
        TEBIBYTE
    );
    assert_eq!(at(&rig.view(id).join("huge"), TEBIBYTE / 4), [0; 4]);
    // The old content and times are back: only a comparison of the data shows that, and it must not
    // read the holes.
    for offset in places {
        put_at(&path, offset, b"then");
    }
    sh(rig.path(), "touch -r then huge; rm then");
    assert_eq!(rig.mount.dirty(), [] as [String; 0]);
    put_at(&path, places[1], b"else");
    assert_eq!(rig.mount.dirty(), ["huge"]);
    rig.mount.restore(id);
    for offset in places {
        assert_eq!(at(&path, offset), *b"then", "{offset}");
    }
    assert!(rss(&rig.mount, "after a restore of it") < before + (64 << 20));
}

/// Writes every other block, so that each is an extent.
fn a_file_in_very_many_extents(v: Variant) {
    const BLOCK: u64 = 4096;
    let extents = size(3_000, 100_000) as u64;
    let content = noise(BLOCK as usize, 1);
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        let file = File::create(dir.join("pieces")).expect("create");
        (0..extents).for_each(|number| {
            file.write_all_at(&content, 2 * number * BLOCK)
                .expect("write")
        });
    });
    let path = rig.path().join("pieces");
    let before = rss(&rig.mount, "with the file");
    let (id, was) = (rig.mount.checkpoint(), tree(rig.path()));
    for number in (0..extents).step_by(extents as usize / 50) {
        put_at(&path, (2 * number + 1) * BLOCK, &content);
    }
    crate::common::tree::assert_tree_is(&rig.view(id), &was, &crate::common::TreeOpts::default());
    assert_eq!(rig.mount.dirty(), ["pieces"]);
    rig.mount.restore(id);
    crate::common::tree::assert_tree_is(rig.path(), &was, &crate::common::TreeOpts::default());
    assert!(rss(&rig.mount, "after a restore of it") < before + (64 << 20));
}
