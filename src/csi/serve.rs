//! The driver: a socket, a thread that decodes, threads that work.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Response, Status};

use super::proto::controller_server::ControllerServer;
use super::proto::identity_server::IdentityServer;
use super::proto::node_server::NodeServer;
use crate::engine::api::{VerbError, VerbResult};
use crate::sys;
use crate::volumes::Pool;
use crate::volumes::serve::{Socket, keep_order, only_driver};

/// Calls that are worked off at once; the others wait.
const CALLS_MAX: usize = 64;
/// Answers that are under way at the end have so long.
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(10);

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
        let done = done.unwrap_or_else(|_| Err(Status::internal("the driver has failed; its log tells more")));
        match &done {
            Ok(_) => tracing::debug!(call, "done"),
            Err(status) => tracing::info!(call, code = ?status.code(), error = status.message(), "refused"),
        }
        done.map(Response::new)
    }

    /// The node.
    pub fn node(&self) -> &str {
        &self.0.node
    }
}

fn failed(what: &str, cause: impl std::fmt::Display) -> VerbError {
    VerbError { code: "io".into(), message: format!("{what}: {cause}"), hint: None }
}

/// Serves until a signal ends it. What is staged stays.
///
/// # Errors
/// `in-use`: another driver serves this pool; the socket cannot be made.
pub fn serve(pool: Pool, config: &Config, told: impl FnOnce()) -> VerbResult<()> {
    let (tell, asked) = oneshot::channel();
    sys::on_terminate(move |signal| {
        let _ = tell.send(signal);
    })
    .map_err(|cause| failed("waiting for signals", cause))?;
    sys::raise_nofile();
    let _only = only_driver(&pool)?;
    let since = jiff::Timestamp::now().as_second();
    let socket = Socket::open(&config.socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(CALLS_MAX).build();
    let runtime = runtime.map_err(|cause| failed("starting", cause))?;
    keep_order(pool.clone(), since)?;
    let service = Service(Arc::new(Driver { pool, node: config.node.clone() }));
    let served = runtime.block_on(answer(&socket, service, asked, told));
    socket.remove();
    runtime.shutdown_timeout(ANSWERS_TIMEOUT);
    served
}

async fn answer(socket: &Socket, service: Service, asked: oneshot::Receiver<i32>, told: impl FnOnce()) -> VerbResult<()> {
    let listener = socket.listener.try_clone().and_then(|listener| {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    });
    let incoming = UnixListenerStream::new(listener.map_err(|cause| failed("listening", cause))?);
    let (stop, stopping) = oneshot::channel();
    let server = Server::builder()
        .add_service(IdentityServer::new(service.clone()))
        .add_service(ControllerServer::new(service.clone()))
        .add_service(NodeServer::new(service))
        .serve_with_incoming_shutdown(incoming, async {
            let _ = stopping.await;
        });
    let end = async {
        // A signal, or its thread is gone: either way it is over, when what was asked is answered.
        let _ = asked.await;
        let _ = stop.send(());
        tokio::time::sleep(ANSWERS_TIMEOUT).await;
    };
    told();
    tokio::select! {
        served = server => served.map_err(|cause| failed("serving", cause)),
        () = end => Ok(()),
    }
}
