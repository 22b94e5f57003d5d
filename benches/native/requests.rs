//! FUSE requests by kind, counted by the kernel's tracepoint in the same way for every FUSE
//! filesystem.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::common::command::{tool, try_run_limited};

/// Counts by kind, without the common prefix.
pub type Requests = BTreeMap<String, u64>;

const TRACING: &str = "/sys/kernel/tracing";
/// Buffer size per CPU; an event takes 32 bytes.
const BUFFER_KB: &str = "32768";

/// A separate trace buffer, which does not disturb other users of the tracer. Removed on drop.
pub struct Tracer {
    dir: PathBuf,
}

impl Tracer {
    /// Creates the trace buffer.
    ///
    /// # Errors
    /// Returns the reason why this kernel cannot count requests.
    pub fn new() -> Result<Tracer, String> {
        let tracing = PathBuf::from(TRACING);
        if !tracing.join("instances").exists() {
            let _ = try_run_limited(
                &mut tool("mount", &["-t", "tracefs", "tracefs", TRACING]),
                10,
            );
        }
        let dir = tracing
            .join("instances")
            .join(format!("ckptfs-native-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("no trace buffer: {error}"))?;
        let tracer = Tracer { dir };
        tracer.write("buffer_size_kb", BUFFER_KB)?;
        if !tracer.event("").exists() {
            return Err("this kernel has no tracepoint fuse_request_send".to_owned());
        }
        Ok(tracer)
    }

    fn event(&self, name: &str) -> PathBuf {
        self.dir.join("events/fuse/fuse_request_send").join(name)
    }

    fn write(&self, name: &str, value: &str) -> Result<(), String> {
        fs::write(self.dir.join(name), value).map_err(|error| format!("{name}: {error}"))
    }

    /// Counts the requests on the connection with this minor number during `run`. Returns `None` if
    /// the buffer overflowed.
    pub fn count<T>(&self, minor: u32, run: impl FnOnce() -> T) -> (T, Option<Requests>) {
        let enable = |value: &str| {
            self.write("events/fuse/fuse_request_send/enable", value)
                .expect("the tracepoint can be switched")
        };
        self.write(
            "events/fuse/fuse_request_send/filter",
            &format!("connection == {minor}"),
        )
        .expect("the tracepoint can be filtered");
        self.write("trace", "")
            .expect("the trace buffer can be emptied");
        enable("1");
        let result = run();
        enable("0");
        let requests = if self.lost() {
            None
        } else {
            Some(self.counted())
        };
        (result, requests)
    }

    fn lost(&self) -> bool {
        let cpus = fs::read_dir(self.dir.join("per_cpu"))
            .into_iter()
            .flatten()
            .flatten();
        let lost = |stats: String| {
            stats.lines().any(|line| {
                line.strip_prefix("overrun: ")
                    .is_some_and(|count| count != "0")
            })
        };
        cpus.map(|cpu| fs::read_to_string(cpu.path().join("stats")).unwrap_or_default())
            .any(lost)
    }

    fn counted(&self) -> Requests {
        let mut requests = Requests::new();
        for line in fs::read_to_string(self.dir.join("trace"))
            .expect("the trace can be read")
            .lines()
        {
            if let Some((_, rest)) = line.split_once("(FUSE_")
                && let Some((kind, _)) = rest.split_once(')')
            {
                *requests.entry(kind.to_lowercase()).or_default() += 1;
            }
        }
        requests
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = fs::write(self.event("enable"), "0");
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("native: {} was not removed: {error}", self.dir.display());
        }
    }
}
