//! What is agreed with the kernel when a session begins.

use std::time::Duration;

use fuser::{InitFlags, KernelConfig};

use crate::engine::request::{NOTE_CAPABILITIES, NOTE_PROTOCOL};
use crate::sys::Ledger;

/// The largest read or write in one request. The kernel has no more pages for one by default
/// (`fuse.max_pages_limit` is 256).
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Requests that nobody waits for (readahead, releases) and that the kernel may have under way at
/// once; it slows down at three quarters.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

/// What is asked of the kernel, where it can. Left out on purpose:
/// - AUTO_INVAL_DATA: nothing changes behind the mount, caches are dropped by
///   [`Caches`](crate::engine::request::Caches) only;
/// - WRITEBACK_CACHE: its dirty pages die with the daemon, and it excludes passthrough;
/// - POSIX_LOCKS, FLOCK_LOCKS: without them the kernel keeps locks itself;
/// - NO_OPEN_SUPPORT: every open of a file is wanted;
/// - SETXATTR_EXT, SECURITY_CTX, CREATE_SUPP_GROUP, ALLOW_IDMAP, OVER_IO_URING: `fuser` 0.18.0
///   accepts them and does not serve them.
///
/// DONT_MASK with POSIX_ACL: the mode comes as asked for, with the umask beside it, because a
/// default ACL takes the umask's place. HANDLE_KILLPRIV_V2: the engine clears set-id bits, so the
/// kernel need not ask for `security.capability` before each write. NO_EXPORT_SUPPORT: a handle
/// (name_to_handle_at(2), NFS) must lead to an inode that everybody has forgotten, and a number
/// alone does not; without this the kernel hands out handles that are ESTALE as soon as it has
/// dropped the inode. fanotify(7) can identify inodes all the same. DIRECT_IO_ALLOW_MMAP: a file
/// opened with FOPEN_DIRECT_IO can be mapped like any other.
const WANTED: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_ATOMIC_O_TRUNC)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_NO_OPENDIR_SUPPORT)
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_NO_EXPORT_SUPPORT)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);

/// What the kernel can do that not every kernel can.
#[derive(Clone, Copy, Default)]
pub struct Agreed {
    /// It does the I/O of files.
    pub passthrough: bool,
    /// It opens directories without asking once it was told to.
    pub dirs_unasked: bool,
}

/// Answers the kernel's greeting, and notes it for the next worker. `passthrough`: that is wanted.
pub fn greet(config: &mut KernelConfig, passthrough: bool, ledger: Option<&Ledger>) -> Agreed {
    let offered = if cfg!(target_os = "linux") {
        config.capabilities()
    } else {
        InitFlags::empty()
    };
    let passthrough = passthrough
        && offered.contains(InitFlags::FUSE_PASSTHROUGH)
        && config.set_max_stack_depth(1).is_ok();
    let wanted = if passthrough {
        WANTED | InitFlags::FUSE_PASSTHROUGH
    } else {
        WANTED
    };
    let refused = config.add_capabilities(wanted & offered).err();
    debug_assert!(refused.is_none(), "the kernel offers what it refuses");
    // The setters answer a value out of range with the nearest one that they take.
    let _ = config.set_max_write(TRANSFER_BYTES_MAX);
    let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
    let _ = config.set_time_granularity(Duration::from_nanos(1));
    tracing::debug!(offered = ?offered, passthrough, "the kernel's greeting");
    if let Some(ledger) = ledger {
        let fuser::Version(major, minor) = config.kernel_abi();
        ledger.note(NOTE_CAPABILITIES, config.capabilities().bits());
        ledger.note(NOTE_PROTOCOL, u64::from(major) << 32 | u64::from(minor));
    }
    Agreed {
        passthrough,
        dirs_unasked: offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT),
    }
}
