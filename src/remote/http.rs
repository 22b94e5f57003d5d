//! What all who speak HTTP to a remote have in common: whom they trust, and how a failure is told.

use std::error::Error;
use std::time::Duration;

use reqwest::{Client, ClientBuilder, redirect};

/// How long nothing may move before a server is given up, in seconds, in place of [`IDLE`].
const IDLE_VARIABLE: &str = "CKPTFS_REMOTE_TIMEOUT";
/// What the kernel holds of what was sent, 4 MiB at most, passes at 70 kB/s in that time.
const IDLE: Duration = Duration::from_secs(60);

/// What to do about a certificate that nobody here knows.
pub const CERTIFICATE: &str = "if the server is the one you mean, name a PEM file with the certificate of its authority \
     in SSL_CERT_FILE (nothing else is trusted then), or add it to this machine's certificates";

/// How long nothing may move: neither a byte sent nor one received.
pub fn idle() -> Duration {
    let set = std::env::var(IDLE_VARIABLE).ok();
    let seconds = set.and_then(|text| text.trim().parse::<u32>().ok());
    match seconds {
        Some(seconds @ 1..) => Duration::from_secs(seconds.into()),
        _ => IDLE,
    }
}

/// A client that takes what comes as it is. Proxies are those of the environment; certificates are
/// compared with those of the system, or of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
pub fn client(plain: bool) -> ClientBuilder {
    // Fails if the process has a provider already, which is this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .user_agent(concat!("ckptfs/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .https_only(!plain)
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
}

/// The first cause of a failure: what lies behind all that says no more than that it failed.
pub fn first_cause<'a>(failure: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut cause = failure;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause
}

/// A certificate was refused, by what a failure says.
pub fn is_of_certificate(said: &str) -> bool {
    said.contains("invalid peer certificate")
}
