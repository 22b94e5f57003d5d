//! The driver: a socket, a thread that decodes, threads that work.

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
use crate::engine::api;
use crate::engine::api::{VerbError, VerbResult};
use crate::volumes::Pool;
use crate::volumes::http::CONNECTIONS_MAX;
use crate::volumes::serve::drive;
use crate::volumes::timed::{Connections, Timed, Turn};

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
    pub async fn work<Q: Send + 'static, T: Send + 'static>(
        &self,
        call: &'static str,
        request: Request<Q>,
        work: impl FnOnce(&Driver, &Q) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let _answering = request.extensions().get::<Turn>().map(Turn::answering);
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

    /// The node.
    pub fn node(&self) -> &str {
        &self.0.node
    }
}

/// Calls find the state of their connection.
impl Connected for Timed<UnixStream> {
    type ConnectInfo = Turn;

    fn connect_info(&self) -> Turn {
        self.turn().clone()
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
