//! The HTTP client of all remotes: certificates, timeouts, and the explanation of failures.

use std::error::Error;
use std::time::Duration;

use reqwest::{Client, ClientBuilder, redirect};

/// Environment variable that overrides [`IDLE`], in seconds.
const IDLE_VARIABLE: &str = "CKPTFS_REMOTE_TIMEOUT";
/// The kernel's send buffer, up to 4 MiB, drains at 70 kB/s in that time.
const IDLE: Duration = Duration::from_secs(60);

/// Hint for a certificate of an unknown authority.
const UNKNOWN: &str = "if the server is the one you mean, name a PEM file with the certificate of its authority \
     in SSL_CERT_FILE (nothing else is trusted then), or add it to this machine's certificates";
/// Hint for a certificate of another name.
const OTHER_NAME: &str =
    "use a name that the certificate is valid for in the URL, if the server is the one you mean";
/// Hint for a certificate outside its validity period.
const OTHER_TIME: &str =
    "check the clock of this machine with date; if it is right, the server needs a new certificate";
/// Hint for an answer that is not TLS.
const NO_TLS: &str = "check the host and the port: no server that speaks TLS answers there";

/// Returns the idle timeout: the time without a byte sent or received.
pub fn idle() -> Duration {
    let set = std::env::var(IDLE_VARIABLE).ok();
    let seconds = set.and_then(|text| text.trim().parse::<u32>().ok());
    match seconds {
        Some(seconds @ 1..) => Duration::from_secs(seconds.into()),
        _ => IDLE,
    }
}

/// Returns a client that follows no redirects and decompresses nothing. Proxies are those of the
/// environment. Certificates are verified with those of the system, or of `SSL_CERT_FILE` and
/// `SSL_CERT_DIR`.
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

/// Returns the first cause of a failure; the errors above it only report that an operation failed.
pub fn first_cause<'a>(failure: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut cause = failure;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause
}

/// Returns the reason and a hint for a TLS failure, from the text of the error.
pub fn tls_trouble(said: &str) -> Option<(&'static str, &'static str)> {
    let says = |what: &[&str]| what.iter().any(|what| said.contains(what));
    if says(&["invalid peer certificate"]) {
        let advice = match () {
            () if says(&["xpired", "NotValidYet", "not valid yet"]) => OTHER_TIME,
            () if says(&["valid for name", "NotValidForName"]) => OTHER_NAME,
            () => UNKNOWN,
        };
        return Some(("the server's certificate is not to be trusted", advice));
    }
    says(&[
        "corrupt message",
        "peer misbehaved",
        "unexpected message: got",
    ])
    .then_some(("the server does not speak TLS as it should", NO_TLS))
}
