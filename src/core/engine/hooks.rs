//! Hooks: the owner's commands around checkpoints and restores, `pre-checkpoint`,
//! `post-checkpoint`, `pre-restore`, `post-restore`.
//!
//! **Trust.** The daemon runs hooks as its own user, and only from a directory configured at mount.
//! It never looks for hooks in the tree or store: a process with write access there, such as a
//! container with its volume, must not choose commands that root executes. The directory, each hook
//! and every directory above must belong to that user or root, and must not be writable by others
//! (sticky directories above are allowed). They are opened one component at a time, without
//! following links; the opened inode is checked and then executed. Concurrent renames have no
//! effect.
//!
//! **Locking.** One operation at a time runs hooks, without any lock that a request needs: a hook
//! can use the mount. Operations requested by a hook (`ckptfs checkpoint` in `pre-restore`) run
//! without hooks.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::config::HooksConfig;
use super::error;
use super::origin::TYPED_PASSWORD;
use super::serving::ServingEnv;
use ckptfs_api::{Actor, VerbResult};
use ckptfs_sys::lock::{Mutex, Rank};
use ckptfs_sys::{self as sys, Errno, Kind};

/// Limit of a hook's stderr in messages, in bytes.
const SAID_BYTES_MAX: u64 = 4096;
/// Time to wait for its stderr after a hook has exited: its children may keep it open.
const SAID_WAIT: Duration = Duration::from_millis(200);
/// Minimum and maximum interval between checks for a hook's exit.
const LOOK: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(20);
/// Mode bits that permit writing by others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// In a sticky directory only owners rename and remove entries.
const STICKY: u32 = 0o1000;
/// Runs a hook with a standard umask instead of the daemon's.
const SHELL: &str = "/bin/sh";
const RUN: &str = "umask 022 && exec \"$0\"";

pub(super) struct Hooks {
    config: HooksConfig,
    one_at_a_time: Mutex<()>,
    /// The process group of the running hook.
    group: AtomicI32,
    /// The failure of the last `post` hook.
    failure: Mutex<Option<String>>,
}

/// Environment variables of a hook.
type Variables = Vec<(&'static str, String)>;

impl Hooks {
    pub(super) fn new(config: HooksConfig) -> Hooks {
        Hooks {
            config,
            one_at_a_time: Mutex::ranked(Rank::Hooked, ()),
            group: AtomicI32::new(0),
            failure: Mutex::default(),
        }
    }

    /// Returns the warning for the user.
    pub(super) fn warning(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Returns whether the requester is a hook, or was started by one.
    fn is_hook(&self, by: &Actor) -> bool {
        let group = self.group.load(Ordering::SeqCst);
        group > 0 && sys::process_group(by.pid) == Some(group)
    }

    /// Opens a hook, if it exists, and all directories above. Returns the reason if it must not
    /// run.
    fn open(&self, name: &str) -> Result<Option<OwnedFd>, String> {
        let mut shown = PathBuf::from("/");
        let mut dir = sys::open_root(&shown).map_err(|errno| format!("/: {errno}"))?;
        check_trust(&dir, &shown, Kind::Dir, true)?;
        let names: Vec<&OsStr> = self.config.dir.iter().skip(1).collect();
        for (number, part) in names.iter().enumerate() {
            shown.push(part);
            dir = sys::open_path_at(&dir, part.as_bytes())
                .map_err(|errno| format!("{}: {errno}", shown.display()))?;
            check_trust(&dir, &shown, Kind::Dir, number + 1 < names.len())?;
        }
        let shown = shown.join(name);
        match sys::open_path_at(&dir, name.as_bytes()) {
            Ok(hook) => check_trust(&hook, &shown, Kind::File, false).map(|()| Some(hook)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(format!(
                "the hook {} cannot be checked: {errno}",
                shown.display()
            )),
        }
    }

    /// Runs a hook, if it exists. Returns the reason if it failed.
    fn run(&self, name: &str, mount: &Path, variables: &Variables) -> Result<(), String> {
        let Some(hook) = self.open(name)? else {
            return Ok(());
        };
        let mut command = Command::new(SHELL);
        let path = sys::inherited(&mut command, hook)
            .map_err(|errno| format!("the hook {name} cannot be run: {errno}"))?;
        // Not in the tree: interpreters load files from their working directory, where other users
        // may write.
        command
            .args(["-c", RUN])
            .arg(&path)
            .current_dir("/")
            .process_group(0);
        command
            .env_remove(TYPED_PASSWORD)
            .env("CKPTFS_HOOK", name)
            .env("CKPTFS_MOUNT", mount)
            .envs(variables.iter().map(|(key, value)| (*key, value)));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        sys::start_unblocked(&mut command);
        let mut child = command
            .spawn()
            .map_err(|cause| format!("the hook {name} cannot be run: {cause}"))?;
        let group = i32::try_from(child.id()).unwrap_or(0);
        self.group.store(group, Ordering::SeqCst);
        let said = listen(&mut child);
        let ended = wait(&mut child, self.config.timeout);
        if ended.is_none() {
            // Includes all processes that it started.
            let _ = sys::kill_group(group, SIGKILL);
            let _ = child.wait();
        }
        self.group.store(0, Ordering::SeqCst);
        let said = said.recv_timeout(SAID_WAIT).unwrap_or_default();
        let said = said.trim();
        match ended {
            Some(status) if status.success() => Ok(()),
            Some(status) if said.is_empty() => Err(format!("the hook {name} failed ({status})")),
            Some(_) => Err(format!("the hook {name} failed: {said}")),
            None => Err(format!(
                "the hook {name} did not end within {:?} and was killed",
                self.config.timeout
            )),
        }
    }
}

/// Identical on all platforms.
const SIGKILL: i32 = 9;

/// Reads a child's stderr in a separate thread, so that a process that keeps the pipe open does not
/// block us.
fn listen(child: &mut Child) -> Receiver<String> {
    let (tell, said) = channel();
    if let Some(stderr) = child.stderr.take() {
        let read = move || {
            let mut bytes = Vec::new();
            let _ = stderr.take(SAID_BYTES_MAX).read_to_end(&mut bytes);
            let _ = tell.send(String::from_utf8_lossy(&bytes).into_owned());
        };
        if let Err(error) = std::thread::Builder::new().name("hook".into()).spawn(read) {
            tracing::warn!(%error, "what a hook says is not heard");
        }
    }
    said
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let (started, mut pause) = (Instant::now(), LOOK);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if started.elapsed() < limit => std::thread::sleep(pause),
            Ok(None) | Err(_) => return None,
        }
        pause = (pause * 2).min(LOOK_MAX);
    }
}

/// Checks that only the daemon's user or root can have created or replaced the inode. `sticky`:
/// others may create entries of their own in it.
fn check_trust(opened: &OwnedFd, shown: &Path, kind: Kind, sticky: bool) -> Result<(), String> {
    let cannot = |errno: Errno| format!("{}: {errno}", shown.display());
    let (found, shown) = (sys::stat_fd(opened).map_err(cannot)?, shown.display());
    let (uid, _) = sys::ids();
    if found.kind != kind {
        return Err(format!(
            "{shown} is not a {} (links to hooks are not followed)",
            if kind == Kind::Dir {
                "directory"
            } else {
                "regular file"
            }
        ));
    }
    if found.uid != uid && found.uid != 0 {
        return Err(format!(
            "{shown} belongs to user {}, so it is not run as user {uid}",
            found.uid
        ));
    }
    if found.mode & WRITABLE_BY_OTHERS != 0 && !(sticky && found.mode & STICKY != 0) {
        return Err(format!(
            "{shown} is writable by others than its owner, so it is not run (chmod go-w)"
        ));
    }
    // A FUSE server chooses the reported owner.
    if sys::statfs_fd(opened).is_ok_and(|info| sys::fs_name(info.fs_type) == "fuse") {
        return Err(format!(
            "{shown} is on a FUSE filesystem, whose owners cannot be trusted"
        ));
    }
    Ok(())
}

/// Runs an operation between `pre-VERB` and `post-VERB`. The latter runs whenever the former did,
/// so that quiesced services resume; it receives the result.
pub(super) fn around<T>(
    hooks: Option<&Hooks>,
    serving: &ServingEnv,
    by: &Actor,
    (verb, mut variables): (&'static str, Variables),
    act: impl FnOnce() -> VerbResult<T>,
    known_after: impl FnOnce(&T) -> Variables,
) -> VerbResult<T> {
    let Some(hooks) = hooks.filter(|hooks| !hooks.is_hook(by)) else {
        return act();
    };
    let _one_at_a_time = hooks.one_at_a_time.lock();
    let mount = &serving.place.mount();
    variables.extend([
        ("CKPTFS_VERB", verb.to_owned()),
        ("CKPTFS_UID", by.uid.to_string()),
        ("CKPTFS_PID", by.pid.to_string()),
    ]);
    hooks
        .run(&format!("pre-{verb}"), mount, &variables)
        .map_err(|why| error::hook_failed(verb, &why, &hooks.config.dir))?;
    let done = act();
    variables.push((
        "CKPTFS_RESULT",
        if done.is_ok() { "done" } else { "failed" }.to_owned(),
    ));
    if let Ok(done) = &done {
        variables.extend(known_after(done));
    }
    let ended = hooks.run(&format!("post-{verb}"), mount, &variables);
    if let Err(why) = &ended {
        tracing::warn!("{why}");
    }
    *hooks.failure.lock() = ended.err();
    done
}
