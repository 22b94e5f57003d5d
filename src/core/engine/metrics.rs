//! Metrics in the Prometheus text format (version 0.0.4).

use std::fmt::{Display, Write};

use ckptfs_api::{PushInfo, Stats, Status};

/// The values of a daemon and its tree.
#[derive(Debug)]
pub struct Tree {
    /// Name of the container volume, if it is one.
    pub volume: Option<String>,
    /// The reply to `status`.
    pub status: Status,
    /// The reply to `stats`.
    pub stats: Stats,
}

/// Returns all metrics. Each sample has the label `mount`, and `volume` if applicable, so that one
/// file can contain several trees.
pub fn text(trees: &[Tree]) -> String {
    let mut all = Metrics {
        families: Families::default(),
        trees,
    };
    all.info();
    all.of_history();
    all.of_upkeep();
    all.of_daemon();
    all.requests();
    all.families.text
}

/// Metrics, each a header with its samples.
#[derive(Debug, Default)]
pub struct Families {
    /// The text.
    pub text: String,
}

impl Families {
    /// Appends a metric; the keys of `samples` are their labels (`a="b"`, see [`label`]). A metric
    /// without samples is omitted.
    pub fn add<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (String, V)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        // Writing to a string never fails.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = match labels.as_str() {
                "" => writeln!(self.text, "{name} {value}"),
                labels => writeln!(self.text, "{name}{{{labels}}} {value}"),
            };
        }
    }
}

/// Returns a label with its value, escaping `\`, `"` and newline.
pub fn label(name: &str, value: &str) -> String {
    let value = value
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n");
    format!("{name}=\"{value}\"")
}

fn seconds(time: &str) -> Option<f64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    Some(time.as_millisecond() as f64 / 1000.0)
}

impl Tree {
    /// Returns the common labels of its samples.
    fn labels(&self) -> String {
        let mount = label("mount", &self.status.mount.display().to_string());
        match &self.volume {
            Some(volume) => format!("{mount},{}", label("volume", volume)),
            None => mount,
        }
    }
}

struct Metrics<'a> {
    families: Families,
    trees: &'a [Tree],
}

impl Metrics<'_> {
    fn each<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        value: impl Fn(&Tree) -> Option<V>,
    ) {
        let sample = |tree: &Tree| Some((tree.labels(), value(tree)?));
        let samples = self.trees.iter().filter_map(sample);
        self.families.add(name, kind, help, samples);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&Tree) -> u64) {
        self.each(name, "gauge", help, |tree| Some(value(tree)));
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Fn(&Tree) -> u64) {
        self.each(name, "counter", help, |tree| Some(value(tree)));
    }

    fn info(&mut self) {
        let labels = |tree: &Tree| {
            let status = &tree.status;
            [
                tree.labels(),
                label("version", &status.daemon.version),
                label("filesystem", &status.filesystem),
                label("io", &status.io),
            ]
            .join(",")
        };
        let samples = self.trees.iter().map(|tree| (labels(tree), 1));
        let help = "What serves the tree; always 1.";
        self.families.add("ckptfs_info", "gauge", help, samples);
    }

    fn of_history(&mut self) {
        self.gauge("ckptfs_checkpoints", "Checkpoints that are kept.", |tree| {
            tree.status.checkpoints
        });
        self.each(
            "ckptfs_latest_checkpoint",
            "gauge",
            "Number of the newest checkpoint that somebody asked for.",
            |tree| Some(tree.status.latest?.0),
        );
        self.gauge(
            "ckptfs_changed_paths",
            "Paths that differ from the checkpoint that the tree comes from.",
            |tree| tree.status.dirty.len() as u64,
        );
        self.gauge("ckptfs_warnings", "Warnings that status tells.", |tree| {
            tree.status.warnings.len() as u64
        });
        self.each(
            "ckptfs_start_time_seconds",
            "gauge",
            "When the daemon started, in seconds since 1970.",
            |tree| seconds(&tree.status.daemon.started),
        );
        self.counter(
            "ckptfs_takeovers_total",
            "Daemons that died since the mount and were replaced.",
            |tree| u64::from(tree.status.daemon.takeovers),
        );
    }

    fn of_upkeep(&mut self) {
        self.each(
            "ckptfs_filesystem_size_bytes",
            "gauge",
            "Size of the filesystem that has tree and history.",
            |tree| Some(tree.stats.upkeep.size_bytes).filter(|size| *size > 0),
        );
        self.each(
            "ckptfs_filesystem_avail_bytes",
            "gauge",
            "What is free of it for the daemon.",
            |tree| {
                let upkeep = &tree.stats.upkeep;
                (upkeep.size_bytes > 0).then_some(upkeep.free_bytes)
            },
        );
        self.each(
            "ckptfs_history_bytes",
            "gauge",
            "What would be freed if no checkpoint were kept, when that was counted last.",
            |tree| Some(tree.stats.upkeep.history.as_ref()?.bytes),
        );
        self.each(
            "ckptfs_newest_checkpoint_time_seconds",
            "gauge",
            "When the newest checkpoint was made, automatic ones included, in seconds since 1970.",
            |tree| seconds(tree.stats.upkeep.newest.as_deref()?),
        );
        self.each(
            "ckptfs_last_gc_time_seconds",
            "gauge",
            "When a gc ended last, since the daemon started, in seconds since 1970.",
            |tree| seconds(tree.stats.upkeep.gc.as_deref()?),
        );
        self.pushes(
            "ckptfs_last_push_time_seconds",
            "gauge",
            "When a push to the remote last ended well, in seconds since 1970.",
            |push| seconds(push.last.as_deref()?),
        );
        self.pushes(
            "ckptfs_push_failures_total",
            "counter",
            "Pushes to the remote that failed since the daemon started.",
            |push| Some(push.failed),
        );
    }

    fn pushes<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        value: impl Fn(&PushInfo) -> Option<V>,
    ) {
        let mut samples = Vec::new();
        for tree in self.trees {
            for (remote, push) in &tree.stats.upkeep.pushes {
                let labels = format!("{},{}", tree.labels(), label("remote", remote));
                samples.extend(value(push).map(|value| (labels, value)));
            }
        }
        self.families.add(name, kind, help, samples);
    }

    fn of_daemon(&mut self) {
        self.gauge(
            "ckptfs_resident_memory_bytes",
            "Memory of the daemon.",
            |tree| tree.stats.rss_bytes,
        );
        self.gauge("ckptfs_threads", "Threads of the daemon.", |tree| {
            tree.stats.threads
        });
        self.gauge(
            "ckptfs_open_files",
            "Open files, of the tree and of the past.",
            |tree| tree.stats.open_files,
        );
        self.gauge(
            "ckptfs_inodes",
            "Inodes of the tree that the kernel knows.",
            |tree| tree.stats.inodes,
        );
        self.gauge(
            "ckptfs_past_inodes",
            "Inodes of the past that the kernel knows.",
            |tree| tree.stats.past_inodes,
        );
        self.counter(
            "ckptfs_hashed_objects_total",
            "Captured versions that were hashed since the mount.",
            |tree| tree.stats.sealer.objects,
        );
        self.counter("ckptfs_hashed_bytes_total", "Their bytes.", |tree| {
            tree.stats.sealer.bytes
        });
    }

    fn requests(&mut self) {
        let samples = self.trees.iter().flat_map(|tree| {
            let (labels, requests) = (tree.labels(), &tree.stats.requests);
            let sample = move |(kind, count): (&String, &u64)| {
                (format!("{labels},{}", label("kind", kind)), *count)
            };
            requests.iter().map(sample)
        });
        let help = "Requests of the kernel since the mount, by kind.";
        self.families
            .add("ckptfs_requests_total", "counter", help, samples);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_ends_where_it_is_to() {
        assert_eq!(label("a", "a\"b\\c\nd"), r#"a="a\"b\\c\nd""#);
    }

    #[test]
    fn a_metric_without_samples_is_none() {
        let mut all = Families::default();
        all.add("a", "gauge", "None.", std::iter::empty::<(String, u64)>());
        all.add(
            "b",
            "gauge",
            "Two.",
            [(String::new(), 1), (label("x", "y"), 2)],
        );
        assert_eq!(
            all.text,
            "# HELP b Two.\n# TYPE b gauge\nb 1\nb{x=\"y\"} 2\n"
        );
    }
}
