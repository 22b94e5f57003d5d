//! Introductions of the tables.

use crate::options::Seed;

pub const INTRODUCTION: &str = "\
# The tables of the predecessors, measured again

Written by `make bench-seeds ARGS=--write-docs` (`benches/seeds/`); [seeds.json](seeds.json) has every sample. The *seeds* are the projects that ckptfs grew from. Rows keep the names that the
seeds gave them; the meaning of a row in ckptfs follows its name.

A time is the median of the rounds. Each round does everything in a row once, one after the other, so that other load on the machine affects all columns equally. The columns next to
**ckptfs** do the same job with plain tools, in the same run. The last columns are the figures that the seed published, **measured on another machine**: they identify the figure that
a row reproduces, and are not comparable with the others. Rows in which a plain tool is faster are included; the list below the table gives the reason. Nothing is estimated.

XFS and btrfs are mounted with passthrough. Ext4 and tmpfs have no reflink, so a capture is a copy; they are mounted with the daemon's I/O. `ckptfs mount` selects the same by default.
";

pub const SEEDS: [(Seed, &str); 5] = [
    (
        Seed::Platform,
        "## Platform\n\nThe cost of the filesystems themselves, without ckptfs. The features of each are found by use, not by its name. Nothing is synced: a copy of a large file is in the page \
         cache when it ends.",
    ),
    (
        Seed::Spike2,
        "## Spike 2\n\nThe seed hashed 8 MiB bands of a disk image, found the changed files by a scan of modification times, and cloned the bands with APFS. Its tree had 36,076 files, as has the \
         tree here (`benches/tree.sh`), which is mounted itself; the bands are in a separate directory. A checkpoint is requested over the socket; a second column has the whole process.",
    ),
    (
        Seed::Jvs,
        "## JVS\n\nThe engine runs in the benchmark's process, without FUSE and without a socket, as JVS's benchmarks call its packages. B/op and allocs/op are of all threads, as Go counts them. \
         JVS copies or reflinks the whole tree at each snapshot. A checkpoint of ckptfs copies nothing, and the first change of each file after it has the cost: further columns have that \
         change, and the same writes once more, which have no such cost.",
    ),
    (
        Seed::Sy,
        "## sy\n\n`ckptfs export` and `ckptfs restore`, whole processes, compared with `rsync -a` and `cp -a` (which shares data if the filesystem supports it).",
    ),
    (
        Seed::Vrift,
        "## VRift\n\n`ckptfs import` of trees with the numbers of files of VRift's tiers: the sources of the crates that cargo fetched, repeated with a different first line as often as necessary. \
         A larger tier contains all files of a smaller one. Without reflink only the smallest is measured, because all data is copied.",
    ),
];
