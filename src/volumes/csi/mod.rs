//! The CSI driver: volumes of a pool for Kubernetes and other orchestrators that use the Container
//! Storage Interface (gRPC over a unix socket).
//!
//! ```text
//! volume_id      the volume's name in the pool        (names.rs: the orchestrator's name, if it is valid in the pool)
//! snapshot_id    VOLUME@N@NODE, N the number of the checkpoint; VOLUME@N is accepted;
//!                VOLUME@N@remote/REMOTE/STORE for a snapshot in a remote, which every node accepts
//! topology       csi.ckptfs/node = the id of the node: a volume is where its files are
//! ```
//!
//! **The driver serves no filesystem**, like the Docker driver: it decodes calls, and the pool
//! ([`crate`]) executes them. The volumes have holders and daemons of their own. The
//! driver can therefore be killed and replaced under running pods, and has no state in memory.
//! Transfers from and to a remote end with the driver, and resume when they are requested again.
//!
//! **The kernel's mount table is the state of staging and publishing**: staging bind-mounts the
//! volume at the staging path (and is a use in the pool's record), publishing at the target path. A
//! bind mount outlives the driver, and the pool's housekeeping sees it.
//!
//! **Threads.** One thread decodes; each call runs in a thread that may block. No locks in memory:
//! operations that exclude each other take a flock(2) in the pool.

/// Implements the trait of a service: calls that a function of the driver handles in a blocking
/// thread, and methods written out.
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
mod volume_request;

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

/// The name of the driver.
pub const NAME: &str = "csi.ckptfs";
/// The topology key for the node of a volume.
pub const TOPOLOGY_KEY: &str = "csi.ckptfs/node";
