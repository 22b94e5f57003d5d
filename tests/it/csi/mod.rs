//! The CSI driver: the conformance suite, and its gaps, tested over gRPC as an orchestrator does.

mod support;

mod classes;
mod clones;
mod conformance;
mod manifests;
mod node;
#[cfg(feature = "remote")]
mod remote;
mod snapshots;
mod staged;
mod survival;
