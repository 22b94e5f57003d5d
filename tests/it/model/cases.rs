//! Shrunk failures of the model, each with its cause.

use super::ops::{Verb, parse};
use super::run::ModelBench;
use crate::common::{Fs, Io, Variant, skip};

/// Runs a list on one variant.
#[track_caller]
pub fn case(fs: Fs, io: Io, list: &str) {
    let variant = Variant { fs, io };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    let list = parse(list);
    let bench = match list.iter().any(|op| op.verb == Verb::Cut) {
        true => ModelBench::cutting(variant),
        false => ModelBench::new(variant),
    };
    if let Err(failure) = bench.list(&list) {
        panic!("{}", failure.problem);
    }
}

/// The basic scenario of the issue.
#[test]
fn a_file_comes_back() {
    let list = "put a 100 1\ncheckpoint\nput a 200 2\nmkdir b 493\nput b/c 10 3\ncheckpoint\nunlink a\ncheck-views\ncheck-status\nrestore 0\ncheck-live";
    case(Fs::Xfs, Io::Passthrough, list);
}

/// Failed before: the last operations of a killed daemon, made after its last write to the journal,
/// were attributed to an absence, and views returned EIO.
#[test]
fn what_a_killed_daemon_did_last_was_done_by_it() {
    for io in [Io::Passthrough, Io::Daemon] {
        case(
            Fs::Xfs,
            io,
            "checkpoint\nput b 5000 980\nrename b c\nkill\ncheck-views\ncheck-status",
        );
    }
}

/// A changed file differs at all its names. Failed before: only the name used for the write was
/// reported, and after a remount none.
#[test]
fn every_name_of_a_changed_file_differs() {
    let list = "mkdir c 493\nput c/a 10 1\nlink c/a c/b\nmkdir d 493\nlink c/a d/c\ncheckpoint\nwrite c/a 1 6533 298\ncheck-status\n\
        remount\ncheckpoint\nremount\nchmod d/c 384\ncheck-status\ncheck-diff 0 1\nrestore 0\ncheck-live\ncheck-views";
    case(Fs::Xfs, Io::Passthrough, list);
}

/// Failed before: a lookup in an empty directory that was removed returned ESTALE instead of
/// ENOENT.
#[test]
fn nothing_is_in_an_empty_directory_that_is_gone() {
    case(
        Fs::Xfs,
        Io::Passthrough,
        "checkpoint\nmkdir a 448\nrestore 0\nrestore-paths a/c 1\ncheck-views",
    );
}

/// Failed before: a file with a past was moved into a new directory, which had no record. After a
/// kill, recovery put the file back at a wrong place.
#[test]
fn what_moved_into_a_new_directory_is_found_after_a_kill() {
    for list in [
        "put a 5000 559\ncheckpoint\nmkdir d 493\nrename d f\nrename a f/f\nkill\ncheck-views",
        "put a 5000 559\ncheckpoint\nmkdir d 493\nmkdir d/e 493\nrename a d/e/f\nrename d f\nkill\ncheck-views\ncheck-status\nrestore 0",
        "mkdir c 493\nput c/a 5000 1\ncheckpoint\nmkdir d 493\nrename c d/c\nput e 1 1\nexchange d e\nkill\nkill\ncheck-views\ncheck-live",
        "put a 5000 1\nlink a b\ncheckpoint\nmkdir d 493\nlink a d/c\nunlink a\nunlink b\nkill\ncheck-views\ncheck-live",
    ] {
        case(Fs::Xfs, Io::Daemon, list);
    }
}

/// Failed before: a version was removed with one checkpoint, and was missing when the next one was
/// deleted or recovered after a kill.
#[test]
fn a_version_goes_with_the_last_checkpoint_that_needs_it() {
    for list in [
        "put e 0 1\ncheckpoint\nwrite e 10 10 2\ncheckpoint\ntruncate e 70000\ndelete 1\ndelete 0",
        "put e 10 1\ncheckpoint\nwrite e 10 10 2\ndelete 0\nkill\ncheck-live\ncheckpoint\nkill\ncheck-views",
    ] {
        case(Fs::Xfs, Io::Daemon, list);
    }
}

/// Failed before: without checkpoints (none made yet, or all deleted) changed content was captured
/// and never freed.
#[test]
fn without_checkpoints_nothing_is_kept() {
    for io in [Io::Passthrough, Io::Daemon] {
        case(
            Fs::Xfs,
            io,
            "mkdir f 493\nput a 5000 1\nkill\nrmdir f\nwrite a 10 10 2\nput b 10 3\nrename b a",
        );
        case(
            Fs::Xfs,
            io,
            "mkdir f 493\nput a 5000 1\ncheckpoint\ndelete 0\nrmdir f\nwrite a 10 10 2\nput b 10 3\nrename b a\ncheckpoint\nunlink a",
        );
    }
}

/// Failed before: after a restore removed one of two names, the kernel kept a link count of two
/// until a listing refreshed the attributes.
#[test]
fn a_restore_that_takes_a_name_away_is_counted_by_the_kernel() {
    for io in [Io::Passthrough, Io::Daemon] {
        case(
            Fs::Xfs,
            io,
            "put e 0 529\ncheckpoint\nrename e odd\nlink odd e\nrestore 0\ncheck-live",
        );
        case(
            Fs::Xfs,
            io,
            "put e 10 529\nlink e odd\ncheckpoint\nunlink odd\nrestore 0\ncheck-live",
        );
    }
}

/// A restore creates a removed file again as another inode. Failed before: a later restore of paths
/// created it a second time although it was unchanged, and separated it from a newer name.
#[test]
fn a_file_that_a_restore_made_again_is_left_alone() {
    for io in [Io::Passthrough, Io::Daemon] {
        case(
            Fs::Xfs,
            io,
            "put b 1 441\nmkdir f 493\ncheckpoint\nunlink b\nrestore 0\nmkfifo f/c 420\nlink b f/f\nrestore-paths f/c b 0\ncheck-live",
        );
    }
}

/// A restored name is linked to a name outside the restored paths that was the same file.
#[test]
fn a_name_that_comes_back_is_one_file_with_a_name_outside() {
    case(
        Fs::Xfs,
        Io::Daemon,
        "mkdir d 493\nput e 10 1\nlink e d/b\ncheckpoint\nunlink d/b\nput d/c 20 2\nrestore-paths d 0\ncheck-live\ncheckpoint\ncheck-views",
    );
}

/// Failed before: a file captured only because it was open for writing counted as changed, so that
/// a restore of one of its two names created a second file.
#[test]
fn a_restore_of_one_name_does_not_split_a_file_that_is_only_open() {
    for io in [Io::Passthrough, Io::Daemon] {
        let list = "mkdir odd 320\nmkdir odd/b 493\nput odd/b/odd 0 683\nopen odd/b/odd 4 3\nlink odd/b/odd odd/f\ncheckpoint\nrestore-paths odd/b 5\n\
            checkpoint\ncheck-live";
        case(Fs::Xfs, io, list);
    }
}

/// An idle open file has one version in two successive checkpoints. Failed before: freeing the
/// newer one removed the version, and views returned EIO from then on.
fn what_the_next_checkpoint_carries_stays(free: &str) {
    for (fs, io) in [(Fs::Xfs, Io::Passthrough), (Fs::Btrfs, Io::Passthrough)] {
        let list = format!("{free}\ncheck-views\nhwrite 5 0 3 9\ncheck-views");
        case(fs, io, &list);
    }
}

#[test]
fn carried_over_delete_now() {
    what_the_next_checkpoint_carries_stays(
        "put f 70000 1\ncheckpoint\nopen f 5 3\nfree now 0\ncheckpoint",
    );
}

/// A file open for reading and writing may be mapped and counts as idle only after a delay.
#[test]
fn carried_over_delete_now_read_and_write() {
    what_the_next_checkpoint_carries_stays(
        "put f 70000 1\nidle settled\ncheckpoint\nopen f 5 1\ncheckpoint\nfree now 0\ncheckpoint",
    );
}

#[test]
fn carried_over_delete_and_gc() {
    what_the_next_checkpoint_carries_stays(
        "put f 70000 1\ncheckpoint\nopen f 5 3\nfree hide 0 1\ncheckpoint",
    );
}

/// Three checkpoints share a version captured for the first. The third keeps it when the others are
/// freed, also after the file was changed.
#[test]
fn carried_twice_and_freed_where_it_was_made() {
    what_the_next_checkpoint_carries_stays(
        "put f 70000 1\nidle settled\ncheckpoint\nopen f 5 3\ncheckpoint\ncheckpoint\nhwrite 5 0 3 7\nfree now 2\nidle\ncheckpoint\nfree now 2",
    );
}

/// A mark is made before a removal and freed by the daemon, without any deletion.
#[test]
fn carried_over_a_mark_that_is_taken_back() {
    what_the_next_checkpoint_carries_stays(
        "with marks\nput f 70000 1\nput old 5 2\ncheckpoint\nidle\nopen f 5 3\nhwrite 5 0 3 7\nunlink old\nidle unmarked\ncheckpoint",
    );
}

#[test]
fn carried_over_rmdir_and_gc() {
    what_the_next_checkpoint_carries_stays(
        "put f 70000 1\nnamed-checkpoint\nopen f 5 3\nfree rmdir 0 1\ncheckpoint",
    );
}

#[test]
fn carried_over_the_guard_of_a_restore() {
    what_the_next_checkpoint_carries_stays(
        "put f 70000 1\nput old 5 2\ncheckpoint\nput old 6 3\nopen f 5 3\nhwrite 5 0 3 7\nrestore-paths old 0\nfree now 0\ncheckpoint",
    );
}

/// More removals follow: the mark stays, as the newest checkpoint.
#[test]
fn carried_over_a_mark_that_gc_frees() {
    what_the_next_checkpoint_carries_stays(
        "with marks\nput f 70000 1\nput a 5 2\nput b 5 2\nput c 5 2\ncheckpoint\nidle\nopen f 5 3\nhwrite 5 0 3 7\n\
         unlink a\nunlink b\nunlink c\nfree keep-last 0\ncheckpoint",
    );
}

#[test]
fn carried_over_the_quota_of_mkdir() {
    what_the_next_checkpoint_carries_stays(
        "put f 70000 1\nlimited-checkpoint\nopen f 5 3\nfree rmdir 0\nlimited-checkpoint",
    );
}

#[test]
fn carried_over_an_undone_checkpoint() {
    what_the_next_checkpoint_carries_stays("put f 70000 1\nopen f 5 3\nfree undo 0 1\ncheckpoint");
}

const SYNCED_AND_CHANGED: &str = "put a 40000 1\nput b 3000 2\nput c 40000 3\nput d 3000 4\nput e 3000 5\nopen e 5 3\nsynced-checkpoint\n\
    write a 0 3 9\nput b 3 9\ntruncate c 7\nunlink d\nhwrite 5 5 3 9\n";

/// Failed before: a mount or takeover wrote the end of the journal to disk ahead of the tree, and
/// after a power cut the view of a synced checkpoint returned EIO.
#[test]
fn an_opening_syncs_nothing_ahead_of_the_tree() {
    for opening in ["kill-worker", "remount", "kill"] {
        let list = format!("{SYNCED_AND_CHANGED}{opening}\ncut");
        case(Fs::Btrfs, Io::Passthrough, &list);
    }
}

/// An fsync of a removed open file on btrfs also logs its directory, without another file removed
/// from it. Failed before: the version of that file was not on disk.
#[test]
fn a_removed_file_that_is_synced_takes_no_past_with_it() {
    let list = "mkdir f 493\nput f/f 5000 2\nopen f/f 5 3\nput f/d 700 3\nsynced-checkpoint\nunlink f/f\nwrite f/d 1 482 890\n\
        unlink f/d\nfsync 5\ncut";
    case(Fs::Btrfs, Io::Passthrough, list);
    case(Fs::Btrfs, Io::Daemon, list);
}

/// Failed before: after a takeover the worker looked in the tree for a removed file that was open.
#[test]
fn a_removed_file_that_was_open_over_a_takeover_is_forgotten() {
    case(
        Fs::Xfs,
        Io::Passthrough,
        "put e 5000 900\nopen e 3 1\nunlink e\nput b 20000 303\nkill-worker\nclose 3\nkill-worker",
    );
}

/// The kernel caches a listing of `.snapshots` over a takeover. Failed before: the next worker did
/// not invalidate it.
#[test]
fn a_listing_of_snapshots_from_before_a_takeover_is_forgotten() {
    let list = "put a 5 1\nlist-snapshots\nkill-worker\ncheckpoint\nlist-snapshots";
    case(Fs::Xfs, Io::Passthrough, list);
}

/// XFS reuses the inode number of a removed directory. Entries of a new directory have no records.
/// Failed before: with a reused number `diff` did not list the new directory, and `restore` left it
/// in place.
#[test]
fn a_directory_with_the_number_of_a_removed_one_is_named_with_all_it_has() {
    for io in [Io::Passthrough, Io::Daemon] {
        let list = "mkdir c 448\nsynced-checkpoint 1 19\nleave 6 19\nrmdir c\nrestore 1 6\nsymlink c/f 434\ncheck-diff 12 4\n\
            checkpoint\nrestore 0 3\ncheck-live 14 1";
        case(Fs::Xfs, io, list);
    }
}

/// Failed before: a name in a directory younger than the checkpoint counted as an old name of the
/// file, so that `diff` listed only one of its two names.
#[test]
fn a_name_in_a_new_directory_is_none_that_a_file_had_before() {
    let list = "put e 100 1\nlink e long\ncheckpoint\nrename long odd 0\nmkdir d 493\nrename odd d/e 0\nwrite e 1 50 298\n\
        check-status\ncheckpoint\ncheck-diff 0 1\nrestore 0\ncheck-live";
    case(Fs::Xfs, Io::Daemon, list);
}

/// Failed before: the packs dropped the place of an inode without records before the index did, and
/// `verify` reported an entry that "should not be there".
#[test]
fn a_place_that_no_record_needs_is_no_damage() {
    let list = "checkpoint 0 13\ncheck-views\nunlink c\nfree rmdir 0 1\nmkdir d 493\nclose 3\nrename d f\ncheckpoint 3 9\n\
        checkpoint\nidle\nfree keep-last 0\nverify 1 0";
    for (fs, io) in [(Fs::Xfs, Io::Passthrough), (Fs::Btrfs, Io::Daemon)] {
        case(fs, io, list);
    }
}
