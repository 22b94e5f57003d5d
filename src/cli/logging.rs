//! Logging.

/// Writes log lines to stderr, selected by `CKPTFS_LOG` (`debug`, `ckptfs::fuse=trace`, ...), else
/// by `otherwise`; without either, no lines.
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
        // A line that cannot be written (the disk is full) is lost. Otherwise the failure would be
        // reported on stderr by a macro that panics if that fails. The panic would end a thread of
        // the session, and its requests would never be answered. A second call keeps the first
        // logger.
        let _ = log.log_internal_errors(false).try_init();
    }
}
