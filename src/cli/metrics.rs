//! The numbers of a daemon in the text format of Prometheus (version 0.0.4).

use std::fmt::Write;

use crate::engine::api::{Stats, Status};

/// All of them. Each metric has `mount`, so that those of several trees can stand in one file.
pub fn text(status: &Status, stats: &Stats) -> String {
    let mut all = Metrics {
        text: String::new(),
        mount: label(&status.mount.display().to_string()),
    };
    all.info(status);
    all.of_history(status);
    all.of_daemon(stats);
    all.text
}

struct Metrics {
    text: String,
    mount: String,
}

/// A value of a label: `\`, `"` and the end of a line are escaped.
fn label(text: &str) -> String {
    text.replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n")
}

fn seconds(time: &str) -> Option<f64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    Some(time.as_millisecond() as f64 / 1000.0)
}

impl Metrics {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // A string takes everything.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        let _ = writeln!(self.text, "{name}{{mount=\"{}\"}} {value}", self.mount);
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.one(name, "gauge", help, value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.one(name, "counter", help, value);
    }

    fn info(&mut self, status: &Status) {
        let name = "ckptfs_info";
        self.head(name, "gauge", "What serves the tree; always 1.");
        let (version, filesystem) = (label(&status.daemon.version), label(&status.filesystem));
        let (io, mount) = (label(&status.io), &self.mount);
        let labels = format!(
            "mount=\"{mount}\",version=\"{version}\",filesystem=\"{filesystem}\",io=\"{io}\""
        );
        let _ = writeln!(self.text, "{name}{{{labels}}} 1");
    }

    fn of_history(&mut self, status: &Status) {
        self.gauge(
            "ckptfs_checkpoints",
            "Checkpoints that are kept.",
            status.checkpoints,
        );
        if let Some(latest) = status.latest {
            self.gauge(
                "ckptfs_latest_checkpoint",
                "Number of the newest checkpoint that somebody asked for.",
                latest.0,
            );
        }
        self.gauge(
            "ckptfs_changed_paths",
            "Paths that differ from the checkpoint that the tree comes from.",
            status.dirty.len() as u64,
        );
        self.gauge(
            "ckptfs_warnings",
            "Warnings that status tells.",
            status.warnings.len() as u64,
        );
        if let Some(started) = seconds(&status.daemon.started) {
            self.one(
                "ckptfs_start_time_seconds",
                "gauge",
                "When the daemon started, in seconds since 1970.",
                started,
            );
        }
        self.counter(
            "ckptfs_takeovers_total",
            "Daemons that died since the mount and were replaced.",
            u64::from(status.daemon.takeovers),
        );
    }

    fn of_daemon(&mut self, stats: &Stats) {
        self.gauge(
            "ckptfs_resident_memory_bytes",
            "Memory of the daemon.",
            stats.rss_bytes,
        );
        self.gauge("ckptfs_threads", "Threads of the daemon.", stats.threads);
        self.gauge(
            "ckptfs_open_files",
            "Open files, of the tree and of the past.",
            stats.open_files,
        );
        self.gauge(
            "ckptfs_inodes",
            "Inodes of the tree that the kernel knows.",
            stats.inodes,
        );
        self.gauge(
            "ckptfs_past_inodes",
            "Inodes of the past that the kernel knows.",
            stats.past_inodes,
        );
        self.counter(
            "ckptfs_hashed_objects_total",
            "Captured versions that were hashed since the mount.",
            stats.sealer.objects,
        );
        self.counter(
            "ckptfs_hashed_bytes_total",
            "Their bytes.",
            stats.sealer.bytes,
        );
        let name = "ckptfs_requests_total";
        self.head(
            name,
            "counter",
            "Requests of the kernel since the mount, by kind.",
        );
        for (kind, count) in &stats.requests {
            let _ = writeln!(
                self.text,
                "{name}{{mount=\"{}\",kind=\"{}\"}} {count}",
                self.mount,
                label(kind)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::label;

    #[test]
    fn a_label_ends_where_it_is_to() {
        assert_eq!(label("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
    }
}
