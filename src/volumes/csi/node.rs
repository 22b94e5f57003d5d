//! Node service: volumes at the paths of pods.
//!
//! Every call may be repeated after a crash of the caller or the driver. The kernel's mount table
//! shows which work is already done.

use std::path::{Path, PathBuf};

use tonic::{Request, Response, Status};

use super::proto::node_server::Node;
use super::proto::node_service_capability::rpc::Type as Rpc;
use super::proto::node_service_capability::{Rpc as RpcOf, Type};
use super::proto::volume_usage::Unit;
use super::proto::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, VolumeUsage,
};
use super::serve::{Driver, Service};
use super::status::{invalid, required, status_of};
use super::volume_request::{self, SizeRange};
use crate::bind::{self, BindState};
use crate::{VolumePlace, VolumeRecord};
use ckptfs_api as api;
use ckptfs_api::VerbError;
use ckptfs_sys::{self as sys, FsInfo, host};

/// Declared capabilities.
const CAPABILITIES: [Rpc; 4] = [
    Rpc::StageUnstageVolume,
    Rpc::GetVolumeStats,
    Rpc::ExpandVolume,
    Rpc::SingleNodeMultiWriter,
];

impl Driver {
    /// Returns a volume that is not deleted.
    pub fn volume(&self, id: &str) -> Result<VolumeRecord, Status> {
        let record = self
            .pool
            .registry()
            .get(id)
            .map_err(|error| match error.code {
                // An invalid name belongs to no volume.
                api::Code::BadName => Status::not_found(format!("no such volume: {id:?}")),
                _ => status_of(error),
            })?;
        if record.retired {
            Err(Status::not_found(format!(
                "volume {id} is deleted, and kept only for its snapshots"
            )))
        } else {
            Ok(record)
        }
    }

    pub fn place_of(&self, record: &VolumeRecord) -> Result<VolumePlace, Status> {
        self.pool.registry().place(record).map_err(status_of)
    }

    /// Returns whether a volume with this id exists, deleted or not: calls that end a use apply to
    /// both.
    fn is_known(&self, id: &str) -> Result<bool, Status> {
        match self.pool.registry().get(id) {
            Ok(_) => Ok(true),
            Err(error) if [api::Code::NoSuchVolume, api::Code::BadName].contains(&error.code) => {
                Ok(false)
            }
            Err(error) => Err(status_of(error)),
        }
    }

    fn stage(&self, request: &NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Status> {
        let id = required("volume_id", &request.volume_id)?;
        let staging = path("staging_target_path", &request.staging_target_path)?;
        volume_request::shown(request.volume_capability.as_ref())?;
        self.volume(id)?;
        let done = self.pool.registry().alone(&at(&staging), || {
            self.pool.mounts().stage(id, &bind::real(&staging)?)
        });
        done.map(|()| NodeStageVolumeResponse {}).map_err(status_of)
    }

    fn unstage(
        &self,
        request: &NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        let id = required("volume_id", &request.volume_id)?;
        let staging = path("staging_target_path", &request.staging_target_path)?;
        if !self.is_known(id)? {
            return Ok(NodeUnstageVolumeResponse {});
        }
        let done = self.pool.registry().alone(&at(&staging), || {
            let real = match bind::real(&staging) {
                // The staging directory no longer exists.
                Err(error) if error.code == api::Code::NotFound => staging.clone(),
                real => real?,
            };
            self.pool.mounts().unstage(id, &real)
        });
        done.map(|()| NodeUnstageVolumeResponse {})
            .map_err(status_of)
    }

    fn publish(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        let id = required("volume_id", &request.volume_id)?;
        let target = path("target_path", &request.target_path)?;
        let shown = volume_request::shown(request.volume_capability.as_ref())?;
        let record = self.volume(id)?;
        let place = self.place_of(&record)?;
        let staging = path("staging_target_path", &request.staging_target_path)
            .map_err(|_| Status::failed_precondition("the volume is not staged"))?;
        let read_only =
            shown.read_only || request.readonly || record.parsed().map_err(status_of)?.readonly;
        // One at a time for each volume, so that an exclusive publication sees all others.
        let done = self.pool.registry().alone(&format!("publish {id}"), || {
            let (staging, target) = (bind::real(&staging)?, bind::real(&target)?);
            if !matches!(bind::there(&place, &staging)?, BindState::Volume { .. }) {
                return Err(refused(
                    api::Code::NotStaged,
                    format!("volume {id} is not staged at {}", staging.display()),
                ));
            }
            if shown.alone
                && let Some(other) = bind::shown(&place)?
                    .into_iter()
                    .find(|at| *at != staging && *at != target)
            {
                return Err(refused(
                    api::Code::OtherMount,
                    format!(
                        "volume {id} is already published at {}, and its access mode allows one place only",
                        other.display()
                    ),
                ));
            }
            let flags: Vec<&str> = shown.flags.iter().map(String::as_str).collect();
            self.pool.mounts().show(id, &target, read_only, &flags)
        });
        done.map(|()| NodePublishVolumeResponse {})
            .map_err(|error| match error.code {
                api::Code::NotStaged => Status::failed_precondition(error.message),
                _ => status_of(error),
            })
    }

    fn unpublish(
        &self,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        let id = required("volume_id", &request.volume_id)?;
        let target = path("target_path", &request.target_path)?;
        if !self.is_known(id)? {
            return Ok(NodeUnpublishVolumeResponse {});
        }
        let done = self.pool.registry().alone(&format!("publish {id}"), || {
            match bind::real(&target) {
                Err(error) if error.code == api::Code::NotFound => Ok(()),
                Err(error) => Err(error),
                Ok(target) => {
                    // If it was unstaged before, this mount was the last use.
                    self.pool.mounts().unstage(id, &target)?;
                    bind::remove_target(&target)
                }
            }
        });
        done.map(|()| NodeUnpublishVolumeResponse {})
            .map_err(status_of)
    }

    fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let id = required("volume_id", &request.volume_id)?;
        let at = required("volume_path", &request.volume_path)?;
        let info = self.seen_at(id, at)?;
        Ok(NodeGetVolumeStatsResponse {
            usage: usage(&info),
        })
    }

    /// Returns the filesystem of a volume at a path.
    fn seen_at(&self, id: &str, at: &str) -> Result<FsInfo, Status> {
        let place = self.place_of(&self.volume(id)?)?;
        let none = || Status::not_found(format!("volume {id} is not at {at}"));
        let at = bind::real(Path::new(at)).map_err(|_| none())?;
        match bind::there(&place, &at).map_err(status_of)? {
            BindState::Volume { .. } => {}
            BindState::Dead => {
                return Err(Status::internal(format!(
                    "nothing is serving volume {id} any more"
                )));
            }
            BindState::Nothing | BindState::Other => return Err(none()),
        }
        host::open_dir_path(&at)
            .and_then(sys::statfs_fd)
            .map_err(|cause| Status::internal(format!("{}: {cause}", at.display())))
    }

    fn expand(
        &self,
        request: &NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Status> {
        let id = required("volume_id", &request.volume_id)?;
        let at = required("volume_path", &request.volume_path)?;
        let range = SizeRange::of(request.capacity_range.as_ref())?;
        self.seen_at(id, at)?;
        let bytes = self.pool.expand(id, range.required).map_err(status_of)?;
        if range.limit != 0 && bytes > range.limit {
            return Err(Status::out_of_range(format!(
                "volume {id} has {bytes} bytes"
            )));
        }
        Ok(NodeExpandVolumeResponse {
            capacity_bytes: signed(bytes),
        })
    }
}

fn refused(code: api::Code, message: String) -> VerbError {
    VerbError {
        code,
        message,
        hint: None,
    }
}

/// Name of the lock on a path.
fn at(path: &Path) -> String {
    format!("path {}", path.display())
}

fn path(what: &str, text: &str) -> Result<PathBuf, Status> {
    let path = PathBuf::from(required(what, text)?);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(invalid(format!("{what} is not absolute")))
    }
}

/// Converts a number to CSI's type.
pub fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn usage(info: &FsInfo) -> Vec<VolumeUsage> {
    let bytes = |blocks: u64| signed(blocks.saturating_mul(info.frsize.into()));
    let used = info.blocks.saturating_sub(info.bfree);
    let mut all = vec![VolumeUsage {
        available: bytes(info.bavail),
        total: bytes(info.blocks),
        used: bytes(used),
        unit: Unit::Bytes.into(),
    }];
    // Without a limit on inodes their usage is not reported.
    if info.files != 0 {
        let used = signed(info.files.saturating_sub(info.ffree));
        all.push(VolumeUsage {
            available: signed(info.ffree),
            total: signed(info.files),
            used,
            unit: Unit::Inodes.into(),
        });
    }
    all
}

calls! {
    Node {
        NodeStageVolume: node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse = Driver::stage;
        NodeUnstageVolume: node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse = Driver::unstage;
        NodePublishVolume: node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse = Driver::publish;
        NodeUnpublishVolume: node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse = Driver::unpublish;
        NodeGetVolumeStats: node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse = Driver::stats;
        NodeExpandVolume: node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse = Driver::expand;
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capabilities = CAPABILITIES
            .into_iter()
            .map(|one| NodeServiceCapability {
                r#type: Some(Type::Rpc(RpcOf { r#type: one.into() })),
            })
            .collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let (node_id, accessible_topology) =
            (self.node().to_owned(), Some(volume_request::topology(self.node())));
        Ok(Response::new(NodeGetInfoResponse {
            node_id,
            max_volumes_per_node: 0,
            accessible_topology,
        }))
    }
}
