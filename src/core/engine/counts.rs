//! Number of kernel requests by kind since the session began.
//!
//! It depends on the operations and on the kernel's caching, not on the machine; `tests/it/counts`
//! checks it. The cost is one relaxed addition per request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! request_kinds {
    ($($kind:ident $name:literal,)*) => {
        /// A kind of request, named as in the FUSE protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum RequestKind {
            $($kind,)*
        }

        impl RequestKind {
            /// All kinds.
            pub const ALL: [RequestKind; [$($name),*].len()] = [$(RequestKind::$kind),*];

            /// Returns the FUSE opcode in lower case.
            pub fn name(self) -> &'static str {
                match self {
                    $(RequestKind::$kind => $name,)*
                }
            }
        }
    };
}

request_kinds! {
    Lookup "lookup",
    Forget "forget",
    Getattr "getattr",
    Setattr "setattr",
    Readlink "readlink",
    Symlink "symlink",
    Mknod "mknod",
    Mkdir "mkdir",
    Unlink "unlink",
    Rmdir "rmdir",
    Rename "rename",
    Link "link",
    Open "open",
    Create "create",
    Read "read",
    Write "write",
    Flush "flush",
    Release "release",
    Fsync "fsync",
    Opendir "opendir",
    Readdir "readdir",
    Readdirplus "readdirplus",
    Releasedir "releasedir",
    Fsyncdir "fsyncdir",
    Statfs "statfs",
    Setxattr "setxattr",
    Getxattr "getxattr",
    Listxattr "listxattr",
    Removexattr "removexattr",
    Access "access",
    Fallocate "fallocate",
    Lseek "lseek",
    CopyFileRange "copy_file_range",
    Ioctl "ioctl",
    Bmap "bmap",
    Poll "poll",
    Destroy "destroy",
}

/// The counters.
#[derive(Debug)]
pub struct RequestCounts {
    counters: [AtomicU64; RequestKind::ALL.len()],
}

impl Default for RequestCounts {
    fn default() -> Self {
        Self {
            counters: [const { AtomicU64::new(0) }; RequestKind::ALL.len()],
        }
    }
}

impl RequestCounts {
    /// Counts a request. A FORGET counts once per inode, because the kernel batches them
    /// arbitrarily.
    pub fn count(&self, kind: RequestKind) {
        if let Some(counter) = self.counters.get(kind as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of modifying requests, including failed ones.
    pub fn changes(&self) -> u64 {
        use RequestKind::{
            CopyFileRange, Create, Fallocate, Link, Mkdir, Mknod, Removexattr, Rename, Rmdir,
            Setattr, Setxattr, Symlink, Unlink, Write,
        };
        let names = [Create, Link, Mkdir, Mknod, Rename, Rmdir, Symlink, Unlink];
        let others = [
            CopyFileRange,
            Fallocate,
            Removexattr,
            Setattr,
            Setxattr,
            Write,
        ];
        let kinds = names.into_iter().chain(others);
        kinds
            .filter_map(|kind| self.counters.get(kind as usize))
            .map(|counter| counter.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    /// Returns the count of every kind by name, zeros included.
    pub fn by_kind(&self) -> BTreeMap<String, u64> {
        let count = |kind: RequestKind| {
            self.counters
                .get(kind as usize)
                .map_or(0, |counter| counter.load(Ordering::Relaxed))
        };
        RequestKind::ALL
            .iter()
            .map(|&kind| (kind.name().to_owned(), count(kind)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_counter_and_name() {
        let counts = RequestCounts::default();
        for (times, kind) in RequestKind::ALL.into_iter().enumerate() {
            for _ in 0..times {
                counts.count(kind);
            }
        }
        let by_kind = counts.by_kind();
        assert_eq!(by_kind.len(), RequestKind::ALL.len());
        for (times, kind) in RequestKind::ALL.into_iter().enumerate() {
            assert_eq!(
                by_kind.get(kind.name()),
                Some(&(times as u64)),
                "{}",
                kind.name()
            );
        }
    }
}
