//! Backing IDs of files open for passthrough: one per node, shared by all its opens.
//!
//! The kernel rejects a second backing file for an inode (fs/fuse/iomode.c). An ID lives from the
//! first open to the last release; dropping it closes it in the kernel. It survives its worker, and
//! is handed over with the open files. The lock is held across the ioctl that creates an ID and is
//! a leaf.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use fuser::BackingId;

use ckptfs_core::engine::request::{Fh, NodeId};
use ckptfs_sys as sys;
use ckptfs_sys::lock::Mutex;

/// `/dev/fuse` of the session, during its lifetime.
#[derive(Debug, Default)]
pub struct FuseDevice(OnceLock<Weak<OwnedFd>>);

impl FuseDevice {
    /// Sets the device when the session starts.
    pub fn set(&self, device: &Arc<OwnedFd>) {
        let _ = self.0.set(Arc::downgrade(device));
    }

    fn get(&self) -> Option<Arc<OwnedFd>> {
        self.0.get()?.upgrade()
    }
}

/// A backing file registered with the connection; dropping this closes it.
#[derive(Debug)]
pub struct BackingFile {
    pub number: u32,
    device: Arc<FuseDevice>,
}

impl BackingFile {
    /// Registers a file.
    pub fn new(device: &Arc<FuseDevice>, file: &File) -> io::Result<BackingFile> {
        let fd = device.get().ok_or(io::ErrorKind::NotConnected)?;
        let number = BackingId::create_raw(fd.as_fd(), file)?;
        Ok(BackingFile {
            number,
            device: Arc::clone(device),
        })
    }

    /// Takes over an ID that a predecessor registered.
    pub fn adopt(device: &Arc<FuseDevice>, number: u32) -> BackingFile {
        BackingFile {
            number,
            device: Arc::clone(device),
        }
    }
}

impl Drop for BackingFile {
    fn drop(&mut self) {
        if let Some(device) = self.device.get()
            && let Err(error) = sys::backing_close(&*device, self.number)
        {
            tracing::debug!(number = self.number, %error, "a backing file was not given back");
        }
    }
}

/// IDs in use; `Id` is [`BackingFile`] except in tests.
pub struct Backings<Id> {
    state: Mutex<BackingState<Id>>,
}

struct BackingState<Id> {
    nodes: HashMap<NodeId, SharedBacking<Id>>,
    handles: HashMap<Fh, NodeId>,
}

struct SharedBacking<Id> {
    id: Arc<Id>,
    opens: usize,
}

impl<Id> Backings<Id> {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(BackingState {
                nodes: HashMap::new(),
                handles: HashMap::new(),
            }),
        }
    }

    /// Returns the backing ID of `node` for its open `fh`; the first open creates it.
    pub fn attach<E>(
        &self,
        node: NodeId,
        fh: Fh,
        make: impl FnOnce() -> Result<Id, E>,
    ) -> Result<Arc<Id>, E> {
        let mut state = self.state.lock();
        let id = match state.nodes.get_mut(&node) {
            Some(shared) => {
                shared.opens += 1;
                Arc::clone(&shared.id)
            }
            None => {
                let id = Arc::new(make()?);
                state.nodes.insert(
                    node,
                    SharedBacking {
                        id: Arc::clone(&id),
                        opens: 1,
                    },
                );
                id
            }
        };
        let before = state.handles.insert(fh, node);
        debug_assert!(before.is_none(), "a handle is attached once");
        Ok(id)
    }

    /// Releases the ID of `fh`, if any. Must be called before the engine may reuse the handle's
    /// number.
    pub fn detach(&self, fh: Fh) {
        let mut state = self.state.lock();
        let Some(node) = state.handles.remove(&fh) else {
            return;
        };
        let Some(shared) = state.nodes.get_mut(&node) else {
            return;
        };
        shared.opens -= 1;
        if shared.opens == 0 {
            state.nodes.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_of_one_node_share_one_id_until_the_last_release() {
        let backings = Backings::new();
        let attach = |fh, id| {
            backings
                .attach(NodeId(7), Fh(fh), || Ok::<u32, ()>(id))
                .unwrap()
        };
        assert_eq!((*attach(1, 10), *attach(2, 20)), (10, 10));
        let other = backings
            .attach(NodeId(8), Fh(3), || Ok::<u32, ()>(30))
            .unwrap();
        assert_eq!(*other, 30);
        backings.detach(Fh(1));
        assert_eq!(*attach(1, 40), 10);
        backings.detach(Fh(1));
        backings.detach(Fh(2));
        backings.detach(Fh(2));
        assert_eq!(*attach(4, 50), 50, "the last release let the id go");
    }

    #[test]
    fn a_refusal_leaves_nothing() {
        let backings = Backings::<u32>::new();
        assert_eq!(backings.attach(NodeId(7), Fh(1), || Err("no")), Err("no"));
        backings.detach(Fh(1));
        let state = backings.state.lock();
        assert!(state.nodes.is_empty() && state.handles.is_empty());
    }
}
