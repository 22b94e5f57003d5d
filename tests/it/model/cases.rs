//! Shrunk failures, kept: each is the list that failed once, with the story of what was wrong.

use super::ops::{Verb, parse};
use super::run::Bench;
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
        true => Bench::cutting(variant),
        false => Bench::new(variant),
    };
    if let Err(failure) = bench.list(&list) {
        panic!("{}", failure.problem);
    }
}

/// The story of the issue in the smallest form.
#[test]
fn a_file_comes_back() {
    let list = "put a 100 1\ncheckpoint\nput a 200 2\nmkdir b 493\nput b/c 10 3\ncheckpoint\nunlink a\ncheck-views\ncheck-status\nrestore 0\ncheck-live";
    case(Fs::Xfs, Io::Passthrough, list);
}

/// What a killed daemon did after it had last written to the journal was taken for done while
/// nobody served the tree, and views gave EIO.
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

/// A file with several names changes at all of them; only the one by which it was written was told.
/// After the remount the daemon has seen none.
#[test]
fn every_name_of_a_changed_file_differs() {
    let list = "mkdir c 493\nput c/a 10 1\nlink c/a c/b\nmkdir d 493\nlink c/a d/c\ncheckpoint\nwrite c/a 1 6533 298\ncheck-status\n\
        remount\ncheckpoint\nremount\nchmod d/c 384\ncheck-status\ncheck-diff 0 1\nrestore 0\ncheck-live\ncheck-views";
    case(Fs::Xfs, Io::Passthrough, list);
}

/// In a directory that was empty and is gone, a look-up gave ESTALE instead of "no such file".
#[test]
fn nothing_is_in_an_empty_directory_that_is_gone() {
    case(
        Fs::Xfs,
        Io::Passthrough,
        "checkpoint\nmkdir a 448\nrestore 0\nrestore-paths a/c 1\ncheck-views",
    );
}

/// A file with a past was moved into a new directory, which then no record could find after a kill:
/// recovery put the file back where it was not.
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

/// A version was removed with one checkpoint, and missed when the next was deleted, or by the
/// recovery after a kill.
#[test]
fn a_version_goes_with_the_last_checkpoint_that_needs_it() {
    for list in [
        "put e 0 1\ncheckpoint\nwrite e 10 10 2\ncheckpoint\ntruncate e 70000\ndelete 1\ndelete 0",
        "put e 10 1\ncheckpoint\nwrite e 10 10 2\ndelete 0\nkill\ncheck-live\ncheckpoint\nkill\ncheck-views",
    ] {
        case(Fs::Xfs, Io::Daemon, list);
    }
}

/// Before the first checkpoint, and after the last was deleted, what changed was kept although
/// nobody could ask for it, and was never removed.
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

/// A restore took one of two names away, and the kernel went on counting two: only a listing that
/// told its attributes anew had put that right.
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

/// A restore makes a removed file again, as another inode. A later restore of paths made it a
/// second time though it was as it had been, and separated it from a name that it got since.
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

/// A restored name joins a name outside of the restored paths that it was one file with.
#[test]
fn a_name_that_comes_back_is_one_file_with_a_name_outside() {
    case(
        Fs::Xfs,
        Io::Daemon,
        "mkdir d 493\nput e 10 1\nlink e d/b\ncheckpoint\nunlink d/b\nput d/c 20 2\nrestore-paths d 0\ncheck-live\ncheckpoint\ncheck-views",
    );
}

/// A file that was open for writing, and captured for that, counted as changed: a restore of one of
/// its two names made a second file of it.
#[test]
fn a_restore_of_one_name_does_not_split_a_file_that_is_only_open() {
    for io in [Io::Passthrough, Io::Daemon] {
        let list = "mkdir odd 320\nmkdir odd/b 493\nput odd/b/odd 0 683\nopen odd/b/odd 4 3\nlink odd/b/odd odd/f\ncheckpoint\nrestore-paths odd/b 5\n\
            checkpoint\ncheck-live";
        case(Fs::Xfs, io, list);
    }
}

/// What the newest checkpoint reads of a file that is open and idle, the next one reads too. It was
/// removed when the newest was freed, and views gave EIO for ever.
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

/// Open for reading too it could be mapped: it counts as idle after a while.
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

/// Three checkpoints read one capture, which was made for the first: the third reads it when the
/// others are freed, also after the file was changed.
#[test]
fn carried_twice_and_freed_where_it_was_made() {
    what_the_next_checkpoint_carries_stays(
        "put f 70000 1\nidle settled\ncheckpoint\nopen f 5 3\ncheckpoint\ncheckpoint\nhwrite 5 0 3 7\nfree now 2\nidle\ncheckpoint\nfree now 2",
    );
}

/// Nobody deletes anything: a mark is made before a removal, and taken back.
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

/// More is removed: the mark stays, and is the newest.
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

/// An opening brought the end of the journal to the disk ahead of the tree: after a power cut the
/// view of a synced checkpoint gave EIO.
#[test]
fn an_opening_syncs_nothing_ahead_of_the_tree() {
    for opening in ["kill-worker", "remount", "kill"] {
        let list = format!("{SYNCED_AND_CHANGED}{opening}\ncut");
        case(Fs::Btrfs, Io::Passthrough, &list);
    }
}

/// A removed file that is open is synced: btrfs brings the directory that it was in to the disk as
/// well, without another file of it. What was captured of that one was not on the disk.
#[test]
fn a_removed_file_that_is_synced_takes_no_past_with_it() {
    let list = "mkdir f 493\nput f/f 5000 2\nopen f/f 5 3\nput f/d 700 3\nsynced-checkpoint\nunlink f/f\nwrite f/d 1 482 890\n\
        unlink f/d\nfsync 5\ncut";
    case(Fs::Btrfs, Io::Passthrough, list);
    case(Fs::Btrfs, Io::Daemon, list);
}

/// A removed file that was open over a takeover: the next worker looked for it in the tree.
#[test]
fn a_removed_file_that_was_open_over_a_takeover_is_forgotten() {
    case(
        Fs::Xfs,
        Io::Passthrough,
        "put e 5000 900\nopen e 3 1\nunlink e\nput b 20000 303\nkill-worker\nclose 3\nkill-worker",
    );
}

/// The kernel keeps a listing of `.snapshots` over a takeover: the next worker did not have it forget
/// that.
#[test]
fn a_listing_of_snapshots_from_before_a_takeover_is_forgotten() {
    let list = "put a 5 1\nlist-snapshots\nkill-worker\ncheckpoint\nlist-snapshots";
    case(Fs::Xfs, Io::Passthrough, list);
}

/// XFS gives the number of a removed directory to the next one. What was made in a new directory has
/// no record: where the directory had the number of the one before it, `diff` did not name it, and
/// `restore` left it there.
#[test]
fn a_directory_with_the_number_of_a_removed_one_is_named_with_all_it_has() {
    for io in [Io::Passthrough, Io::Daemon] {
        let list = "mkdir c 448\nsynced-checkpoint 1 19\nleave 6 19\nrmdir c\nrestore 1 6\nsymlink c/f 434\ncheck-diff 12 4\n\
            checkpoint\nrestore 0 3\ncheck-live 14 1";
        case(Fs::Xfs, io, list);
    }
}

/// A name in a directory that is younger than the checkpoint counted as one of the names that the
/// file had then: `diff` named the file at one of its two names only.
#[test]
fn a_name_in_a_new_directory_is_none_that_a_file_had_before() {
    let list = "put e 100 1\nlink e long\ncheckpoint\nrename long odd 0\nmkdir d 493\nrename odd d/e 0\nwrite e 1 50 298\n\
        check-status\ncheckpoint\ncheck-diff 0 1\nrestore 0\ncheck-live";
    case(Fs::Xfs, Io::Daemon, list);
}

/// The packs forgot the place of an inode that no record was of any more, and the index had it for
/// a moment longer: `verify` reported that an entry "should not be there".
#[test]
fn a_place_that_no_record_needs_is_no_damage() {
    let list = "checkpoint 0 13\ncheck-views\nunlink c\nfree rmdir 0 1\nmkdir d 493\nclose 3\nrename d f\ncheckpoint 3 9\n\
        checkpoint\nidle\nfree keep-last 0\nverify 1 0";
    for (fs, io) in [(Fs::Xfs, Io::Passthrough), (Fs::Btrfs, Io::Daemon)] {
        case(fs, io, list);
    }
}
