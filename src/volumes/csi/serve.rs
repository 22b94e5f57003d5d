//! The server: a socket, a decoding thread, and blocking threads for the calls.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::UnixStream;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};

use super::proto::controller_server::ControllerServer;
use super::proto::identity_server::IdentityServer;
use super::proto::node_server::NodeServer;
use crate::Pool;
use crate::http::CONNECTIONS_MAX;
use crate::serve::drive;
use crate::timed::{ConnectionProgress, Connections, Timed};
use ckptfs_api as api;
use ckptfs_api::{VerbError, VerbResult};

/// Maximum number of concurrent calls; others wait.
const CALLS_MAX: usize = 64;

/// Configuration of a driver.
#[derive(Clone, Debug)]
pub struct Config {
    /// The socket that it listens on.
    pub socket: PathBuf,
    /// The node that it runs on.
    pub node: String,
}

/// Context of all calls.
#[derive(Debug)]
pub struct Driver {
    /// The pool of volumes.
    pub pool: Pool,
    /// The node.
    pub node: String,
}

/// Implementation of the three services.
#[derive(Clone, Debug)]
pub struct Service(Arc<Driver>);

impl Service {
    /// Runs a call in a blocking thread.
    pub async fn work<Q: Send + 'static, T: Send + 'static>(
        &self,
        call: &'static str,
        request: Request<Q>,
        work: impl FnOnce(&Driver, &Q) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let _answering = request
            .extensions()
            .get::<ConnectionProgress>()
            .map(ConnectionProgress::answering);
        let (driver, request) = (Arc::clone(&self.0), request.into_inner());
        let done = tokio::task::spawn_blocking(move || work(&driver, &request)).await;
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

    /// Returns the node.
    pub fn node(&self) -> &str {
        &self.0.node
    }
}

/// Makes the state of the connection available to calls.
impl Connected for Timed<UnixStream> {
    type ConnectInfo = ConnectionProgress;

    fn connect_info(&self) -> ConnectionProgress {
        self.turn().clone()
    }
}

/// Serves until a signal ends the process, and calls `told` once it accepts connections. Staged
/// volumes stay mounted.
///
/// # Errors
/// `in-use`: another driver serves this pool; the socket cannot be created.
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
            let mut connections = Connections::new(CONNECTIONS_MAX);
            let incoming = UnixListenerStream::new(listener).filter_map(move |accepted| {
                let place = |stream| Some(Timed::new(stream, connections.place()?, None));
                accepted.map(place).transpose()
            });
            let server = Server::builder()
                .add_service(IdentityServer::new(service.clone()))
                .add_service(ControllerServer::new(service.clone()))
                .add_service(NodeServer::new(service))
                .serve_with_incoming_shutdown(incoming, async { drop(ended.await) });
            told();
            server.await.map_err(|cause| VerbError {
                code: api::Code::Io,
                message: format!("serving: {cause}"),
                hint: None,
            })
        },
    )
}
