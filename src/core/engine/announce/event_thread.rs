//! The event thread: operates on our own mount, so that the kernel generates inotify events.
//!
//! All code here runs in a thread with a descriptor table of its own ([`sys::leave_descriptors`]).
//! It must neither use nor close a descriptor of the daemon: it uses those that it opened itself,
//! and only reads the announcer's memory.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::answers::{NOBODY, UNKNOWN};
use super::{Announcement, Announcer, DirAnnouncements, EventKind, Mounted};
use ckptfs_store::ids::Slot;
use ckptfs_sys::host::open_dir_path;
use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind, RenameMode, SysResult};

/// Limit of attempts at a step. Other processes keep looking up the name, so that the kernel caches
/// it again after each invalidation.
const ATTEMPTS_MAX: u32 = 20;

/// Executes the steps in a new thread, and waits for it.
pub(super) fn speak(announcer: &Announcer, mounted: &Mounted, all: &[DirAnnouncements]) {
    std::thread::scope(|scope| {
        let event_thread = std::thread::Builder::new()
            .name("announcer-events".into())
            .spawn_scoped(scope, || {
                let _end = End(announcer);
                let spoken = sys::leave_descriptors()
                    .and_then(|()| EventThread { announcer }.speak(mounted, all));
                if let Err(errno) = spoken {
                    tracing::debug!(%errno, "a restore is not announced, or in part");
                }
            });
        if let Err(error) = event_thread {
            tracing::warn!(%error, "a restore is not announced");
        }
    });
}

/// Resets the state of the announcer when the event thread ends, for whatever reason.
struct End<'a>(&'a Announcer);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.event_thread.store(NOBODY, Ordering::Release);
        self.0.expect_nothing();
    }
}

struct EventThread<'a> {
    announcer: &'a Announcer,
}

impl EventThread<'_> {
    fn speak(&self, mounted: &Mounted, all: &[DirAnnouncements]) -> SysResult<()> {
        let root = open_dir_path(&mounted.serving.place.mount())?;
        if sys::stat_fd(&root)?.dev != mounted.device {
            // Unmounted, covered, or not reachable from here.
            return Err(Errno::ENODEV);
        }
        self.make_known(&root)?;
        // Without a writable `.snapshots`, replacements are not announced; all other events are.
        let aliases = sys::open_beneath(&root, mounted.serving.snapdir_name(), OpenKind::Path).ok();
        for told in all {
            let dir = if told.path.is_empty() {
                None
            } else {
                Some(sys::open_beneath(&root, &told.path, OpenKind::Path))
            };
            let dir = match &dir {
                None => &root,
                Some(Ok(dir)) => dir,
                Some(Err(errno)) if is_over(*errno) => return Err(*errno),
                // It was removed or renamed.
                Some(Err(_)) => continue,
            };
            if sys::stat_fd(dir)?.ino != told.dir.0 {
                continue;
            }
            for step in &told.steps {
                if self.announcer.is_hushed() {
                    return Ok(());
                }
                self.take(dir, aliases.as_ref(), step)?;
            }
        }
        Ok(())
    }

    /// Looks up a secret name. The caller of that request is the event thread.
    fn make_known(&self, root: &OwnedFd) -> SysResult<()> {
        let hello = Announcement {
            dir: Slot::ROOT,
            name: super::secret_name(),
            node: None,
            what: EventKind::Hello,
        };
        self.announcer.expect(&hello);
        self.announcer
            .event_thread
            .store(UNKNOWN, Ordering::Release);
        let looked = self.act(root, None, &hello).err();
        self.announcer.expect_nothing();
        match (looked, self.announcer.event_thread.load(Ordering::Acquire)) {
            // The kernel reports no pid: this process is in another PID namespace.
            (_, UNKNOWN) => Err(Errno::EPERM),
            (Some(Errno::ENOENT), _) => Ok(()),
            (looked, _) => Err(looked.unwrap_or(Errno::EEXIST)),
        }
    }

    /// Executes one step. A cached dentry, even a negative one, can keep the kernel from sending
    /// the request. The name is then invalidated, and the step is retried.
    ///
    /// # Errors
    /// The mount no longer exists.
    fn take(&self, dir: &OwnedFd, aliases: Option<&OwnedFd>, step: &Announcement) -> SysResult<()> {
        let name = step.name.as_bytes();
        let mut result = Ok(());
        for attempt in 0..ATTEMPTS_MAX {
            self.announcer.expect(step);
            if attempt > 0 {
                // mkdir(2) needs a missing name, so the kernel looks it up whatever it has cached,
                // and finds the dummy inode.
                let there = sys::mkdir_at(dir, name, 0o700);
                debug_assert!(there.is_err(), "what goes is not made");
                self.announcer.expect(step);
            }
            result = self.act(dir, aliases, step);
            if self.announcer.expect_nothing() || !matches!(step.what, EventKind::Gone { .. }) {
                break;
            }
        }
        match result {
            Err(errno) if is_over(errno) => return Err(errno),
            Err(errno) => tracing::debug!(?step, %errno, "a change is not announced"),
            Ok(()) => {}
        }
        // The dentry now leads to a dummy inode, or is negative after its removal. A stat restores
        // the real one.
        if matches!(
            step.what,
            EventKind::Gone { .. } | EventKind::Come(_) | EventKind::Written | EventKind::Replaced
        ) {
            let _ = sys::stat_at(dir, name);
        }
        Ok(())
    }

    /// Executes the operation that generates the event.
    fn act(&self, dir: &OwnedFd, aliases: Option<&OwnedFd>, step: &Announcement) -> SysResult<()> {
        let name = step.name.as_bytes();
        match step.what {
            EventKind::Gone { dir: true, .. } => sys::rmdir_at(dir, name),
            EventKind::Gone { dir: false, .. } => sys::unlink_at(dir, name),
            EventKind::Come(Kind::Dir) => sys::mkdir_at(dir, name, 0o700),
            EventKind::Come(Kind::File) => {
                sys::create_file_at(dir, name, Access::WRITE, 0o600).map(drop)
            }
            EventKind::Come(_) => sys::mknod_at(dir, name, Kind::File, 0o600, 0),
            EventKind::Written => sys::open_file_at(
                dir,
                name,
                Access {
                    truncate: true,
                    ..Access::WRITE
                },
            )
            .map(drop),
            EventKind::Replaced => {
                let aliases = aliases.ok_or(Errno::ENOENT)?;
                sys::rename_at(
                    aliases,
                    self.announcer.alias.as_bytes(),
                    dir,
                    name,
                    RenameMode::Replace,
                )
            }
            EventKind::Content => sys::touch_at(dir, name, true),
            EventKind::Attributes => sys::touch_at(dir, name, false),
            EventKind::Dead | EventKind::Hello => sys::stat_at(dir, name).map(drop),
        }
    }
}

/// Returns whether an error means that the mount no longer exists.
fn is_over(errno: Errno) -> bool {
    matches!(errno, Errno::ENOTCONN | Errno::ECONNABORTED | Errno::ENODEV)
}
