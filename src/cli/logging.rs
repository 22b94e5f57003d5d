//! Log lines.

/// Writes log lines to stderr: what `CKPTFS_LOG` selects (`debug`, `ckptfs::fuse=trace`, ...), else
/// what `otherwise` does, else nothing.
pub(super) fn log_to_stderr(otherwise: Option<&str>) {
    let selected = std::env::var("CKPTFS_LOG")
        .ok()
        .filter(|filter| !filter.is_empty());
    if let Some(filter) = selected.as_deref().or(otherwise) {
        let filter = tracing_subscriber::EnvFilter::new(filter);
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false);
        // A line that cannot be written (the disk is full) is lost. It would be told on stderr too,
        // by a macro that panics when that fails; a thread of the session would end by it, and
        // whoever waits for its answer waits for ever. A second call finds a logger in place, and
        // that one stays.
        let _ = log.log_internal_errors(false).try_init();
    }
}
