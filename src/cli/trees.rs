//! The branches of a tree that this process serves. Each has its own session, control socket and
//! end.

mod served;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use self::served::{EndStage, ServedBranch, ending};
use super::control_socket::{EndReason, start_threads};
use super::daemon;
use super::holder::{HolderConnection, InheritedTree};
use crate::dead_mounts;
use ckptfs_api::{SOCKET_NAME, VerbResult};
use ckptfs_core::engine::branches::{BranchOps, BranchTree, Host, UnmountMode, beside};
use ckptfs_core::engine::request::{NOTE_CONNECTION, Service};
use ckptfs_core::engine::{Config, Engine};
use ckptfs_fuse::Session;
use ckptfs_store::layout::StoreId;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, tasks};
use ckptfs_ui::error::ErrorContext;

/// Limit of the wait for the end of a branch whose mount is gone.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of the wait for the users of a closed engine to release it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
const RELEASE_PAUSE: Duration = Duration::from_micros(200);
/// Time to complete the requests in progress at the end.
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(5);

/// State that the holder keeps of all branches that this process serves.
pub struct BranchHandover {
    /// Connection to the holder.
    pub link: Arc<HolderConnection>,
    /// State of an earlier worker, of branches that are not resumed yet.
    left: Mutex<HashMap<StoreId, InheritedTree>>,
}

impl BranchHandover {
    /// Returns a holding with the state of an earlier worker.
    pub fn new(
        link: &Arc<HolderConnection>,
        left: HashMap<StoreId, InheritedTree>,
    ) -> Arc<BranchHandover> {
        Arc::new(BranchHandover {
            link: Arc::clone(link),
            left: Mutex::new(left),
        })
    }

    /// Ends the connections that are not resumed, so that their requests fail instead of waiting
    /// for ever.
    pub fn let_go_of_rest(&self) {
        let rest: Vec<StoreId> = self.left.lock().keys().copied().collect();
        rest.into_iter().for_each(|id| self.let_go(id));
    }

    fn let_go(&self, id: StoreId) {
        let left = self.left.lock().remove(&id);
        drop(left);
        self.link.branch_ended(id);
    }
}

/// The branches of one tree.
pub struct BranchServer {
    /// Arguments of the tree itself, which apply to its branches.
    args: daemon::Args,
    parent: Weak<Engine>,
    me: Weak<BranchServer>,
    /// `None`: no process takes over from this one.
    holding: Option<Arc<BranchHandover>>,
    served: Mutex<HashMap<String, Arc<ServedBranch>>>,
    /// Branches whose mounts are gone, while their engines close.
    closing: Mutex<Vec<Arc<ServedBranch>>>,
}

impl BranchServer {
    /// Lets `engine`, which is served with `args`, serve its branches.
    pub fn serve_branches_of(
        engine: &Arc<Engine>,
        args: &daemon::Args,
        holding: Option<Arc<BranchHandover>>,
    ) -> Arc<BranchServer> {
        let trees = Arc::new_cyclic(|me| BranchServer {
            args: args.clone(),
            parent: Arc::downgrade(engine),
            me: Weak::clone(me),
            holding,
            served: Mutex::default(),
            closing: Mutex::default(),
        });
        engine
            .branches()
            .set_host(Arc::clone(&trees) as Arc<dyn Host>);
        trees
    }

    /// Waits until no branch is served, without a limit.
    pub fn wait_all(&self) {
        loop {
            let Some(next) = self.served.lock().values().next().map(Arc::clone) else {
                return self.wait_closed();
            };
            next.wait(EndStage::Ended, END_TIMEOUT);
        }
    }

    fn forget(&self, name: &str) {
        if let Some(parent) = self.parent.upgrade() {
            parent.branches().ended(name);
        }
        self.served.lock().remove(name);
    }

    /// Returns the arguments of a daemon for this branch only.
    fn args_of(&self, path: &Path) -> daemon::Args {
        daemon::Args {
            backing: path.to_owned(),
            mountpoint: path.to_owned(),
            ..self.args.clone()
        }
    }

    /// Ends a branch for the reason `end`, in another thread. If its mount does not end in time, it
    /// is ended anyway.
    fn hear_end(self: &Arc<BranchServer>, end: &EndReason, served: &Arc<ServedBranch>) {
        let pause = served.pause_before(end);
        let (trees, leaving) = (Arc::clone(self), Arc::clone(served));
        if let Err(error) = tasks::once(pause, move || trees.see_out(&leaving)) {
            tracing::warn!(%error, branch = served.name, "it ends in the thread of its session");
            self.see_out(served);
        }
    }

    /// Ends a branch whose mount is gone, if that is not done yet.
    fn see_out(&self, served: &Arc<ServedBranch>) {
        let Some((engine, answers)) = served.parts.lock().take() else {
            return;
        };
        let name = served.name.as_str();
        let left = served.left.load(Ordering::SeqCst);
        if left {
            self.closing.lock().push(Arc::clone(served));
            self.forget(name);
            served.reach(EndStage::Gone);
        }
        if let Err(error) = BranchOps::new(&engine).end_all(UnmountMode::Lazy) {
            tracing::warn!(branch = name, %error, "its own branches did not end");
        }
        engine.close();
        if let Some(answers) = answers.get() {
            answers.wait_given(ANSWERS_TIMEOUT);
        }
        let _ = sys::unlink_at(engine.store_fd(), SOCKET_NAME.as_bytes());
        self.let_go_of(&engine);
        if !left {
            self.forget(name);
        }
        let held = Arc::downgrade(&engine);
        drop(engine);
        // Clients that wait for this detect it by the end of the connection.
        if let Some(answers) = answers.get() {
            answers.end();
        }
        drop(answers);
        let began = Instant::now();
        while held.strong_count() > 0 && began.elapsed() < RELEASE_TIMEOUT {
            std::thread::sleep(RELEASE_PAUSE);
        }
        tracing::info!(branch = name, "its mount has ended");
        served.reach(EndStage::Ended);
        self.closing
            .lock()
            .retain(|closing| !Arc::ptr_eq(closing, served));
    }
}

impl BranchServer {
    /// Mounts a branch, or continues its mount. Returns the session, the control socket, and the
    /// number of its FUSE connection.
    fn begin(
        &self,
        args: &daemon::Args,
        engine: &Arc<Engine>,
        left: Option<InheritedTree>,
    ) -> VerbResult<(Session, Option<UnixListener>, Option<u32>)> {
        let is_left = left.is_some();
        let (device, control) = left.map_or((None, None), |left| (Some(left.device), left.control));
        let listener = daemon::listen(engine, control)?;
        let session = daemon::start_session(args, engine, device)
            .map_err(|cause| daemon::mount_error(args, &cause))?;
        let ledger = engine.ledger();
        if is_left {
            let noted = ledger.map_or(0, |ledger| ledger.noted(NOTE_CONNECTION));
            let minor = noted.checked_sub(1).and_then(|minor| minor.try_into().ok());
            return Ok((session, listener, minor));
        }
        let minor = sys::device_at(&args.mountpoint).ok().map(sys::device_minor);
        let id = engine.branches().own_id();
        if let (Some(holding), Some(id), Some(ledger)) = (&self.holding, id, ledger) {
            ledger.note(
                NOTE_CONNECTION,
                minor.map_or(0, |minor| u64::from(minor) + 1),
            );
            let device = session.device().on("/dev/fuse")?;
            let three = [ledger.fd(), device.as_fd(), engine.root_fd()];
            let control = listener.as_ref().map(AsFd::as_fd);
            holding.link.branch_mounted(id, three, control);
        }
        Ok((session, listener, minor))
    }

    fn serve_now(&self, name: &str, engine: &Arc<Engine>, fresh: bool) -> VerbResult<()> {
        let args = self.args_of(&engine.place().mount());
        let me = self.me.upgrade().ok_or_else(|| ending(name))?;
        BranchServer::serve_branches_of(engine, &args, self.holding.clone());
        let id = engine.branches().own_id();
        let left = id.zip(self.holding.as_ref());
        let left = left.and_then(|(id, holding)| holding.left.lock().remove(&id));
        if let Some(parent) = self.parent.upgrade() {
            engine.branches().set_parent(&parent.place().mount());
        }
        let goes_on = left.is_some();
        let (session, listener, minor) = self.begin(&args, engine, left)?;
        engine.set_caches(session.caches());
        if !fresh {
            BranchOps::new(engine).go_on();
        }
        let answers = Arc::default();
        let parts = (Arc::clone(engine), Arc::clone(&answers));
        let served = Arc::new(ServedBranch::new(name, parts, minor));
        let (leaving, hears) = (Arc::downgrade(&served), me);
        self.served
            .lock()
            .insert(name.to_owned(), Arc::clone(&served));
        let tell_end = move |end| {
            if let Some(served) = leaving.upgrade() {
                hears.hear_end(&end, &served);
            }
        };
        if let Err(error) = start_threads(&args, engine, listener, session, &answers, tell_end) {
            served.parts.lock().take();
            self.served.lock().remove(name);
            return Err(error);
        }
        if fresh {
            engine.tell_below(false, true);
        } else if goes_on {
            BranchOps::new(engine).mount_all();
        } else {
            for holder in daemon::watch_below(&args, engine) {
                engine.warn(super::mount_users::passed_by(std::iter::once(&holder)));
            }
            BranchOps::new(engine).mount_all();
        }
        Ok(())
    }

    /// Discards the state that the holder keeps of a branch.
    fn let_go_of(&self, engine: &Engine) {
        if let (Some(holding), Some(id)) = (&self.holding, engine.branches().own_id()) {
            holding.let_go(id);
        }
    }
}

impl Host for BranchServer {
    fn left(&self, id: StoreId) -> VerbResult<Option<OwnedFd>> {
        let Some(holding) = &self.holding else {
            return Ok(None);
        };
        let left = holding.left.lock();
        let Some(before) = left.get(&id) else {
            return Ok(None);
        };
        if !sys::is_in_error(&before.device) {
            return before.root.try_clone().map(Some).on("/dev/fuse");
        }
        // It was unmounted since, or its connection was aborted.
        drop(left);
        holding.let_go(id);
        Ok(None)
    }

    fn give_up(&self, id: StoreId) {
        if let Some(holding) = &self.holding {
            holding.let_go(id);
        }
    }

    fn config(&self, tree: BranchTree) -> VerbResult<Config> {
        let args = self.args_of(&tree.path);
        let succession = self.holding.as_ref().map(|holding| {
            let mut left = holding.left.lock();
            holding
                .link
                .succession(Some(tree.id), left.get_mut(&tree.id))
        });
        Ok(Config {
            base: Some(tree.base),
            inherits: Some(tree.inherits),
            succession: succession.transpose()?,
            ..daemon::config_of(&args, tree.root)
        })
    }

    fn beside(&self, name: &str) -> VerbResult<PathBuf> {
        let parent = self.parent.upgrade().ok_or_else(|| ending(name))?;
        beside(&parent.place().backing(), name)
    }

    fn clear(&self, name: &str, path: &Path) -> VerbResult<()> {
        let closing = self.closing.lock().clone();
        for one in closing.iter().filter(|one| one.name == name) {
            one.wait(EndStage::Ended, END_TIMEOUT);
        }
        let served = self.served.lock().get(name).map(Arc::clone);
        if let Some(served) = served
            && !served.wait_if_leaving()?
        {
            return Ok(());
        }
        dead_mounts::repair_above(path).map(drop)
    }

    fn serve(&self, name: &str, engine: &Arc<Engine>, fresh: bool) -> VerbResult<()> {
        let served = self.serve_now(name, engine, fresh);
        if served.is_err() {
            let ended = BranchOps::new(engine).end_all(UnmountMode::Forced);
            tracing::debug!(?ended, branch = name, "its own branches");
            self.let_go_of(engine);
        }
        served
    }

    fn end(&self, name: &str, how: UnmountMode) -> VerbResult<()> {
        let Some(served) = self.served.lock().get(name).map(Arc::clone) else {
            return Ok(());
        };
        if !served.unmount(how)? || served.wait(EndStage::Ended, END_TIMEOUT) {
            Ok(())
        } else {
            Err(ending(name))
        }
    }

    fn leave(&self, name: &str, how: UnmountMode) -> VerbResult<()> {
        let Some(served) = self.served.lock().get(name).map(Arc::clone) else {
            return Ok(());
        };
        served.left.store(true, Ordering::SeqCst);
        let gone = served
            .unmount(how)
            .map(|now| !now || served.wait(EndStage::Gone, END_TIMEOUT));
        match gone {
            Ok(true) => Ok(()),
            gone => {
                served.left.store(false, Ordering::SeqCst);
                gone.and(Err(ending(name)))
            }
        }
    }

    fn wait_closed(&self) {
        loop {
            let Some(next) = self.closing.lock().first().map(Arc::clone) else {
                return;
            };
            next.wait(EndStage::Ended, END_TIMEOUT);
        }
    }
}
