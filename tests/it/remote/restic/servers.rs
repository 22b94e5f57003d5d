//! Repositories behind a server.
