//! `GET /metrics` on the driver's socket: metrics of the pool and of the daemon of each mounted
//! volume, in the Prometheus text format.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::http::{Request, Response};
use super::pool::Pool;
use super::record::VolumeRecord;
use super::registry::Registry;
use ckptfs_api::{GetStats, GetStatus, VerbResult};
use ckptfs_core::engine::metrics::{Families, Tree, label, text};

/// Daemons that do not answer in time are reported as down; a collector waits for ten seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of query threads. A thread stays occupied until its daemon answers, so a hung
/// daemon occupies one thread in total, not one per request.
const ASKERS_MAX: usize = 8;
/// Content type, with the version of the format.
const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Collects metrics from the daemons of a pool.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    /// Number of query threads.
    askers: Arc<AtomicUsize>,
}

/// Whether a request is for metrics.
pub fn are_asked(request: &Request) -> bool {
    request.method == "GET" && request.path == "/metrics"
}

impl Collector {
    /// Returns the metrics, or status 500 with the reason if the pool cannot be read.
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

    /// Returns the metrics of the daemons that answer in time.
    fn asked(&self, registry: &Registry, volumes: Vec<VolumeRecord>) -> BTreeMap<String, Tree> {
        let until = Instant::now() + ANSWER_TIMEOUT;
        let wanted = volumes.len().min(ASKERS_MAX);
        let volumes = Arc::new(Mutex::new(volumes));
        let (tell, told) = mpsc::channel();
        for _ in 0..wanted {
            self.start(registry.clone(), Arc::clone(&volumes), tell.clone());
        }
        drop(tell);
        let mut all = BTreeMap::new();
        // Ends when the last query thread has ended.
        while let Ok((name, tree)) =
            told.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            all.insert(name, tree);
        }
        // Late threads find no volume left to query.
        let mut left = volumes.lock().unwrap_or_else(PoisonError::into_inner);
        left.clear();
        all
    }

    /// Starts a query thread, unless the maximum is reached.
    fn start(
        &self,
        registry: Registry,
        volumes: Arc<Mutex<Vec<VolumeRecord>>>,
        tell: Sender<(String, Tree)>,
    ) {
        let more = |askers| (askers < ASKERS_MAX).then_some(askers + 1);
        let (order, askers) = (Ordering::SeqCst, Arc::clone(&self.askers));
        if askers.fetch_update(order, order, more).is_err() {
            return;
        }
        let asker = QueryThread(askers);
        let ask = move || {
            let _asker = asker;
            let next = || {
                let mut left = volumes.lock().unwrap_or_else(PoisonError::into_inner);
                left.pop()
            };
            while let Some(record) = next() {
                if let Some(tree) = tree(&registry, &record) {
                    // The receiver may be gone.
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

/// Counts a query thread while it lives.
struct QueryThread(Arc<AtomicUsize>);

impl Drop for QueryThread {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn tree(registry: &Registry, record: &VolumeRecord) -> Option<Tree> {
    let mut daemon = registry.history(record).ok()?.daemon()?;
    let (status, stats) = (daemon.ask(GetStatus).ok()?, daemon.ask(GetStats).ok()?);
    Some(Tree {
        volume: Some(record.name.clone()),
        status,
        stats,
    })
}
