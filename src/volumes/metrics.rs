//! `GET /metrics` on the driver's socket: numbers of the pool, and of the daemon of each volume
//! that is mounted, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::http::{Request, Response};
use super::pool::Pool;
use super::record::Record;
use super::registry::Registry;
use crate::engine::api::{GetStats, GetStatus, VerbResult};
use crate::engine::metrics::{Families, Tree, label, text};

/// Daemons that have not answered by then are told as down; a collector waits for ten seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Threads that ask daemons. One whose daemon does not answer is not available again before that
/// does: a daemon that hangs takes one of them, and not one with each question.
const ASKERS_MAX: usize = 8;
/// The format, with the version that the collector goes by.
const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Asks the daemons of a pool.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    /// Threads that ask.
    askers: Arc<AtomicUsize>,
}

/// Whether it is the numbers that are asked for.
pub fn are_asked(request: &Request) -> bool {
    request.method == "GET" && request.path == "/metrics"
}

impl Collector {
    /// The numbers; 500 with the reason if the pool cannot be read.
    pub fn answer(&self, pool: &Pool) -> Response {
        let (status, body) = match self.collected(pool.registry()) {
            Ok(body) => (200, body),
            Err(error) => (500, format!("{}\n", error.message)),
        };
        Response {
            status,
            kind: TYPE,
            body: body.into_bytes(),
        }
    }

    fn collected(&self, registry: &Registry) -> VerbResult<String> {
        let all = registry.list()?;
        let mut mounted = Vec::new();
        for record in &all {
            if registry.mountpoint(record)?.is_some() {
                mounted.push(record.clone());
            }
        }
        let names: Vec<String> = mounted.iter().map(|record| record.name.clone()).collect();
        let trees = self.asked(registry, mounted);
        let mut pool = Families::default();
        pool.add(
            "ckptfs_volumes",
            "gauge",
            "Volumes in the pool.",
            [(String::new(), all.len())],
        );
        let up = |name: &String| {
            let labels = label("volume", name);
            (labels, u8::from(trees.contains_key(name)))
        };
        pool.add(
            "ckptfs_volume_up",
            "gauge",
            "Whether the daemon of a volume that is mounted answers.",
            names.iter().map(up),
        );
        let trees: Vec<Tree> = trees.into_values().collect();
        Ok(pool.text + &text(&trees))
    }

    /// What the daemons say, as far as they say it in time.
    fn asked(&self, registry: &Registry, volumes: Vec<Record>) -> BTreeMap<String, Tree> {
        let until = Instant::now() + ANSWER_TIMEOUT;
        let wanted = volumes.len().min(ASKERS_MAX);
        let volumes = Arc::new(Mutex::new(volumes));
        let (tell, told) = mpsc::channel();
        for _ in 0..wanted {
            self.start(registry.clone(), Arc::clone(&volumes), tell.clone());
        }
        drop(tell);
        let mut all = BTreeMap::new();
        // It ends when nobody asks any more.
        while let Ok((name, tree)) =
            told.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            all.insert(name, tree);
        }
        // Whoever is late finds nothing left to ask.
        let mut left = volumes.lock().unwrap_or_else(PoisonError::into_inner);
        left.clear();
        all
    }

    /// Starts a thread that asks for one volume after the other, if there may be one more.
    fn start(
        &self,
        registry: Registry,
        volumes: Arc<Mutex<Vec<Record>>>,
        tell: Sender<(String, Tree)>,
    ) {
        let more = |askers| (askers < ASKERS_MAX).then_some(askers + 1);
        let (order, askers) = (Ordering::SeqCst, Arc::clone(&self.askers));
        if askers.fetch_update(order, order, more).is_err() {
            return;
        }
        let asker = Asker(askers);
        let ask = move || {
            let _asker = asker;
            let next = || {
                let mut left = volumes.lock().unwrap_or_else(PoisonError::into_inner);
                left.pop()
            };
            while let Some(record) = next() {
                if let Some(tree) = tree(&registry, &record) {
                    // Nobody may wait for it any more.
                    let _ = tell.send((record.name, tree));
                }
            }
        };
        if let Err(error) = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(ask)
        {
            tracing::warn!(%error, "no thread to ask daemons for their numbers");
        }
    }
}

/// One of the threads that ask, as long as it lives.
struct Asker(Arc<AtomicUsize>);

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn tree(registry: &Registry, record: &Record) -> Option<Tree> {
    let mut daemon = registry.history(record).ok()?.daemon()?;
    let (status, stats) = (daemon.ask(GetStatus).ok()?, daemon.ask(GetStats).ok()?);
    Some(Tree {
        volume: Some(record.name.clone()),
        status,
        stats,
    })
}
