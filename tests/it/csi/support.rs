//! A pool on a private filesystem, a CSI driver that serves it, and calls to the driver.

use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use crate::common::pool::{Pool, mount_points};
pub use crate::common::pool::{SECONDS, unavailable};
use crate::common::wait::wait_until;
use crate::common::{Fs, tool};
use ckptfs_volumes::csi::proto::controller_client::ControllerClient;
use ckptfs_volumes::csi::proto::identity_client::IdentityClient;
use ckptfs_volumes::csi::proto::node_client::NodeClient;
use ckptfs_volumes::csi::proto::volume_capability::access_mode::Mode;
use ckptfs_volumes::csi::proto::volume_capability::{AccessMode, AccessType, MountVolume};
use ckptfs_volumes::csi::proto::volume_content_source::{
    SnapshotSource, Type as Source, VolumeSource,
};
use ckptfs_volumes::csi::proto::{
    CapacityRange, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    DeleteVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, Snapshot, Volume, VolumeCapability,
    VolumeContentSource,
};

/// The name of this node.
pub const NODE: &str = "node-1";

/// A pool and its CSI driver.
pub struct Rig {
    pool: Pool,
    runtime: Runtime,
    node: &'static str,
    /// Further arguments of the driver.
    arguments: Vec<String>,
}

impl Deref for Rig {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("threads can be created")
}

/// Returns the endpoint of a driver's socket.
pub fn endpoint(socket: &Path) -> Endpoint {
    Endpoint::from_shared(format!("unix://{}", socket.display())).expect("an address")
}

/// Returns the capability of a mounted filesystem with an access mode.
pub fn capability(mode: Mode) -> Option<VolumeCapability> {
    let mount = MountVolume::default();
    Some(VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(AccessMode { mode: mode.into() }),
    })
}

/// Returns the parameters of a class.
pub fn class(list: &[(&str, &str)]) -> HashMap<String, String> {
    list.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Returns a request for a volume of at least `bytes` bytes.
pub fn wanted(name: &str, bytes: u64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes: bytes as i64,
            limit_bytes: 0,
        }),
        volume_capabilities: capability(Mode::SingleNodeWriter).into_iter().collect(),
        ..CreateVolumeRequest::default()
    }
}

/// Returns a volume as a content source.
pub fn from_volume(id: &str) -> Option<VolumeContentSource> {
    Some(VolumeContentSource {
        r#type: Some(Source::Volume(VolumeSource {
            volume_id: id.to_owned(),
        })),
    })
}

/// Returns a snapshot as a content source.
pub fn from_snapshot(id: &str) -> Option<VolumeContentSource> {
    Some(VolumeContentSource {
        r#type: Some(Source::Snapshot(SnapshotSource {
            snapshot_id: id.to_owned(),
        })),
    })
}

impl Rig {
    /// Starts a driver on a pool on XFS.
    pub fn start() -> Rig {
        Rig::start_as(NODE, &[])
    }

    /// Starts a driver with another node name and further arguments.
    pub fn start_as(node: &'static str, arguments: &[&str]) -> Rig {
        let mut rig = Rig {
            pool: Pool::new(Fs::Xfs, "run/csi.sock"),
            runtime: runtime(),
            node,
            arguments: arguments.iter().map(|&one| one.to_owned()).collect(),
        };
        rig.serve();
        rig
    }

    /// Starts a driver, and waits until it replies.
    pub fn serve(&mut self) {
        let endpoint = format!("unix://{}", self.socket.display());
        let mut command = self.ckptfs(&[
            "serve",
            "csi",
            "--endpoint",
            &endpoint,
            "--node-id",
            self.node,
        ]);
        command.args(&self.arguments);
        #[cfg(feature = "remote")]
        command.envs(crate::common::remotes::BUCKET_USER);
        self.pool.serve(command, |_| true);
    }

    /// Performs a call on a new connection, and returns the reply.
    pub fn call<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        call: impl FnOnce(Channel) -> F,
    ) -> Result<T, Status> {
        let endpoint = endpoint(&self.socket).timeout(Duration::from_secs(SECONDS));
        self.runtime.block_on(async move {
            let channel = endpoint
                .connect()
                .await
                .map_err(|error| Status::unavailable(error.to_string()))?;
            call(channel).await.map(Response::into_inner)
        })
    }

    /// Calls the controller service.
    pub fn controller<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        call: impl FnOnce(ControllerClient<Channel>) -> F,
    ) -> Result<T, Status> {
        self.call(|channel| call(ControllerClient::new(channel)))
    }

    /// Calls the node service.
    pub fn node<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        call: impl FnOnce(NodeClient<Channel>) -> F,
    ) -> Result<T, Status> {
        self.call(|channel| call(NodeClient::new(channel)))
    }

    /// Calls the identity service.
    pub fn identity<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        call: impl FnOnce(IdentityClient<Channel>) -> F,
    ) -> Result<T, Status> {
        self.call(|channel| call(IdentityClient::new(channel)))
    }

    /// Requests a volume.
    pub fn try_create(&self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        self.controller(|mut client| async move { client.create_volume(request).await })
            .map(|made| made.volume.expect("a volume"))
    }

    /// Creates a volume without a size.
    #[track_caller]
    pub fn create(&self, name: &str) -> Volume {
        self.try_create(wanted(name, 0))
            .unwrap_or_else(|error| panic!("{error}; {}", self.log()))
    }

    /// Creates a volume from a content source.
    #[track_caller]
    pub fn create_from(&self, name: &str, source: Option<VolumeContentSource>) -> Volume {
        self.try_create(CreateVolumeRequest {
            volume_content_source: source,
            ..wanted(name, 0)
        })
        .unwrap_or_else(|error| panic!("{error}; {}", self.log()))
    }

    pub fn delete(&self, id: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest {
            volume_id: id.to_owned(),
            ..DeleteVolumeRequest::default()
        };
        self.controller(|mut client| async move { client.delete_volume(request).await })
            .map(drop)
    }

    /// Requests a snapshot.
    pub fn try_snapshot(&self, volume: &str, name: &str) -> Result<Snapshot, Status> {
        let request = CreateSnapshotRequest {
            source_volume_id: volume.to_owned(),
            name: name.to_owned(),
            ..CreateSnapshotRequest::default()
        };
        self.controller(|mut client| async move { client.create_snapshot(request).await })
            .map(|made| made.snapshot.expect("a snapshot"))
    }

    /// Creates a snapshot.
    #[track_caller]
    pub fn snapshot(&self, volume: &str, name: &str) -> Snapshot {
        self.try_snapshot(volume, name)
            .unwrap_or_else(|error| panic!("{error}; {}", self.log()))
    }

    pub fn delete_snapshot(&self, id: &str) -> Result<(), Status> {
        let request = DeleteSnapshotRequest {
            snapshot_id: id.to_owned(),
            ..DeleteSnapshotRequest::default()
        };
        self.controller(|mut client| async move { client.delete_snapshot(request).await })
            .map(drop)
    }

    /// Returns the staging path of a volume.
    pub fn staging(&self, id: &str) -> PathBuf {
        let staging = self.image.dir("kubelet/staging").join(id);
        // Not checked first: it may be a hung mount.
        let _ = fs::create_dir(&staging);
        staging
    }

    /// Returns the target path of a volume for `pod`.
    pub fn target(&self, id: &str, pod: &str) -> PathBuf {
        self.image.dir(&format!("kubelet/pods/{pod}")).join(id)
    }

    pub fn try_stage(&self, id: &str, mode: Mode) -> Result<PathBuf, Status> {
        let staging = self.staging(id);
        self.stage_at(id, &staging, mode).map(|()| staging)
    }

    /// Stages a volume at a path.
    pub fn stage_at(&self, id: &str, staging: &Path, mode: Mode) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(staging),
            volume_capability: capability(mode),
            ..NodeStageVolumeRequest::default()
        };
        self.node(|mut client| async move { client.node_stage_volume(request).await })
            .map(drop)
    }

    pub fn unstage(&self, id: &str) -> Result<(), Status> {
        self.unstage_at(id, &self.staging(id))
    }

    /// Unstages a volume at a path.
    pub fn unstage_at(&self, id: &str, staging: &Path) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(staging),
        };
        self.node(|mut client| async move { client.node_unstage_volume(request).await })
            .map(drop)
    }

    /// Publishes a staged volume for a pod.
    pub fn try_publish(
        &self,
        id: &str,
        pod: &str,
        mode: Mode,
        readonly: bool,
    ) -> Result<PathBuf, Status> {
        let target = self.target(id, pod);
        let request = NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(&self.staging(id)),
            target_path: text(&target),
            volume_capability: capability(mode),
            readonly,
            ..NodePublishVolumeRequest::default()
        };
        self.node(|mut client| async move { client.node_publish_volume(request).await })
            .map(|_| target)
    }

    pub fn unpublish(&self, id: &str, pod: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: text(&self.target(id, pod)),
        };
        self.node(|mut client| async move { client.node_unpublish_volume(request).await })
            .map(drop)
    }

    /// Stages and publishes a volume for a pod that writes. Returns its target path.
    #[track_caller]
    pub fn use_it(&self, id: &str, pod: &str) -> PathBuf {
        let shown = self
            .try_stage(id, Mode::SingleNodeWriter)
            .and_then(|_| self.try_publish(id, pod, Mode::SingleNodeWriter, false));
        shown.unwrap_or_else(|error| panic!("{error}; {}", self.log()))
    }

    /// Unpublishes and unstages a volume.
    #[track_caller]
    pub fn leave(&self, id: &str, pod: &str) {
        self.unpublish(id, pod)
            .and_then(|()| self.unstage(id))
            .unwrap_or_else(|error| panic!("{error}; {}", self.log()));
    }

    /// Returns the number of mounts at a path.
    pub fn mounts_at(&self, at: &Path) -> usize {
        mount_points().iter().filter(|point| *point == at).count()
    }
}

/// Returns the code of a rejected call.
#[track_caller]
pub fn code<T: std::fmt::Debug>(result: Result<T, Status>) -> Code {
    result.expect_err("it is refused").code()
}

pub fn text(path: &Path) -> String {
    path.to_str().expect("text").to_owned()
}

/// A program that appends to a file repeatedly, like a pod. Each line is one write.
pub struct PodWriter {
    process: Child,
    log: PathBuf,
}

impl PodWriter {
    /// Starts a program that appends to `log` in a directory.
    pub fn start(at: &Path) -> PodWriter {
        let log = at.join("log");
        let script = "while echo line >>\"$1\"; do read -rt 0.01 _ || true; done";
        let process = tool("bash", &["-c", script, "pod"])
            .arg(&log)
            .stdin(Stdio::piped())
            .spawn()
            .expect("bash(1) starts");
        let pod = PodWriter { process, log };
        pod.writes_on();
        pod
    }

    fn bytes(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |found| found.len())
    }

    /// Waits until it has written more.
    #[track_caller]
    pub fn writes_on(&self) {
        let before = self.bytes();
        wait_until("the pod writes", || self.bytes() > before);
    }
}

impl Drop for PodWriter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Publishes a staged volume at a path, on a new connection.
pub fn publish_at(socket: &Path, id: &str, staging: &Path, target: &Path) -> Result<(), Status> {
    let endpoint = endpoint(socket);
    let request = NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: text(staging),
        target_path: text(target),
        volume_capability: capability(Mode::SingleNodeWriter),
        ..NodePublishVolumeRequest::default()
    };
    runtime().block_on(async move {
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        NodeClient::new(channel)
            .node_publish_volume(request)
            .await
            .map(drop)
    })
}

/// Creates a volume from another, stages it, publishes it and takes a snapshot. Retries each call
/// until it succeeds, like an orchestrator.
pub fn work_through(
    socket: &Path,
    name: &str,
    from: &str,
    staging: &Path,
    target: &Path,
    stop: &std::sync::atomic::AtomicBool,
) {
    let endpoint = endpoint(socket).timeout(Duration::from_secs(SECONDS));
    let create = CreateVolumeRequest {
        volume_content_source: from_volume(from),
        ..wanted(name, 0)
    };
    let stage = NodeStageVolumeRequest {
        volume_id: name.to_owned(),
        staging_target_path: text(staging),
        volume_capability: capability(Mode::SingleNodeWriter),
        ..NodeStageVolumeRequest::default()
    };
    let publish = NodePublishVolumeRequest {
        volume_id: name.to_owned(),
        staging_target_path: text(staging),
        target_path: text(target),
        volume_capability: capability(Mode::SingleNodeWriter),
        ..NodePublishVolumeRequest::default()
    };
    let snapshot = CreateSnapshotRequest {
        source_volume_id: name.to_owned(),
        name: name.to_owned(),
        ..CreateSnapshotRequest::default()
    };
    runtime().block_on(async move {
        for step in 0..4 {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let Ok(channel) = endpoint.connect().await else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                let (mut controller, mut node) = (
                    ControllerClient::new(channel.clone()),
                    NodeClient::new(channel),
                );
                let done = match step {
                    0 => controller.create_volume(create.clone()).await.map(drop),
                    1 => node.node_stage_volume(stage.clone()).await.map(drop),
                    2 => node.node_publish_volume(publish.clone()).await.map(drop),
                    _ => controller.create_snapshot(snapshot.clone()).await.map(drop),
                };
                match done {
                    Ok(()) => break,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        }
    });
}

/// Creates a snapshot on a new connection, and returns its id.
pub fn snapshot_at(socket: &Path, volume: &str, name: &str) -> Result<String, Status> {
    let endpoint = endpoint(socket);
    let request = CreateSnapshotRequest {
        source_volume_id: volume.to_owned(),
        name: name.to_owned(),
        ..CreateSnapshotRequest::default()
    };
    runtime().block_on(async move {
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let made = ControllerClient::new(channel)
            .create_snapshot(request)
            .await?
            .into_inner();
        Ok(made.snapshot.expect("a snapshot").snapshot_id)
    })
}

/// Calls the controller on a new connection, without the rig.
#[cfg(feature = "remote")]
pub fn controller_at<T, F: Future<Output = Result<Response<T>, Status>>>(
    socket: &Path,
    call: impl FnOnce(ControllerClient<Channel>) -> F,
) -> Result<T, Status> {
    let endpoint = endpoint(socket).timeout(Duration::from_secs(SECONDS));
    runtime().block_on(async move {
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        call(ControllerClient::new(channel))
            .await
            .map(Response::into_inner)
    })
}

/// Requests a volume on a new connection.
#[cfg(feature = "remote")]
pub fn create_at(socket: &Path, request: CreateVolumeRequest) -> Result<(), Status> {
    controller_at(socket, |mut client| async move {
        client.create_volume(request).await
    })
    .map(drop)
}
