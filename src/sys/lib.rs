//! The system call layer: the only layer that names `libc` and `rustix`, and the only one with
//! `unsafe` code.
//!
//! Every call works on descriptors and single names (the *at() calls), never on absolute paths, for
//! two reasons. A name that another process replaces by a symbolic link cannot lead out of the
//! backing directory. And the daemon never resolves a path below its own mount, where it would wait
//! for itself.
//!
//! **Invariants.** No call follows a symbolic link in the last component, unless its documentation
//! states it. No open blocks on a FIFO or a device. Every descriptor is close-on-exec. Calls
//! interrupted by a signal are retried. A name is one component of 1 to 255 bytes without `/` and
//! NUL, and is never `..`.
//!
//! **Errors.** Each call returns the kernel's errno unchanged ([`Errno`]), except that macOS's two
//! values for "not supported" become one. A call that the system lacks returns `ENOSYS` or
//! `EOPNOTSUPP`.
//!
//! **Locking.** This layer has no locks and no state except in [`tasks`]; every function may be
//! called from any thread. ([`lock`] defines the locks of the layers above and their order.)
//! Functions that affect only the calling thread ([`set_thread_idle`], [`give_up_set_id`],
//! [`act_for`], [`act_as`], [`within_limits_of`]) or the whole process ([`umask0`],
//! `block_terminate`) are documented as such.
//!
//! Code shared by the systems is in this directory. `linux/` and `macos/` are two modules with the
//! same functions.

// Some functions have users on Linux only.
#![cfg_attr(not(target_os = "linux"), allow(dead_code, unused_imports))]

mod args;
mod copy;
mod data;
mod descriptor_passing;
pub mod fault;
mod file;
pub mod host;
mod inherited_limits;
pub mod last_eio;
mod ledger;
pub mod lock;
mod mounted;
mod name;
mod path;
mod process;
mod signal;
pub mod tasks;
mod throttle;
mod types;
mod users;
pub mod wait;

#[cfg(target_os = "linux")]
#[path = "linux/mod.rs"]
mod os;
#[cfg(target_os = "macos")]
#[path = "macos/mod.rs"]
mod os;

#[cfg(test)]
mod tests;

/// Flags of open(2) and access(2) as the kernel passes them: values of this architecture.
#[allow(missing_docs)]
pub mod open_flags {
    pub const ACCMODE: i32 = libc::O_ACCMODE;
    pub const RDONLY: i32 = libc::O_RDONLY;
    pub const WRONLY: i32 = libc::O_WRONLY;
    pub const APPEND: i32 = libc::O_APPEND;
    pub const TRUNC: i32 = libc::O_TRUNC;
    pub const SYNC: i32 = libc::O_SYNC;
    pub const DSYNC: i32 = libc::O_DSYNC;
    #[cfg(target_os = "linux")]
    pub const NOATIME: i32 = libc::O_NOATIME;
    #[cfg(not(target_os = "linux"))]
    pub const NOATIME: i32 = 0;
    pub const W_OK: i32 = libc::W_OK;
}

pub use args::{
    Access, DirEntry, FsInfo, MountPoint, OpenKind, RenameMode, SetTime, Watched, XattrMode,
};
pub use copy::{copy_apart, copy_data};
pub use data::{
    fdatasync, flock_exclusive, fsync, read_at, read_full_at, seek_data, seek_hole, truncate,
    write_all_at, write_at_once,
};
pub use descriptor_passing::{
    FILES_AT_ONCE, is_peer_gone, is_unread, peek, receive_files, send_files, shutdown,
};
pub use file::{file_xattrs, set_file_mode, set_file_owner, set_file_times};
pub use inherited_limits::{shed_limits, shed_priority};
pub use ledger::{Ledger, ROW_WORDS, RowId};
pub use mounted::{is_trusted, mount_source, topmost_mount};
pub use name::{
    NAME_LEN_MAX, OWN_XATTR_PREFIX, XATTR_LEN_MAX, device_major, device_minor, is_own_xattr,
    make_device,
};
pub use os::{
    ClockWatch, Signals, act_as, act_for, all_xattrs, all_xattrs_at, allocation, attach_mount,
    awake, backing_close, can_share, chmod_fd, chown_fd, clone_file, clone_head, clone_to,
    copy_file_range, copy_mount, copy_read_only, create_file_at, dedupe_range, device_at,
    dirty_pages, dirty_pages_before, drop_cached, extent_map, facts_of, fallocate,
    finish_writeback, fs_name, fuse_abort_file, fusermount_unmount, getxattr, give_no_project,
    give_up_set_id, has_our_rights, has_sys_admin, is_in_error, keep_descriptor,
    keep_no_large_blocks, lease_free, leave_descriptors, link_fd, list_dir, list_new_dir,
    listxattr, make_alike, may_administer, message_pair, mknod_at, mount_bind, mount_of,
    mount_overlay, mount_points_on, mount_scratch, mounts, mounts_of_all, mounts_of_others,
    open_beneath, open_path_at, own_memory, own_thread, path_of, peer_cred, private_mounts,
    process_facts, process_name, process_session, process_starttime, process_user, read_dir,
    read_unlocked_at, receive_message, release_memory, remove_file_xattr, removexattr, rename_home,
    reopen, replace_descriptor, runs_of_thread, runs_our_program, same_ranges, send_message,
    set_file_xattr, set_thread_idle, set_thread_io_idle, set_thread_normal, setxattr,
    shares_extents, start_writeback, stat_at, stat_fd, statfs_fd, subvolumes_below, syncfs,
    touch_at, truncate_unshared, unmount, unmount_in, unnamed_file, utimens_fd, wait_readable,
    waits_of_thread, watched, widen_pipe, within_limits_of, wrap_number, write_in_place,
};
pub use path::{
    link_at, mkdir_at, open_dir_at, open_file_at, open_root, readlink_at, readlink_fd, rename_at,
    replace_file, rmdir_at, symlink_at, unlink_at,
};
pub use process::{
    clock_ahead_ns, ids, inherited, kill, kill_group, limit_memory, name_process, nofile, now,
    own_user, process_group, raise_nofile, setsid, stamp_now, terminal_rows, umask0, wait_for_tick,
};
pub use signal::{
    end_with_us, on_terminate, pass_signals_on, start_unblocked, start_without_signals, wait_ended,
    wait_terminate,
};
pub use throttle::ThrottledUnlink;
pub use types::{
    Allocation, Errno, ExtentMap, Kind, PhysicalRange, ProcessFacts, Protection, RequesterIds,
    Stat, SysResult, Time, Xattrs,
};
pub use users::user_id;
