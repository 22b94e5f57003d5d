//! The macOS implementation: `O_SYMLINK` descriptors, F_GETPATH, fclonefileat, getfsstat.
//! Type-checked, never run (tests/check-macos.sh).
//!
//! macOS has no `O_PATH`. A descriptor that names an inode is open for reading, so it requires read
//! permission, and works with every f*() call. Linux-only features return ENOSYS or EOPNOTSUPP.

mod attr;
mod data;
mod handover;
mod mount;
mod namespace;
mod open;
mod process;
mod project;
mod submount;
mod watch;
mod xattr;

pub use attr::{
    chmod_fd, chown_fd, fs_name, link_fd, list_dir, list_new_dir, mknod_at, read_dir, stat_at,
    stat_fd, statfs_fd, utimens_fd,
};
pub use data::{
    allocation, can_share, clone_file, clone_head, clone_to, copy_file_range, dedupe_range,
    dirty_pages, dirty_pages_before, drop_cached, extent_map, fallocate, finish_writeback,
    lease_free, read_unlocked_at, same_ranges, shares_extents, start_writeback, syncfs,
    truncate_unshared, widen_pipe, write_in_place,
};
pub use handover::{
    SharedWords, Signals, backing_close, is_in_error, message_pair, receive_message,
    replace_descriptor, send_message, wait_readable, wrap_number,
};
pub use mount::{
    device_at, fuse_abort_file, fusermount_unmount, mount_of, mount_points_on, mounts,
    mounts_of_all, mounts_of_others, unmount,
};
pub use namespace::{mount_bind, mount_overlay, mount_scratch, private_mounts};
pub(super) use open::{WHITEOUT, after_open, open_flags};
pub use open::{create_file_at, open_beneath, open_path_at, path_of, reopen, unnamed_file};
pub use process::{
    ClockWatch, act_as, act_for, awake, facts_of, give_up_set_id, has_our_rights, has_sys_admin,
    keep_no_large_blocks, may_administer, own_memory, own_thread, peer_cred, process_facts,
    process_name, process_session, process_starttime, process_user, release_memory, runs_of_thread,
    runs_our_program, set_thread_idle, set_thread_io_idle, set_thread_normal, waits_of_thread,
    within_limits_of,
};
pub use project::{give_no_project, make_alike, rename_home};
pub use submount::{attach_mount, copy_mount, copy_read_only, subvolumes_below, unmount_in};
pub use watch::{keep_descriptor, leave_descriptors, touch_at, watched};
pub use xattr::{
    all_xattrs, all_xattrs_at, getxattr, listxattr, remove_file_xattr, removexattr, set_file_xattr,
    setxattr,
};
