//! A mounted session: from mount(2) to the last request.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use fuser::{Config, MountOption, SessionACL, SessionUnmounter};

use super::adapter::Adapter;
use super::backing::Device;
use super::notify::KernelCaches;
use super::takeover;
use super::xattrs::Xattrs;
use crate::engine::request::{Caches, Service};
use crate::sys::{self, lock::Mutex};

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// The directory that the mount covers.
    pub mountpoint: PathBuf,
    /// What `/proc/mounts` shows as the source, as `sys::mount_source`
    /// writes it.
    pub source: String,
    /// Asks the kernel to read and write backing files itself.
    pub passthrough: bool,
    /// Other users than the mounting one may use the mount; permissions are checked by the kernel
    /// either way.
    pub allow_other: bool,
    /// Mounts read-only.
    pub read_only: bool,
    /// Device nodes work as in the directory itself, instead of giving EACCES. For root only.
    pub dev: bool,
    /// Set-id bits and file capabilities work when a program is run. For root only.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Which extended attributes are served.
    pub xattrs: Xattrs,
    /// Threads that read requests, and serve those that do not take long; at least 1, and 1 but on
    /// Linux. Each has a buffer of 16 MiB of address space, of which requests touch 1 MiB.
    pub readers: usize,
}

impl MountConfig {
    fn readers(&self) -> usize {
        if cfg!(target_os = "linux") {
            self.readers.max(1)
        } else {
            1
        }
    }

    /// `fuser` adds `nodev` and `nosuid` itself where the opposite is not asked for; fusermount
    /// does so for every ordinary user.
    fn fuser_config(&self) -> Config {
        let mut options = vec![
            MountOption::FSName(self.source.clone()),
            // fuser 0.18.0 hands its `Subtype` to fusermount only; the kernel and fusermount both
            // know the option by this name.
            MountOption::CUSTOM("subtype=ckptfs".to_owned()),
            MountOption::DefaultPermissions,
        ];
        options.extend(self.dev.then_some(MountOption::Dev));
        options.extend(self.suid.then_some(MountOption::Suid));
        options.extend((!self.exec).then_some(MountOption::NoExec));
        if self.read_only {
            options.push(MountOption::RO);
        }
        let mut config = Config::default();
        config.mount_options = options;
        config.acl = if self.allow_other {
            SessionACL::All
        } else {
            SessionACL::Owner
        };
        config.n_threads = Some(self.readers());
        // One descriptor for all readers: when one that was cloned is closed the kernel ends the
        // requests that were read from it.
        config.clone_fd = false;
        config
    }
}

/// What is done when a session has ended.
type Then = Box<dyn FnOnce(io::Result<()>) + Send>;

/// A mounted session. Dropping it unmounts, if nobody uses the mount, and does not wait for its
/// threads.
pub struct Session {
    /// Tells the thread that waits for its end.
    then: Option<Sender<Then>>,
    device: Option<Arc<OwnedFd>>,
    caches: Arc<KernelCaches>,
    unmounter: Unmounter,
}

impl Session {
    /// Mounts, and begins to serve. When it returns the kernel has been told what the session can
    /// do and `service.started` has been called.
    ///
    /// # Errors
    /// The mount was refused or the kernel's greeting failed; nothing stays mounted.
    pub fn mount(service: Arc<dyn Service>, config: &MountConfig) -> io::Result<Session> {
        let adapter = Adapter::new(service, config.passthrough, config.xattrs, config.readers());
        let device = adapter.device();
        let session = fuser::Session::new(adapter, &config.mountpoint, &config.fuser_config())?;
        Session::prepared(session, &device)
    }

    /// Goes on where another session of the same connection was killed: `device` is its
    /// `/dev/fuse`. When it returns, what that one left unanswered is being served.
    ///
    /// # Errors
    /// EINVAL without a ledger in which the one before left what it knew.
    pub fn resume(
        service: Arc<dyn Service>,
        config: &MountConfig,
        device: OwnedFd,
    ) -> io::Result<Session> {
        let ledger = service.ledger().ok_or(io::ErrorKind::InvalidInput)?;
        let adapter = Adapter::new(service, config.passthrough, config.xattrs, config.readers());
        let (shared, adopt) = (adapter.device(), adapter.adopter());
        let fuser_config = config.fuser_config();
        let session = takeover::resume(adapter, &device, fuser_config.acl, fuser_config, &ledger)?;
        adopt();
        if let Err(error) = takeover::resend(&device) {
            // Before Linux 6.9: what was under way stays unanswered until the mount goes.
            tracing::error!(%error, "the kernel does not give out again what a killed daemon had begun");
        }
        Session::prepared(session, &shared)
    }

    fn prepared(mut session: fuser::Session<Adapter>, shared: &Device) -> io::Result<Session> {
        let device = Arc::new(session.as_fd().try_clone_to_owned()?);
        shared.set(&device);
        let caches = Arc::new(KernelCaches::new(session.notifier(), session.as_fd()));
        let unmounter = Unmounter(Arc::new(Mutex::new(session.unmount_callable())));
        let (then, told) = channel::<Then>();
        thread::Builder::new()
            .name("fuse-session".to_owned())
            .spawn(move || {
                // Backing files are registered by the threads that it starts, and the kernel writes
                // to them with their rights, whoever writes, for as long as somebody has them open:
                // after this mount too. Without it the backing filesystem clears set-id bits by
                // itself.
                sys::give_up_set_id();
                let served = catch_unwind(AssertUnwindSafe(|| session.run()));
                let served = served.unwrap_or_else(|_| {
                    Err(io::Error::other("the thread of the session panicked"))
                });
                if let Ok(then) = told.recv() {
                    then(served);
                }
            })?;
        Ok(Session {
            then: Some(then),
            device: Some(device),
            caches,
            unmounter,
        })
    }

    /// A copy of `/dev/fuse`: whoever has one keeps the connection alive.
    ///
    /// # Errors
    /// EMFILE.
    pub fn device(&self) -> io::Result<OwnedFd> {
        self.device
            .as_ref()
            .ok_or(io::ErrorKind::NotConnected)?
            .try_clone()
    }

    /// The kernel's caches of this session.
    pub fn caches(&self) -> Arc<dyn Caches> {
        Arc::clone(&self.caches) as Arc<dyn Caches>
    }

    /// Has `then` called when the mount is gone, whoever unmounts it, and its threads have ended;
    /// `service.ended` has been called then. After a lazy unmount that is when the last open file
    /// is closed. It is told if a serving thread failed: the mount may still be there, with nobody
    /// to answer. It must not take long, and has no right to set set-id bits
    /// ([`sys::give_up_set_id`]).
    pub fn at_end(mut self, then: impl FnOnce(io::Result<()>) + Send + 'static) {
        let Some(tell) = self.then.take() else {
            return;
        };
        let _ = tell.send(Box::new(move |served| {
            self.caches.close();
            self.device = None;
            drop(self);
            then(served);
        }));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.caches.close();
        if let Err(error) = self.unmounter.unmount() {
            tracing::warn!(%error, "the session was dropped and cannot be unmounted");
        }
    }
}

/// Unmounts a session from any thread that serves no request.
#[derive(Clone, Debug)]
pub struct Unmounter(Arc<Mutex<SessionUnmounter>>);

impl Unmounter {
    /// Unmounts with umount(2), or through fusermount (lazily) where that is not permitted. Only
    /// the first call does anything, even when it fails.
    ///
    /// # Errors
    /// EBUSY: the mount is in use.
    pub fn unmount(&self) -> io::Result<()> {
        self.0.lock().unmount()
    }
}
