//! The voice: operations on our own mount, for the events that the kernel makes of them.
//!
//! Everything here runs in a thread that has left the daemon's descriptors ([`sys::leave_descriptors`]): it must not use or drop one of theirs, so
//! it works with what it opened itself, and only reads memory of the announcer.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::answers::{NOBODY, UNKNOWN};
use super::{Announcer, Mounted, Step, Told, What};
use crate::store::ids::{Name, Slot};
use crate::sys::host::open_dir_path;
use crate::sys::{self, Errno, Kind, Open, OpenKind, SysResult};

/// Takes the steps; gives back those for which the kernel did not ask us, because it remembered what is at the name, and those that follow from
/// them.
pub(super) fn speak(announcer: &Announcer, mounted: &Mounted, all: &[Told]) -> Vec<Told> {
    std::thread::scope(|scope| {
        let voice = std::thread::Builder::new().name("announcer-voice".into()).spawn_scoped(scope, || {
            let _end = End(announcer);
            if let Err(errno) = sys::leave_descriptors() {
                tracing::debug!(%errno, "a restore is not announced");
                return Vec::new();
            }
            Voice { announcer }.speak(mounted, all).unwrap_or_else(|errno| {
                tracing::debug!(%errno, "a restore is announced in part");
                Vec::new()
            })
        });
        voice.ok().and_then(|voice| voice.join().ok()).unwrap_or_default()
    })
}

/// However the voice ends, nobody is it any more.
struct End<'a>(&'a Announcer);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.voice.store(NOBODY, Ordering::Release);
        self.0.expect_nothing();
    }
}

struct Voice<'a> {
    announcer: &'a Announcer,
}

impl Voice<'_> {
    fn speak(&self, mounted: &Mounted, all: &[Told]) -> SysResult<Vec<Told>> {
        let root = open_dir_path(&mounted.at)?;
        if sys::stat_fd(&root)?.dev != mounted.device {
            // Unmounted, covered, or not to be seen from here.
            return Err(Errno::ENODEV);
        }
        self.make_known(&root)?;
        let mut left = Vec::new();
        for told in all {
            let dir = if told.path.is_empty() { None } else { Some(sys::open_beneath(&root, &told.path, OpenKind::Path)) };
            let dir = match &dir {
                None => &root,
                Some(Ok(dir)) => dir,
                Some(Err(errno)) if is_over(*errno) => return Err(*errno),
                // Somebody has removed or renamed it.
                Some(Err(_)) => continue,
            };
            if sys::stat_fd(dir)?.ino != told.dir.0 {
                continue;
            }
            let mut steps = Vec::new();
            for step in &told.steps {
                if self.announcer.is_hushed() {
                    return Ok(Vec::new());
                }
                // What came in the place of a name that went is told after it.
                let waits = steps.last().is_some_and(|left: &Step| left.name == step.name);
                if waits || !self.take(dir, step)? {
                    steps.push(step.clone());
                }
            }
            if !steps.is_empty() {
                left.push(Told { dir: told.dir, path: told.path.clone(), steps });
            }
        }
        Ok(left)
    }

    /// Looks up a name that nobody else knows: whose request that is, is the voice.
    fn make_known(&self, root: &OwnedFd) -> SysResult<()> {
        let name = format!(".ckptfs-{:016x}", RandomState::new().build_hasher().finish());
        let hello = Step { dir: Slot::ROOT, name: Name::new(name.as_bytes()), node: None, what: What::Hello };
        self.announcer.expect(&hello);
        self.announcer.voice.store(UNKNOWN, Ordering::Release);
        let looked = sys::stat_at(root, name.as_bytes());
        self.announcer.expect_nothing();
        match (looked, self.announcer.voice.load(Ordering::Acquire)) {
            // The kernel does not tell who asks: we are in another namespace of processes.
            (_, UNKNOWN) => Err(Errno::EPERM),
            (Err(Errno::ENOENT), _) => Ok(()),
            (Err(errno), _) => Err(errno),
            (Ok(_), _) => Err(Errno::EEXIST),
        }
    }

    /// Takes one step; false if the kernel did not ask, although it should have.
    ///
    /// # Errors
    /// The mount is gone.
    fn take(&self, dir: &OwnedFd, step: &Step) -> SysResult<bool> {
        self.announcer.expect(step);
        let name = step.name.as_bytes();
        let result = match step.what {
            What::Gone { dir: true, .. } => sys::rmdir_at(dir, name),
            What::Gone { dir: false, .. } => sys::unlink_at(dir, name),
            What::Come(Kind::Dir) => sys::mkdir_at(dir, name, 0o700),
            What::Come(Kind::File) => sys::create_file_at(dir, name, Open::WRITE, 0o600).map(drop),
            What::Come(_) => sys::mknod_at(dir, name, Kind::File, 0o600, 0),
            What::Written => sys::open_file_at(dir, name, Open { truncate: true, ..Open::WRITE }).map(drop),
            What::Content => sys::touch_at(dir, name, true),
            What::Attributes => sys::touch_at(dir, name, false),
            What::Hello => Ok(()),
        };
        let asked = self.announcer.expect_nothing();
        match result {
            Err(errno) if is_over(errno) => return Err(errno),
            Err(errno) => tracing::debug!(?step, %errno, asked, "a change is not announced"),
            Ok(()) => {}
        }
        // What the kernel has of the name now is a ghost, or that a ghost went; the truth takes its place.
        if matches!(step.what, What::Gone { .. } | What::Come(_) | What::Written) {
            let _ = sys::stat_at(dir, name);
            return Ok(asked || !matches!(step.what, What::Gone { .. }));
        }
        Ok(true)
    }
}

/// There is no mount any more.
fn is_over(errno: Errno) -> bool {
    matches!(errno, Errno::ENOTCONN | Errno::ECONNABORTED | Errno::ENODEV)
}
