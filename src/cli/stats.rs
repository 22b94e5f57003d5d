//! The counters of the daemon: `ckptfs status -v`.

use std::io;

use super::size;
use ckptfs_api::{Stats, UpkeepInfo};
use ckptfs_ui::output::Out;
use ckptfs_ui::time;

/// Formats free space, the history, gc and pushes, one line each.
fn upkeep(upkeep: &UpkeepInfo) -> Vec<(&'static str, String)> {
    let human = size::human;
    let mut lines = vec![(
        "space",
        format!(
            "{} of {} free",
            human(upkeep.free_bytes),
            human(upkeep.size_bytes)
        ),
    )];
    if let Some(history) = &upkeep.history {
        let (bytes, at) = (human(history.bytes), time::local(&history.at));
        lines.push(("history", format!("{bytes}, counted {at}")));
    }
    lines.extend(upkeep.gc.iter().map(|at| ("gc", time::local(at))));
    for (remote, push) in &upkeep.pushes {
        let last = push.last.as_deref();
        let last = last.map_or("not yet".to_owned(), time::local);
        let failed = match push.failed {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        lines.push(("push", format!("{remote}: {last}{failed}")));
    }
    lines
}

/// Prints the statistics, one line each.
pub fn print(stats: &Stats, out: &mut Out) -> io::Result<()> {
    let daemon = &stats.daemon;
    let total: u64 = stats.requests.values().sum();
    let mut lines = vec![
        ("mount", stats.mount.display().to_string()),
        ("io", format!("{}, writes {}", stats.io, stats.writes)),
        (
            "daemon",
            format!(
                "pid {}, version {}, since {}",
                daemon.pid,
                daemon.version,
                time::local(&daemon.started)
            ),
        ),
        (
            "memory",
            format!(
                "{:.1} MiB, {} threads",
                stats.rss_bytes as f64 / f64::from(1 << 20),
                stats.threads
            ),
        ),
        ("open", format!("{} files", stats.open_files)),
        (
            "inodes",
            format!(
                "{} of the tree, {} of the past",
                stats.inodes, stats.past_inodes
            ),
        ),
    ];
    lines.extend(upkeep(&stats.upkeep));
    lines.push(("requests", total.to_string()));
    for (label, value) in lines {
        out.labelled(label, &value)?;
    }
    let mut asked: Vec<(&String, u64)> = stats
        .requests
        .iter()
        .map(|(kind, &count)| (kind, count))
        .filter(|&(_, count)| count > 0)
        .collect();
    asked.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    for (kind, count) in asked {
        out.line(&format!("{count:>10} {kind}"))?;
    }
    Ok(())
}
