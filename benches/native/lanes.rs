//! The columns: the same directory tree accessed in several ways, all on one image at the same
//! time.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags};
use serde::Serialize;

use crate::common::mount::minor_of;
use crate::common::{Image, Io, Mount, MountOpts};
use crate::floor::Floor;
use ckptfs_api::{CheckpointOptions, Client, Delete, STORE_NAME, StateName};

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// A directory of the filesystem itself.
    Plain,
    /// The same, with a reflink of the written file made before: the filesystem's own cost of a
    /// first change.
    Cloned,
    /// ckptfs with passthrough, without a checkpoint.
    Passthrough,
    /// ckptfs with passthrough, and a checkpoint made before each run that changes something.
    Checkpointed,
    /// ckptfs with daemon I/O, without a checkpoint.
    Daemon,
    /// libfuse's `passthrough_ll` with one thread.
    FloorOne,
    /// The same with many threads.
    FloorMany,
    /// bindfs.
    Bindfs,
    /// Our adapter over a tree in memory.
    Null,
}

impl Column {
    pub const ALL: [(&str, Column); 9] = [
        ("plain", Column::Plain),
        ("cloned", Column::Cloned),
        ("passthrough", Column::Passthrough),
        ("checkpointed", Column::Checkpointed),
        ("daemon", Column::Daemon),
        ("floor-one", Column::FloorOne),
        ("floor-many", Column::FloorMany),
        ("bindfs", Column::Bindfs),
        ("null", Column::Null),
    ];

    pub fn name(self) -> &'static str {
        Column::ALL
            .iter()
            .find(|(_, column)| *column == self)
            .expect("every column is listed")
            .0
    }

    /// Returns the column's head in a table.
    pub fn title(self) -> &'static str {
        match self {
            Column::Plain => "plain",
            Column::Cloned => "plain, reflinked before",
            Column::Passthrough => "passthrough",
            Column::Checkpointed => "after a checkpoint",
            Column::Daemon => "daemon",
            Column::FloorOne | Column::FloorMany => "floor",
            Column::Bindfs => "bindfs",
            Column::Null => "null",
        }
    }

    pub fn is_floor(self) -> bool {
        matches!(self, Column::FloorOne | Column::FloorMany)
    }
}

/// Longer than a whole run. The runner's watchdog ends a step that hangs.
const MOUNT_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// One column on one image.
pub struct Lane {
    pub column: Column,
    root: PathBuf,
    mount: Option<Mount>,
    floor: Option<Floor>,
    held: RefCell<Option<String>>,
}

impl Lane {
    /// Mounts the filesystem of the column; `floor` is the built `passthrough_ll`.
    pub fn new(image: &Image, column: Column, floor: Option<&Path>) -> Lane {
        let root = image.dir(column.name());
        let point = image.dir(&format!("{}-mount", column.name()));
        let theirs = |one| {
            Some(Floor::passthrough_ll(
                floor.expect("the floor was built"),
                &root,
                &point,
                one,
            ))
        };
        let floor = match column {
            Column::Plain | Column::Cloned => None,
            Column::Passthrough | Column::Checkpointed | Column::Daemon => {
                return Lane::over(&root, column);
            }
            Column::FloorOne => theirs(true),
            Column::FloorMany => theirs(false),
            Column::Bindfs => Some(Floor::bindfs(&root, &point)),
            Column::Null => Some(Floor::null(&point)),
        };
        let root = if floor.is_some() { point } else { root };
        Lane {
            column,
            root,
            mount: None,
            floor,
            held: RefCell::new(None),
        }
    }

    /// Mounts ckptfs in place, in the I/O mode of this column.
    pub fn over(dir: &Path, column: Column) -> Lane {
        let io = if column == Column::Daemon {
            Io::Daemon
        } else {
            Io::Passthrough
        };
        let mount = Mount::start(
            dir,
            &MountOpts {
                limit: MOUNT_LIMIT,
                ..MountOpts::new(io)
            },
        );
        assert_eq!(
            mount.status_json()["io"],
            io.name(),
            "the mount uses another I/O path than requested"
        );
        Lane {
            column,
            root: dir.to_owned(),
            mount: Some(mount),
            floor: None,
            held: RefCell::new(None),
        }
    }

    /// Returns the directory for the work.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the process id of the daemon that serves it.
    pub fn daemon(&self) -> Option<u32> {
        self.mount
            .as_ref()
            .map(Mount::pid)
            .or_else(|| self.floor.as_ref().map(Floor::pid))
    }

    /// Returns the device number that identifies its FUSE connection.
    pub fn minor(&self) -> Option<u32> {
        self.daemon().and_then(|_| minor_of(&self.root))
    }

    /// Connects to the ckptfs daemon.
    pub fn client(&self) -> Client {
        let store = rustix::fs::openat(
            CWD,
            self.root.join(STORE_NAME),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        Client::connect(store.expect("the mount leads to its store")).expect("the daemon listens")
    }

    /// Makes a checkpoint and keeps it until [`Lane::let_go`].
    pub fn hold(&self) {
        let made = self
            .client()
            .ask(CheckpointOptions::default())
            .unwrap_or_else(|error| panic!("checkpoint failed: {error}"));
        let before = self.held.replace(Some(made.id.to_string()));
        assert!(before.is_none(), "one checkpoint at a time");
    }

    /// Returns the current checkpoint.
    pub fn held(&self) -> String {
        self.held.borrow().clone().expect("a checkpoint exists")
    }

    /// Deletes the current checkpoint, if any, so that the history stays short.
    pub fn let_go(&self) {
        if let Some(id) = self.held.take() {
            self.client()
                .ask(Delete {
                    state: StateName(id),
                    now: false,
                })
                .unwrap_or_else(|error| panic!("a checkpoint cannot be deleted: {error}"));
        }
    }
}
