//! The Linux implementation: `O_PATH` descriptors, openat2, statx, FICLONE, FIEMAP, leases,
//! capabilities, mountinfo.
//!
//! Calls that do not accept an `O_PATH` descriptor go through the link `/proc/self/fd/N`. It leads
//! to the inode itself, including a symbolic link, and not to its name (proc_pid_fd(5)).

mod attr;
mod clock;
mod clone;
mod data;
mod dir;
mod handover;
mod mount;
mod namespace;
mod open;
mod probe;
mod process;
mod project;
mod requester_rights;
mod same;
mod submount;
mod watch;
mod xattr;

pub use attr::{
    chmod_fd, chown_fd, fs_name, link_fd, mknod_at, stat_at, stat_fd, statfs_fd, utimens_fd,
};
pub use clock::ClockWatch;
pub use clone::{can_share, clone_file, clone_head, clone_to, dedupe_range, make_alike};
pub use data::{
    copy_file_range, drop_cached, fallocate, finish_writeback, read_unlocked_at, start_writeback,
    syncfs, widen_pipe, write_in_place,
};
pub use dir::{list_dir, list_new_dir, read_dir};
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
pub use probe::{
    allocation, dirty_pages, dirty_pages_before, extent_map, lease_free, shares_extents,
    truncate_unshared,
};
pub use process::{
    awake, facts_of, has_our_rights, has_sys_admin, keep_no_large_blocks, own_memory, own_thread,
    peer_cred, process_facts, process_name, process_session, process_starttime, process_user,
    release_memory, runs_of_thread, runs_our_program, set_thread_idle, set_thread_io_idle,
    set_thread_normal, waits_of_thread,
};
pub use project::{give_no_project, rename_home};
pub use requester_rights::{act_as, act_for, give_up_set_id, may_administer, within_limits_of};
pub use same::same_ranges;
pub use submount::{attach_mount, copy_mount, copy_read_only, subvolumes_below, unmount_in};
pub use watch::{keep_descriptor, leave_descriptors, touch_at, watched};
pub use xattr::{
    all_xattrs, all_xattrs_at, getxattr, listxattr, remove_file_xattr, removexattr, set_file_xattr,
    setxattr,
};
