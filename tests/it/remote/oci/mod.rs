//! Images in a registry: Debian's `docker-registry` on the loopback interface, and other programs
//! that read them.

mod engines;
mod faults;
mod hostile;
mod images;
mod server;
mod tls;
