//! The destination of an import: a directory that becomes a tree, or an existing tree, with or
//! without a daemon.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::export_common;
use ckptfs_api::{
    Client, Code, GetStatus, ImportAsk, Refused, STORE_NAME, Status, StoreDir, TreePath, VerbError,
    VerbResult, is_same,
};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Errno, SysResult};
use ckptfs_transfer::import::record_files;
use ckptfs_transfer::write::{StagingDir, Writer};
use ckptfs_ui::error::{ErrorContext, Failure, Outcome, error, hinted, io_error};
use ckptfs_ui::locate::{self, ServedTree, TreeLocation};

/// Directory in the store where inodes are made before they are moved into the tree.
const STAGE: &[u8] = b"tmp/restore";

/// Limit of the wait for a daemon of an interrupted import to start or end.
pub const SETTLES: Duration = Duration::from_secs(10);
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(25);

/// Limit of the inodes that one request moves into the tree.
const PUT_AT_ONCE: usize = 256;

/// State of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// Empty.
    Empty,
    /// Left by an import that was interrupted.
    Unfinished,
    /// A tree.
    Tree,
}

/// Destination of an import.
pub struct Target {
    /// Its path.
    pub path: PathBuf,
    /// Its state.
    pub state: TargetState,
    daemon: Option<Daemon>,
    /// The directory, if no daemon serves it.
    dir: Option<OwnedFd>,
    _lock: Option<File>,
}

/// The daemon that serves the tree.
struct Daemon {
    client: Client,
    /// Root of the mount.
    mount: OwnedFd,
    /// The backing directory, the stage, and the store.
    backing: OwnedFd,
    stage: OwnedFd,
    store: OwnedFd,
    /// This process has mounted it.
    ours: bool,
}

impl Target {
    /// Opens the destination, and creates it if missing. With `only_look` it is not created, and
    /// `None` means that it does not exist.
    ///
    /// Waits for the daemon of a killed import, which may be about to mount it, or to end.
    pub fn open(path: &Path, only_look: bool) -> VerbResult<Option<Target>> {
        let until = Instant::now() + SETTLES;
        let mount = || sys::host::mount_id(path).ok();
        loop {
            let before = mount();
            let opened = Target::open_now(path, only_look);
            let raced = opened.as_ref().err().is_some_and(is_race);
            let raced = raced || before.is_some() && mount() != before;
            if !raced || Instant::now() > until {
                return opened;
            }
            // Releases the lock on the opened directory.
            drop(opened);
            std::thread::sleep(PAUSE);
        }
    }

    fn open_now(path: &Path, only_look: bool) -> VerbResult<Option<Target>> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if path.is_dir() {
            match locate::locate(path.clone())? {
                TreeLocation::Served(served) if served.root == path => {
                    let mut target = Target {
                        path,
                        state: TargetState::Tree,
                        daemon: None,
                        dir: None,
                        _lock: None,
                    };
                    target.serve(served, false)?;
                    return target.locked().map(Some);
                }
                TreeLocation::Store { root, .. } if root == path && !is_unfinished(&path) => {
                    let dir = export_common::opened(sys::open_root(&path), &path)?;
                    let target = Target {
                        path,
                        state: TargetState::Tree,
                        daemon: None,
                        dir: Some(dir),
                        _lock: None,
                    };
                    return target.locked().map(Some);
                }
                stale @ TreeLocation::Stale { .. } => return Err(locate::not_served(&stale)),
                _ => {}
            }
        }
        if only_look && !path.exists() {
            return Ok(None);
        }
        let dir = export_common::open_destination(&path)?;
        let state = if is_unfinished(&path) {
            TargetState::Unfinished
        } else if export_common::is_empty(&path, &dir)? {
            TargetState::Empty
        } else {
            let hint = "import into a directory that does not exist or is empty, or into a tree of ckptfs; to give this directory a history in place: ckptfs mount";
            return Err(hinted(
                Code::NotEmpty,
                format!("{} is not empty", path.display()),
                hint,
            ));
        };
        Ok(Some(Target {
            path,
            state,
            daemon: None,
            dir: Some(dir),
            _lock: None,
        }))
    }

    fn locked(self) -> VerbResult<Target> {
        let store = self.store()?;
        match record_files::lock(&store).on(self.path.display())? {
            Some(lock) => Ok(Target {
                _lock: Some(lock),
                ..self
            }),
            None => Err(hinted(
                Code::Busy,
                format!("another import is writing to {}", self.path.display()),
                "wait until it has finished",
            )),
        }
    }

    /// Returns a descriptor of the store.
    pub fn store(&self) -> VerbResult<OwnedFd> {
        let cannot = |cause: std::io::Error| io_error(self.path.join(STORE_NAME).display(), cause);
        let dup = |store: &OwnedFd| store.try_clone().map_err(cannot);
        match &self.daemon {
            Some(daemon) => dup(&daemon.store),
            None => dup(StoreDir::below(self.backing()?, &self.path)
                .map_err(|cause| cannot(cause.into()))?
                .ok_or_else(|| io_error(self.path.display(), Errno::EPERM))?
                .dir()),
        }
    }

    /// Returns the directory itself, even if a mount covers it.
    pub fn backing(&self) -> VerbResult<&OwnedFd> {
        let dir = self
            .daemon
            .as_ref()
            .map(|daemon| &daemon.backing)
            .or(self.dir.as_ref());
        dir.ok_or_else(|| io_error(self.path.display(), Errno::EIO))
    }

    /// Reports whether a daemon serves it.
    pub fn is_served(&self) -> bool {
        self.daemon.is_some()
    }

    /// Returns the status and the identity of the daemon that serves the tree. `None` if no daemon
    /// serves it, if the daemon is ours and ends with the import, or if it does not answer.
    pub fn served_by(&mut self) -> Option<(Status, String)> {
        let Some(Daemon {
            client,
            ours: false,
            ..
        }) = &mut self.daemon
        else {
            return None;
        };
        let status = client.ask(GetStatus).ok()?;
        let name = format!("{} {}", status.daemon.pid, status.daemon.started);
        Some((status, name))
    }

    /// Returns the daemon, which is started if necessary, and then ends with the import.
    pub fn client(&mut self) -> Outcome<&mut Client> {
        let until = Instant::now() + SETTLES / 2;
        while self.daemon.is_none() {
            match self.start() {
                Err(Failure::Verb(error)) if is_race(&error) && Instant::now() < until => {
                    std::thread::sleep(PAUSE)
                }
                started => started?,
            }
        }
        match &mut self.daemon {
            Some(daemon) => Ok(&mut daemon.client),
            None => Err(io_error(self.path.display(), Errno::EIO).into()),
        }
    }

    /// Mounts the tree and connects to its daemon, which may be that of an interrupted import.
    fn start(&mut self) -> Outcome {
        // Exactly one checkpoint per item, however much is removed between two.
        let mounted =
            export_common::own_verb("mount", &self.path, &[], &[("CKPTFS_TRIPWIRE", "off")]);
        let ours = match mounted {
            Err(Failure::Verb(error)) if error.code == Code::AlreadyMounted => false,
            mounted => mounted.map(|()| true)?,
        };
        let served = locate::served(Some(&self.path)).and_then(|served| self.serve(served, ours));
        if ours && served.as_ref().is_err_and(|error| !is_race(error)) {
            export_common::own_verb("umount", &self.path, &[], &[])?;
        }
        served.map_err(Failure::from)
    }

    fn serve(&mut self, mut served: ServedTree, ours: bool) -> VerbResult<()> {
        let mount =
            export_common::opened(sys::open_dir_at(served.open_mount()?.1, b"."), &self.path)?;
        let (_, fds) = served.client.ask_with_files(ImportAsk::Begin)?;
        let Ok([backing, stage]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(io_error(self.path.display(), Errno::EMFILE));
        };
        let mut client = served.client;
        let writable = client.open_store()?;
        let store = client
            .store()
            .ok_or_else(|| io_error(self.path.display(), Errno::ENOTCONN))?;
        // The directory may have been replaced since it was opened.
        let same = self
            .dir
            .as_ref()
            .map_or(Ok(true), |dir| is_same(dir, &backing));
        let same = export_common::opened(same, &self.path)?;
        if !(same
            && store.is_in(&backing).on(self.path.display())?
            && store.has(STAGE, &stage).on(self.path.display())?)
        {
            let message = format!(
                "the daemon of {} opened other directories than those asked for",
                self.path.display()
            );
            return Err(error(Code::Protocol, message));
        }
        self.daemon = Some(Daemon {
            client,
            mount,
            backing,
            stage,
            store: writable,
            ours,
        });
        Ok(())
    }

    /// Returns a writer into the served tree, and its stage, of which [`DaemonStage::failed`]
    /// returns the error.
    pub fn writer(&self) -> VerbResult<(Writer, Arc<DaemonStage>)> {
        let lost = || io_error(self.path.display(), Errno::ENOTCONN);
        let daemon = self.daemon.as_ref().ok_or_else(lost)?;
        let root = daemon.mount.try_clone().on("a descriptor")?;
        let client = daemon.client.again().ok_or_else(lost)?;
        let dir = daemon.stage.try_clone().on("a descriptor")?;
        let staged = Arc::new(DaemonStage {
            dir,
            client: Mutex::new(client),
            waiting: Mutex::default(),
            done: Mutex::default(),
        });
        Ok((
            Writer::staged(root, Arc::clone(&staged) as Arc<dyn StagingDir>),
            staged,
        ))
    }

    /// Ends the import: unmounts the tree if the import mounted it.
    pub fn close(self) -> Outcome {
        let ours = self.daemon.as_ref().is_some_and(|daemon| daemon.ours);
        // Open descriptors would keep the mount busy.
        drop(self.daemon);
        if ours {
            export_common::own_verb("umount", &self.path, &[], &[])
        } else {
            Ok(())
        }
    }
}

/// Reports whether the daemon of an interrupted import may have started or ended at the same time.
pub fn is_race(error: &VerbError) -> bool {
    [Code::NotMounted, Code::DaemonLost, Code::InUse].contains(&error.code)
}

fn is_unfinished(path: &Path) -> bool {
    StoreDir::of(path)
        .is_ok_and(|store| store.is_some_and(|store| record_files::is_unfinished(store.dir())))
}

/// The stage of a served tree.
pub struct DaemonStage {
    dir: OwnedFd,
    client: Mutex<Client>,
    waiting: Mutex<Vec<(String, TreePath)>>,
    done: Mutex<(Vec<Refused>, Option<VerbError>)>,
}

impl DaemonStage {
    /// Returns the error of a request to the daemon, if one failed.
    pub fn failed(&self) -> Option<VerbError> {
        self.done.lock().1.take()
    }

    fn send(&self, staged: Vec<(String, TreePath)>) -> SysResult<()> {
        if staged.is_empty() {
            return Ok(());
        }
        let answer = self.client.lock().ask_with_files(ImportAsk::Put { staged });
        let mut done = self.done.lock();
        match answer {
            Ok((part, _)) => {
                done.0.extend(part.refused);
                Ok(())
            }
            Err(error) => {
                done.1.get_or_insert(error);
                Err(Errno::EIO)
            }
        }
    }
}

impl StagingDir for DaemonStage {
    fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    fn put(&self, name: Vec<u8>, path: &[u8]) -> SysResult<()> {
        let name = String::from_utf8(name).map_err(|_| Errno::EINVAL)?;
        let full = {
            let mut waiting = self.waiting.lock();
            waiting.push((name, TreePath(path.to_vec())));
            if waiting.len() < PUT_AT_ONCE {
                Vec::new()
            } else {
                std::mem::take(&mut *waiting)
            }
        };
        self.send(full)
    }

    fn flush(&self) -> Vec<Refused> {
        let rest = std::mem::take(&mut *self.waiting.lock());
        // `failed` returns the error.
        let _ = self.send(rest);
        std::mem::take(&mut self.done.lock().0)
    }
}
