//! Introductions of the tables.

use crate::options::Seed;

pub const INTRODUCTION: &str = "\
# The tables we grew from, made again

Written by `make bench-seeds ARGS=--write-docs` (`benches/seeds/`); [seeds.json](seeds.json) has every sample. Rows have the names that the seeds gave them, so that whoever knows
theirs finds it here; what a row means with us stands behind its name.

What is shown of a time is the median of the rounds; in each round everything in a row is done once, one after the other, so that what else the machine does falls on all alike. Columns
beside **ckptfs** do the same job with plain tools, in the same run. The last columns are what the seed wrote of itself, **on another machine**: they tell which of its numbers a row
stands for, and are not to be compared with ours. Where a plain tool is faster the row stays, and the list below the table says why. Nothing is estimated.

XFS and btrfs are mounted with passthrough, ext4 and tmpfs (which have no reflink, so that a capture is a copy) with the daemon's I/O: what `ckptfs mount` chooses there.
";

pub const SEEDS: [(Seed, &str); 5] = [
    (
        Seed::Platform,
        "## Platform\n\nWhat the filesystems themselves take, without ckptfs. What each can do is found by doing it, not by its name. Nothing is synced: a copy of a large file is in the page \
         cache when it ends.",
    ),
    (
        Seed::Spike2,
        "## Spike 2\n\nThe seed hashed 8 MiB bands of a disk image, found what had changed by a scan of times, and cloned the bands with APFS. Its tree had 36,076 files, and so has ours \
         (`benches/tree.sh`), which is mounted itself; the bands lie in a directory of their own. A checkpoint is asked for over the socket; the whole process stands beside it.",
    ),
    (
        Seed::Jvs,
        "## JVS\n\nThe engine runs in the benchmark's process, without FUSE and without a socket, as JVS's benchmarks call its packages. B/op and allocs/op are of all threads, as Go counts them. \
         JVS copies or reflinks the whole tree at each snapshot; a checkpoint of ours copies nothing, and the first change of each file after it pays: that stands beside it, with the same \
         writes once more, which pay nothing.",
    ),
    (
        Seed::Sy,
        "## sy\n\n`ckptfs export` and `ckptfs restore`, whole processes, beside `rsync -a` and `cp -a` (which shares data by itself where the filesystem can).",
    ),
    (
        Seed::Vrift,
        "## VRift\n\n`ckptfs import` of trees of as many files as VRift's tiers have: the sources of the crates that cargo fetched, and beyond them the same with another first line. A larger \
         tier has all files of a smaller one. Where there is no reflink only the smallest is measured: all is copied there.",
    ),
];
