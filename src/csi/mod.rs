//! The CSI driver: volumes of a pool for Kubernetes, and for whatever else speaks the Container
//! Storage Interface (gRPC over a unix socket).
//!
//! ```text
//! volume_id      the volume's name in the pool        (names.rs: what the orchestrator calls it, if the pool can)
//! snapshot_id    VOLUME@N@NODE, N the number of the checkpoint; VOLUME@N is understood too;
//!                VOLUME@N@remote/REMOTE/STORE of one that is in a remote, which every node understands
//! topology       csi.ckptfs/node = the id of the node: a volume is where its files are
//! ```
//!
//! **It serves nothing**, as the Docker driver beside it: the calls are decoded here, and done by
//! the pool ([`crate::volumes`]), whose volumes have holders and daemons of their own. So it can be
//! killed and replaced under running pods, and keeps nothing in memory. What comes from a remote, or
//! goes there, ends with it, and is gone on with when it is asked for again.
//!
//! **What is staged and published is what the kernel's table says**: staging binds the volume at
//! the staging path (and is a use of it in the pool's record), publishing binds it at the target
//! path. A bind is a fact that outlives the driver, and that the pool's own housekeeping sees.
//!
//! **Threads.** One thread decodes; each call is worked off in one that may wait. No locks in
//! memory: what must not be done twice at a time is under a flock(2) in the pool.

/// Implements the trait of a service: calls that a thread which may wait works off, each by a
/// function of the driver, and functions that are written out.
macro_rules! calls {
    ($service:ident {
        $($call:ident: $name:ident($request:ident) -> $response:ident = $work:expr;)*
    } $($other:tt)*) => {
        #[tonic::async_trait]
        impl $service for Service {
            $(async fn $name(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$response>, Status> {
                self.work(stringify!($call), request, $work).await
            })*

            $($other)*
        }
    };
}

mod controller;
mod identity;
mod names;
mod node;
mod pages;
mod serve;
mod snapshots;
mod status;
mod wanted;

/// Generated from csi.proto.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    rustdoc::all,
    rust_2018_idioms
)]
pub mod proto {
    tonic::include_proto!("csi.v1");
}

pub use serve::{Config, serve};

/// The driver's name.
pub const NAME: &str = "csi.ckptfs";
/// Names the node that a volume is on.
pub const TOPOLOGY_KEY: &str = "csi.ckptfs/node";
