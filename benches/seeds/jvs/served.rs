//! A directory served by an engine in this process, without a mount, as in JVS's benchmarks, so
//! that allocations can be counted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::world::remove;
use ckptfs_api::{
    Actor, CheckpointInfo, CheckpointOptions, GcOptions, GcReport, RestoreOptions, StateName,
    VerbResult, VerifyOptions,
};
use ckptfs_core::engine::request::{Caller, LookupResult, NodeId, Service};
use ckptfs_core::engine::verb::Execute;
use ckptfs_core::engine::{Config, Engine};
use ckptfs_sys as sys;

const ROOT: NodeId = NodeId(1);
const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
    request: 0,
    again: false,
};
/// O_RDWR.
const READ_WRITE: i32 = 2;
/// Bytes that a change writes to the beginning of a file.
const STAMP_BYTES: usize = 16;

pub struct InProcessEngine {
    pub dir: PathBuf,
    engine: Arc<Engine>,
}

impl InProcessEngine {
    pub fn open(dir: &Path) -> InProcessEngine {
        let config = Config::bare(
            sys::open_root(dir).expect("the directory exists"),
            dir.to_owned(),
        );
        let engine =
            Engine::open(config).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        engine.started(false);
        InProcessEngine {
            dir: dir.to_owned(),
            engine,
        }
    }

    pub fn actor() -> Actor {
        Actor {
            uid: 0,
            gid: 0,
            pid: 0,
            process: "seeds".into(),
        }
    }

    /// Returns the node of a path by lookups, as the kernel makes them.
    pub fn node(&self, path: &Path) -> NodeId {
        path.iter().fold(ROOT, |parent, name| {
            match self.engine.lookup(CALLER, parent, name.as_encoded_bytes()) {
                Ok(LookupResult::Found(entry)) => entry.node,
                other => panic!("{}: {other:?}", path.display()),
            }
        })
    }

    /// Opens a file, writes to its beginning, and closes it, like an editor's save.
    pub fn write(&self, node: NodeId, number: usize) {
        let fh = self
            .engine
            .open(CALLER, node, READ_WRITE)
            .expect("a file can be opened")
            .fh;
        let data = format!("{number:0STAMP_BYTES$}");
        self.engine
            .write(CALLER, node, fh, 0, data.as_bytes(), false)
            .expect("a file can be written");
        self.engine.release(node, fh);
    }

    pub fn unlink(&self, name: &str) {
        self.engine
            .unlink(CALLER, ROOT, name.as_bytes())
            .expect("a file can be removed");
    }

    pub fn ask<V: Execute>(&self, verb: V) -> VerbResult<V::Answer> {
        verb.run(&self.engine, &Self::actor().into())
    }

    pub fn checkpoint(&self) -> CheckpointInfo {
        self.checkpoint_with(CheckpointOptions::default())
    }

    pub fn checkpoint_with(&self, options: CheckpointOptions) -> CheckpointInfo {
        self.ask(options.clone())
            .unwrap_or_else(|error| panic!("checkpoint failed: {error}"))
    }

    pub fn restore(&self, id: u64) -> usize {
        let options = RestoreOptions {
            to: StateName(id.to_string()),
            paths: Vec::new(),
            dry_run: false,
            times: None,
        };
        self.ask(options.clone())
            .unwrap_or_else(|error| panic!("restore failed: {error}"))
            .changes
            .len()
    }

    /// Verifies a checkpoint completely.
    pub fn verify(&self, id: u64, deep: bool) {
        let mut options = VerifyOptions {
            state: Some(StateName(id.to_string())),
            deep,
            run: None,
        };
        loop {
            let verified = self
                .ask(options.clone())
                .unwrap_or_else(|error| panic!("cannot verify: {error}"));
            assert!(
                verified.findings.is_empty(),
                "damage found: {:?}",
                verified.findings
            );
            if verified.finished {
                return;
            }
            options.run = Some(verified.run);
        }
    }

    /// Runs `gc` to its end.
    pub fn gc(&self, mut options: GcOptions) -> GcReport {
        loop {
            let report = self
                .ask(options.clone())
                .unwrap_or_else(|error| panic!("gc failed: {error}"));
            if report.finished {
                return report;
            }
            options.run = Some(report.run);
        }
    }

    /// Closes the engine cleanly and removes the directory.
    pub fn end(self) {
        let dir = self.dir.clone();
        drop(self);
        remove(&dir);
    }
}

impl Drop for InProcessEngine {
    fn drop(&mut self) {
        self.engine.close();
    }
}
