//! FUSE_INIT: negotiation with the kernel at the start of a session.

use std::time::Duration;

use fuser::{InitFlags, KernelConfig};

use ckptfs_core::engine::request::{NOTE_CAPABILITIES, NOTE_PROTOCOL};
use ckptfs_sys::Ledger;

/// Maximum size of a read or write request: the kernel's default limit of pages
/// (`fuse.max_pages_limit` is 256).
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Maximum number of background requests (readahead, releases) in flight; the kernel throttles at
/// three quarters.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

/// Capabilities requested from the kernel. Omitted on purpose:
/// - AUTO_INVAL_DATA: only the mount changes files, so only
///   [`Caches`](ckptfs_core::engine::request::Caches) invalidates;
/// - WRITEBACK_CACHE: its dirty pages are lost with the daemon, and it excludes passthrough;
/// - POSIX_LOCKS, FLOCK_LOCKS: without them the kernel manages locks itself;
/// - NO_OPEN_SUPPORT: the engine needs every open of a file;
/// - SETXATTR_EXT, SECURITY_CTX, CREATE_SUPP_GROUP, ALLOW_IDMAP, OVER_IO_URING: `fuser` 0.18.0
///   accepts them without support.
///
/// DONT_MASK with POSIX_ACL: the mode arrives unmasked, together with the umask, because a default
/// ACL replaces the umask. HANDLE_KILLPRIV_V2: the engine clears set-id bits, so the kernel does
/// not request `security.capability` before each write. NO_EXPORT_SUPPORT: a file handle
/// (name_to_handle_at(2), NFS) must resolve after the inode has left all caches, which a node ID
/// alone cannot do. Without this flag, handles become ESTALE as soon as the kernel drops the inode.
/// fanotify(7) can identify inodes nevertheless. DIRECT_IO_ALLOW_MMAP: a file opened with
/// FOPEN_DIRECT_IO can be mapped like any other.
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

/// Negotiated capabilities that not every kernel has.
#[derive(Clone, Copy, Default)]
pub struct NegotiatedFeatures {
    /// The kernel performs file I/O.
    pub passthrough: bool,
    /// The kernel opens directories without a request after the first ENOSYS.
    pub dirs_unasked: bool,
}

/// Negotiates the capabilities, and records them for the successor. `passthrough` requests
/// passthrough.
pub fn greet(
    config: &mut KernelConfig,
    passthrough: bool,
    ledger: Option<&Ledger>,
) -> NegotiatedFeatures {
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
    // The setters replace an invalid value by the nearest valid one.
    let _ = config.set_max_write(TRANSFER_BYTES_MAX);
    let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
    let _ = config.set_time_granularity(Duration::from_nanos(1));
    tracing::debug!(offered = ?offered, passthrough, "the kernel's greeting");
    if let Some(ledger) = ledger {
        let fuser::Version(major, minor) = config.kernel_abi();
        ledger.note(NOTE_CAPABILITIES, config.capabilities().bits());
        ledger.note(NOTE_PROTOCOL, u64::from(major) << 32 | u64::from(minor));
    }
    NegotiatedFeatures {
        passthrough,
        dirs_unasked: offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT),
    }
}
