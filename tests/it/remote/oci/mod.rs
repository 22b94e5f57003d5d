//! Images in a registry: Debian's `docker-registry` on the loopback, and what others read of them.

mod engines;
mod faults;
mod hostile;
mod images;
mod server;
mod tls;
