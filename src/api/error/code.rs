//! Error codes, by which programs distinguish failures.

use serde::{Deserialize, Serialize};

use ckptfs_sys::Errno;

macro_rules! codes {
    ($($errno:ident: $($code:ident),*;)*) => {
        /// Kind of failure; in kebab-case on the socket and in JSON, as `unknown-checkpoint`.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[expect(missing_docs, reason = "docs/cli.md says what they mean")]
        pub enum Code {
            $($($code,)*)*
            /// A code of another version.
            #[serde(untagged)]
            Unknown(String),
        }

        impl Code {
            /// Returns the errno for the kernel.
            pub fn errno(&self) -> Errno {
                match self {
                    $($(Code::$code)|* => Errno::$errno,)*
                    Code::Unknown(_) => Errno::EIO,
                }
            }
        }
    };
}

// Grouped by the errno of a failed call in `.snapshots` or `.branches`.
codes! {
    ENOENT: UnknownCheckpoint, UnknownBranch;
    EINVAL: BadTag, BadName;
    EEXIST: TagTaken, BranchExists, NotEmpty;
    ENOSPC: NoSpace;
    EPERM: Pinned, Held;
    EBUSY: Busy, BranchInUse, DaemonBusy;
    EXDEV: OtherFilesystem;
    EDQUOT: TooManyBranches;
    EACCES: NoPermission;
    EROFS: ReadOnly;
    EIO:
        // Mounts and daemons.
        NotMounted, StaleMount, AlreadyMounted, BadMountpoint, BadStore, StoreElsewhere,
        NotAStore, NewerFormat, WrongTree, InUse, Covered, Unfinished, MountFailed,
        NoFuse, NoPassthrough, NoReflink, SameProject,
        // Names of objects.
        UnknownPath, UnknownTag, UnknownUser, UnknownProcess, UnknownOperation,
        UnknownRun, Ambiguous, AmbiguousProcess, NotExact, NotFound, NotADirectory,
        NotAFile, IsLink,
        // Arguments and configuration.
        Usage, BadConfig, UnknownKey, BadValue, BadTime, BadProcess, BadNote, BadHook,
        BadHooks, BadDestination, BadDirectory, BadRange, NoTerminal, NoDirectory,
        // Operations.
        Freed, Dropped, TooFar, Undone, AskedFor, BurstSince, TooManyNames, Cancelled,
        HookFailed, NotAsSaid, Outdated, TestAborted, Incomplete, NoNamespace, NoOverlay,
        // Volumes and their tools.
        NoSuchVolume, VolumeExists, SnapshotExists, UnknownOption, BadOption,
        BadPath, BadVolume, BadRequest, NoImage, NotASocket, NotStaged, OtherMount,
        ToolMissing, ToolFailed,
        // Branches.
        BadBranch, IsBranch,
        // Remotes.
        UnknownRemote, RemoteExists, RemoteFailed, BadRemote, BadPassword,
        // The filesystem, the store and the index.
        IndexFailed, Io,
        // Daemon and client.
        DaemonLost, Lost, Protocol, ProtocolVersion, TooLarge,
        TooManyConnections, Internal;
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_written_as_it_is_told_also_one_of_another_version() {
        for (code, text) in [
            (Code::UnknownCheckpoint, "unknown-checkpoint"),
            (Code::Io, "io"),
            (Code::NotAStore, "not-a-store"),
            (Code::Unknown("of-tomorrow".into()), "of-tomorrow"),
        ] {
            let json = serde_json::to_string(&code).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Code>(&json).unwrap(), code);
            assert_eq!(code.to_string(), text);
        }
    }
}
