//! The driver: a socket, a thread that decodes, threads that work.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Response, Status};

use super::proto::controller_server::ControllerServer;
use super::proto::identity_server::IdentityServer;
use super::proto::node_server::NodeServer;
use crate::engine::api;
use crate::engine::api::{VerbError, VerbResult};
use crate::volumes::Pool;
use crate::volumes::serve::drive;

/// Calls that are worked off at once; the others wait.
const CALLS_MAX: usize = 64;

/// What a driver is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it answers.
    pub socket: PathBuf,
    /// The node it is on.
    pub node: String,
}

/// What calls work with.
#[derive(Debug)]
pub struct Driver {
    /// The volumes.
    pub pool: Pool,
    /// The node.
    pub node: String,
}

/// A service: each of the three is this.
#[derive(Clone, Debug)]
pub struct Service(Arc<Driver>);

impl Service {
    /// Works off a call in a thread that may wait.
    pub async fn work<T: Send + 'static>(
        &self,
        call: &'static str,
        work: impl FnOnce(&Driver) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let driver = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&driver)).await;
        let done = done.unwrap_or_else(|_| {
            Err(Status::internal(
                "the driver failed internally; see its log",
            ))
        });
        match &done {
            Ok(_) => tracing::debug!(call, "done"),
            Err(status) => {
                tracing::info!(call, code = ?status.code(), error = status.message(), "refused")
            }
        }
        done.map(Response::new)
    }

    /// The node.
    pub fn node(&self) -> &str {
        &self.0.node
    }
}

/// Serves until a signal ends it. What is staged stays.
///
/// # Errors
/// `in-use`: another driver serves this pool; the socket cannot be made.
pub fn serve(pool: Pool, config: &Config, told: impl FnOnce()) -> VerbResult<()> {
    let service = Service(Arc::new(Driver {
        pool: pool.clone(),
        node: config.node.clone(),
    }));
    drive(
        &pool,
        &config.socket,
        CALLS_MAX,
        async move |listener, ended| {
            let server = Server::builder()
                .add_service(IdentityServer::new(service.clone()))
                .add_service(ControllerServer::new(service.clone()))
                .add_service(NodeServer::new(service))
                .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
                    drop(ended.await)
                });
            told();
            server.await.map_err(|cause| VerbError {
                code: api::Code::Io,
                message: format!("serving: {cause}"),
                hint: None,
            })
        },
    )
}
