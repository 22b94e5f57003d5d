//! An empty store in `CKPTFS_BENCH_DIR`.

use std::fs::File;

use ckptfs_store::Store;

pub fn store() -> (tempfile::TempDir, Store) {
    let base = std::env::var_os("CKPTFS_BENCH_DIR").unwrap_or_else(|| "/var/tmp".into());
    let dir = tempfile::Builder::new()
        .prefix("ckptfs-bench-")
        .tempdir_in(base)
        .expect("a directory can be created");
    let (store, _) = Store::open(File::open(dir.path()).expect("it can be opened"), true)
        .expect("a store can be created");
    (dir, store)
}
