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
use super::backing::FuseDevice;
use super::notify::KernelCaches;
use super::takeover;
use super::xattrs::Xattrs;
use ckptfs_core::engine::request::{Caches, Service};
use ckptfs_sys::{self as sys, lock::Mutex};

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The source in `/proc/mounts`, from `sys::mount_source`.
    pub source: String,
    /// Requests passthrough: the kernel reads and writes backing files itself.
    pub passthrough: bool,
    /// Users other than the mounting one may access the mount; the kernel checks permissions in any
    /// case.
    pub allow_other: bool,
    /// Mounts read-only.
    pub read_only: bool,
    /// Device nodes work as in the backing directory, instead of failing with EACCES. For root
    /// only.
    pub dev: bool,
    /// Set-id bits and file capabilities take effect on execution. For root only.
    pub suid: bool,
    /// Programs can be executed.
    pub exec: bool,
    /// Extended attributes that are served.
    pub xattrs: Xattrs,
    /// Number of threads that read requests and execute short ones; at least 1, and always 1 except
    /// on Linux. Each has a buffer of 16 MiB of address space, of which requests touch 1 MiB.
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

    /// `fuser` adds `nodev` and `nosuid` unless the opposite is requested; fusermount adds them for
    /// ordinary users.
    fn fuser_config(&self) -> Config {
        let mut options = vec![
            MountOption::FSName(self.source.clone()),
            // fuser 0.18.0 passes its `Subtype` only to fusermount; kernel and fusermount both
            // accept this form.
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
        // One descriptor for all readers: when a cloned one is closed, the kernel aborts the
        // requests read from it.
        config.clone_fd = false;
        config
    }
}

/// A function called at the end of a session.
type EndCallback = Box<dyn FnOnce(io::Result<()>) + Send>;

/// A mounted session. Dropping it unmounts if the mount is not in use, and does not wait for its
/// threads.
pub struct Session {
    /// Passes the function to the thread that waits for the end.
    then: Option<Sender<EndCallback>>,
    device: Option<Arc<OwnedFd>>,
    caches: Arc<KernelCaches>,
    unmounter: Unmounter,
}

impl Session {
    /// Mounts, and starts serving. On return the handshake with the kernel is complete and
    /// `service.started` has been called.
    ///
    /// # Errors
    /// The mount or the handshake failed; nothing stays mounted.
    pub fn mount(service: Arc<dyn Service>, config: &MountConfig) -> io::Result<Session> {
        let adapter = Adapter::new(service, config.passthrough, config.xattrs, config.readers());
        let device = adapter.device();
        let session = fuser::Session::new(adapter, &config.mountpoint, &config.fuser_config())?;
        Session::prepared(session, &device)
    }

    /// Continues a connection whose worker was killed; `device` is its `/dev/fuse`. On return the
    /// requests that it left unanswered are being served.
    ///
    /// # Errors
    /// EINVAL without a ledger of the predecessor.
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
            // Before Linux 6.9: pending requests stay unanswered until the mount ends.
            tracing::error!(%error, "the kernel does not give out again what a killed daemon had begun");
        }
        Session::prepared(session, &shared)
    }

    fn prepared(mut session: fuser::Session<Adapter>, shared: &FuseDevice) -> io::Result<Session> {
        let device = Arc::new(session.as_fd().try_clone_to_owned()?);
        shared.set(&device);
        let caches = Arc::new(KernelCaches::new(session.notifier(), session.as_fd()));
        let unmounter = Unmounter(Arc::new(Mutex::new(session.unmount_callable())));
        let (then, told) = channel::<EndCallback>();
        thread::Builder::new()
            .name("fuse-session".to_owned())
            .spawn(move || {
                // The threads that it starts register backing files, and the kernel writes to these
                // with the rights of the registering thread, independent of the writer, while they
                // are open, even after this mount ends. Without CAP_FSETID the backing filesystem
                // clears set-id bits by itself.
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

    /// Returns a duplicate of `/dev/fuse`, which keeps the connection alive.
    ///
    /// # Errors
    /// EMFILE.
    pub fn device(&self) -> io::Result<OwnedFd> {
        self.device
            .as_ref()
            .ok_or(io::ErrorKind::NotConnected)?
            .try_clone()
    }

    /// Returns the kernel caches of this session.
    pub fn caches(&self) -> Arc<dyn Caches> {
        Arc::clone(&self.caches) as Arc<dyn Caches>
    }

    /// Calls `then` when the session is unmounted, by any process, and its threads and
    /// `service.ended` have finished. After a lazy unmount that is when the last open file is
    /// closed. It receives an error if a serving thread failed: the mount may still exist without a
    /// server. It must be short, and runs without CAP_FSETID ([`sys::give_up_set_id`]).
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
    /// Unmounts with umount(2), or lazily through fusermount if that is not permitted. Only the
    /// first call has an effect, even if it fails.
    ///
    /// # Errors
    /// EBUSY: the mount is in use.
    pub fn unmount(&self) -> io::Result<()> {
        self.0.lock().unmount()
    }
}
