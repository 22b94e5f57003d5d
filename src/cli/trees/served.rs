//! A branch that is served, and its unmount.

use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::END_TIMEOUT;
use crate::control_socket::EndReason;
use crate::dead_mounts;
use crate::mount_users::{self, VisibleTree};
use crate::{detached, transient_users};
use ckptfs_api::{Code, VerbError, VerbResult};
use ckptfs_core::engine::Engine;
use ckptfs_core::engine::branches::UnmountMode;
use ckptfs_core::engine::place::TrackedMount;
use ckptfs_daemon::ServerHandle;
use ckptfs_sys::lock::{Condvar, Mutex};
use ckptfs_sys::{self as sys, Errno, MountPoint};
use ckptfs_ui::error::{hinted, io_error};
use ckptfs_ui::mounts;
use ckptfs_ui::output::escape;
use ckptfs_volumes::mount_facts;

/// Time in which an unmounted branch ends, unless a process has a file of it open.
const LEAVING: Duration = Duration::from_secs(1);

/// The engine of a branch, and the threads of its control socket.
pub(super) type BranchEngine = (Arc<Engine>, Arc<OnceLock<ServerHandle>>);

/// A branch that is served.
pub(super) struct ServedBranch {
    pub(super) name: String,
    /// `None` once its end has begun.
    pub(super) parts: Mutex<Option<BranchEngine>>,
    mount: Arc<TrackedMount>,
    /// The `abort` file of its FUSE connection, if found. It is opened while the connection exists,
    /// because the kernel reuses the number afterwards.
    abort: OnceLock<File>,
    /// Its engine is closed in the background: [`ckptfs_core::engine::branches::Host::leave`].
    pub(super) left: AtomicBool,
    stage: Mutex<EndStage>,
    changed: Condvar,
}

/// Progress of the end of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EndStage {
    Served,
    /// Its FUSE connection is gone.
    Gone,
    /// Its store is closed.
    Ended,
}

impl ServedBranch {
    /// Returns the state of a branch that `engine` serves; `minor`: the number of its FUSE
    /// connection.
    pub(super) fn new(name: &str, parts: BranchEngine, minor: Option<u32>) -> ServedBranch {
        let engine = &parts.0;
        let served = ServedBranch {
            name: name.to_owned(),
            mount: Arc::clone(engine.place().known_mount()),
            parts: Mutex::new(Some(parts)),
            abort: OnceLock::new(),
            left: AtomicBool::new(false),
            stage: Mutex::new(EndStage::Served),
            changed: Condvar::default(),
        };
        served.find_abort_file(minor);
        served
    }

    /// Returns the `abort` file, which the first call opens. Call only while the connection exists.
    fn find_abort_file(&self, minor: Option<u32>) -> Option<&File> {
        if self.abort.get().is_none() {
            match minor.ok_or(Errno::ENOENT).and_then(sys::fuse_abort_file) {
                Ok(file) => drop(self.abort.set(file)),
                Err(errno) => {
                    tracing::debug!(%errno, branch = self.name, "its connection cannot be aborted");
                }
            }
        }
        self.abort.get()
    }

    /// Aborts the connection: further calls fail with ENOTCONN. No effect if the connection is
    /// gone.
    pub(super) fn abort(&self) {
        let abort = self.abort.get().ok_or(Errno::ENOENT);
        let aborted = abort.and_then(|mut abort| Ok(abort.write_all(b"1")?));
        if let Err(errno) = aborted {
            tracing::warn!(%errno, branch = self.name, "the connection cannot be aborted: it is served until its last user has gone");
        }
    }

    /// Waits up to `limit` for a stage of its end. Returns whether it was reached.
    pub(super) fn wait(&self, stage: EndStage, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut at = self.stage.lock();
        while *at < stage {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut at, left);
        }
        true
    }

    pub(super) fn reach(&self, stage: EndStage) {
        *self.stage.lock() = stage;
        self.changed.notify_all();
    }

    /// Returns the time before its end is forced. If the end was requested, the connection is
    /// aborted: its users receive ENOTCONN.
    pub(super) fn pause_before(&self, end: &EndReason) -> Duration {
        if *end != EndReason::Asked {
            return Duration::ZERO;
        }
        self.abort();
        END_TIMEOUT
    }

    /// Returns its mount, if the table contains it.
    fn mount_in<'a>(&self, table: &'a [MountPoint]) -> Option<&'a MountPoint> {
        match self.mount.mounted_as() {
            Some(_) => self.mount.find(table),
            None => mounts::top(table, self.mount.at_start()).filter(|mount| mount.is_ours()),
        }
    }

    /// Waits for the end of an unmounted branch. Returns `false` if it is mounted.
    ///
    /// # Errors
    /// `branch-in-use`: it was unmounted lazily, and processes have files of it open.
    /// `daemon-busy`: it has not ended within [`END_TIMEOUT`].
    pub(super) fn wait_if_leaving(&self) -> VerbResult<bool> {
        // After its end has begun it has no mount and no users, and the kernel may reuse the
        // connection number and the device number.
        let is_connected = || self.parts.lock().is_some();
        if is_connected() && self.mount_in(&mounts::all()?).is_some() {
            return Ok(false);
        }
        let began = Instant::now();
        while began.elapsed() < END_TIMEOUT {
            if self.wait(EndStage::Ended, LEAVING) {
                return Ok(true);
            }
            let users = self
                .mount
                .mounted_as()
                .filter(|_| is_connected())
                .map(|known| detached::users(known, self.mount.at_start(), &[]).holders)
                .filter(|_| is_connected());
            if let Some(users) = users.filter(|users| !users.is_empty()) {
                let name = &self.name;
                let message = format!(
                    "the branch {name} was unmounted lazily and is still in use: {}",
                    mount_users::named(users.iter())
                );
                return Err(hinted(
                    Code::BranchInUse,
                    message,
                    "stop these processes first",
                ));
            }
        }
        Err(ending(&self.name))
    }

    /// Unmounts the branch, after a wait for processes that use it only briefly. Returns `false` if
    /// the mount was detached and ends with its last user.
    pub(super) fn unmount(&self, how: UnmountMode) -> VerbResult<bool> {
        let users = || {
            let table = mounts::all().unwrap_or_default();
            let own = self.mount_in(&table)?;
            let others = others(own, &table).unwrap_or_default();
            Some(
                VisibleTree::on_all(own, &others)
                    .users(&[], mount_users::THOROUGH)
                    .holders,
            )
        };
        transient_users::outlast(Code::BranchInUse, users, || self.try_unmount(how))
    }

    fn try_unmount(&self, how: UnmountMode) -> VerbResult<bool> {
        let table = mounts::all()?;
        let Some(own) = self.mount_in(&table) else {
            // Already unmounted, for example by umount(8).
            return Ok(true);
        };
        let (name, at, lazily) = (self.name.as_str(), &own.at, how != UnmountMode::Unused);
        let others = match how {
            UnmountMode::Lazy => Vec::new(),
            UnmountMode::Unused | UnmountMode::Forced => others(own, &table)?,
        };
        if how == UnmountMode::Unused {
            refuse_used(name, at, &others)?;
        }
        if how == UnmountMode::Forced
            && self
                .find_abort_file(Some(sys::device_minor(own.dev)))
                .is_none()
            && !others.is_empty()
        {
            return Err(not_to_be_ended(name));
        }
        match dead_mounts::unmount(at, false) {
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(Errno::EBUSY) if lazily => {
                if how == UnmountMode::Forced {
                    // After a detach, its path would show the directory below while the branch is
                    // still served.
                    if self.abort.get().is_none() {
                        return Err(not_to_be_ended(name));
                    }
                    self.abort();
                }
                dead_mounts::unmount(at, true)
                    .map_err(|cause| dead_mounts::unmount_error(at, cause))?;
                if how == UnmountMode::Lazy {
                    return Ok(false);
                }
            }
            Err(Errno::EBUSY) => {
                let message = format!("the branch {name} is in use, at {}", at.display());
                return Err(hinted(Code::BranchInUse, message, "leave it first"));
            }
            Err(cause) => return Err(dead_mounts::unmount_error(at, cause)),
        }
        if !others.is_empty() {
            // Copies of the mount would keep the connection alive.
            self.abort();
        }
        Ok(true)
    }
}

/// Returns the other mounts of the branch, each with a process that sees it: in a container, in a
/// copy of our mount namespace, or over the project's path for a command that runs in the branch.
fn others(own: &MountPoint, table: &[MountPoint]) -> VerbResult<Vec<(u32, MountPoint)>> {
    let other = |mount: &MountPoint| {
        mount.dev == own.dev
            && mount.source == own.source
            && !table.iter().any(|ours| ours.id == mount.id)
    };
    sys::mounts_of_others(own.dev, other).map_err(|cause| io_error("tables of mounts", cause))
}

/// Rejects an unmount while other mounts are in use. A copy alone is not a use: a new mount
/// namespace, as of `branch run`, copies all mounts.
///
/// # Errors
/// `branch-in-use`: it is also mounted at another path, or a process has a file of a copy open.
fn refuse_used(name: &str, at: &std::path::Path, others: &[(u32, MountPoint)]) -> VerbResult<()> {
    let used = |by: String| {
        let message = format!("the branch {name} is in use: {by}");
        hinted(Code::BranchInUse, message, "stop what is using it first")
    };
    let is_use =
        |(pid, mount): &&(u32, MountPoint)| !mount_facts::is_copy(at, true, *pid, &mount.at);
    if let Some((pid, mount)) = others.iter().find(is_use) {
        let place = escape(mount.at.as_os_str().as_bytes());
        return Err(used(format!("it is mounted at {place} of process {pid}")));
    }
    let Some((_, copy)) = others.first() else {
        return Ok(());
    };
    let users = VisibleTree::on_all(copy, others)
        .users(&[], mount_users::THOROUGH)
        .holders;
    match users.is_empty() {
        true => Ok(()),
        false => Err(used(mount_users::named(users.iter()))),
    }
}

/// Returns the error for a connection that cannot be aborted.
fn not_to_be_ended(name: &str) -> VerbError {
    hinted(
        Code::BranchInUse,
        format!("the branch {name} is in use, and its FUSE connection cannot be aborted"),
        "stop what is using it, or have root mount the FUSE control filesystem (fusectl)",
    )
}

pub(super) fn ending(name: &str) -> VerbError {
    hinted(
        Code::DaemonBusy,
        format!("the branch {name} is still being unmounted"),
        "something of it may still be open: try again later",
    )
}
