//! Controller service: creates, lists and deletes volumes.

use std::collections::BTreeMap;
use std::time::Duration;

use tonic::{Request, Response, Status};

use super::names;
use super::node::signed;
use super::pages::page;
use super::proto::controller_server::Controller;
use super::proto::controller_service_capability::rpc::Type as Rpc;
use super::proto::controller_service_capability::{Rpc as RpcOf, Type};
use super::proto::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};
use super::proto::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerServiceCapability,
    CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse,
    DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    GetCapacityRequest, GetCapacityResponse, GetSnapshotRequest, GetSnapshotResponse,
    ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
    VolumeContentSource, controller_get_volume_response, list_volumes_response,
    validate_volume_capabilities_response,
};
use super::serve::{Driver, Service};
use super::snapshots::no_snapshot;
use super::status::{invalid, required, status_of};
use super::volume_request::{self, SizeRange};
use crate::options::{Options, SIZE_BYTES_MIN};
use crate::{Claim, Pool, VolumeRecord};
use ckptfs_api::{self as api, VerbResult};
use ckptfs_sys::{self as sys, host};

/// Declared capabilities.
const CAPABILITIES: [Rpc; 9] = [
    Rpc::CreateDeleteVolume,
    Rpc::ListVolumes,
    Rpc::GetCapacity,
    Rpc::CreateDeleteSnapshot,
    Rpc::ListSnapshots,
    Rpc::CloneVolume,
    Rpc::GetVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::GetSnapshot,
];

/// A longer fetch is reported as in progress: a provisioner waits ten seconds.
const PATIENCE: Duration = Duration::from_secs(8);

/// Key in the context of a cloned volume; the value is `branch` or `copy`.
const CLONE: &str = "clone";

/// The source of a volume.
struct CloneSource {
    /// Its CSI id.
    id: String,
    /// Its name in the pool or the remote.
    from: String,
    /// The remote that stores it, unless it is in the pool.
    remote: Option<String>,
    /// Its size in bytes; 0: unknown.
    bytes: u64,
}

impl Driver {
    fn create_volume(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        let name = volume_request::named(&request.name)?;
        volume_request::all_shown(&request.volume_capabilities)?;
        if !request.mutable_parameters.is_empty() {
            return Err(invalid("mutable parameters are not supported"));
        }
        let range = SizeRange::of(request.capacity_range.as_ref())?;
        let parameters = volume_request::parameters(&request.parameters)?;
        volume_request::accessible(request.accessibility_requirements.as_ref(), &self.node)?;
        let source = request
            .volume_content_source
            .as_ref()
            .map(|source| self.source(source))
            .transpose()?;
        let from = source
            .as_ref()
            .map(|source| (source.from.as_str(), source.bytes));
        let (bytes, mut options) = volume_request::options(&parameters, range, from)?;
        let (source, remote) = source.map(|one| (one.id, one.remote)).unzip();
        options.extend(remote.flatten().map(|name| ("remote".to_owned(), name)));
        let made_ns = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(0);
        let claim = Claim {
            name: name.to_owned(),
            bytes,
            parameters: parameters.clone(),
            source: source.clone(),
            made_ns,
        };
        let record = if let Some(remote) = options.get("remote").cloned() {
            let (pool, thing) = (self.pool.clone(), format!("fetching volume {name}"));
            let fetch = move || claim_one(&pool, options, claim, range);
            self.pool
                .long(&thing, &remote, PATIENCE, fetch)
                .map_err(status_of)?
        } else {
            claim_one(&self.pool, options, claim, range).map_err(status_of)?
        };
        Ok(CreateVolumeResponse {
            volume: Some(self.told(&record)),
        })
    }

    /// Resolves the source of a new volume.
    fn source(&self, source: &VolumeContentSource) -> Result<CloneSource, Status> {
        let bytes = |record: &VolumeRecord| record.claim.as_ref().map_or(0, |claim| claim.bytes);
        match &source.r#type {
            Some(Source::Volume(VolumeSource { volume_id })) => {
                let record = self.volume(required("volume_id of the source", volume_id)?)?;
                Ok(CloneSource {
                    id: volume_id.clone(),
                    from: volume_id.clone(),
                    remote: None,
                    bytes: bytes(&record),
                })
            }
            Some(Source::Snapshot(SnapshotSource { snapshot_id })) => {
                let id = required("snapshot_id of the source", snapshot_id)?;
                if let Some(node) = self.elsewhere(id) {
                    // The provisioner then selects another node for the pod (CSI: CreateVolume,
                    // RESOURCE_EXHAUSTED).
                    return Err(Status::resource_exhausted(format!(
                        "snapshot {id} is on node {node}: volumes can be made from it only there"
                    )));
                }
                let id = id.to_owned();
                if let Some((volume, kept)) = self.find_here(&id)? {
                    return Ok(CloneSource {
                        from: format!("{volume}@{}", kept.checkpoint),
                        remote: None,
                        bytes: kept.bytes,
                        id,
                    });
                }
                let (number, sent) = names::sent(&id).ok_or_else(|| no_snapshot(&id))?;
                // The fetch determines whether it exists, and its size.
                Ok(CloneSource {
                    from: format!("{}@{number}", sent.store),
                    remote: Some(sent.remote),
                    bytes: 0,
                    id,
                })
            }
            None => Err(invalid("volume_content_source has no source")),
        }
    }

    fn told(&self, record: &VolumeRecord) -> Volume {
        let claim = record.claim.clone().unwrap_or_default();
        let sized = || {
            record
                .parsed()
                .ok()
                .and_then(|options: Options| options.size)
                .unwrap_or(0)
        };
        let how = if record.branch().is_some() {
            "branch"
        } else {
            "copy"
        };
        let context = claim
            .source
            .iter()
            .map(|_| (CLONE.to_owned(), how.to_owned()));
        let source = claim
            .source
            .clone()
            .map(|id| match names::parse_snapshot_id(&id) {
                Some(_) => Source::Snapshot(SnapshotSource { snapshot_id: id }),
                None => Source::Volume(VolumeSource { volume_id: id }),
            });
        Volume {
            capacity_bytes: signed(if claim.bytes == 0 {
                sized()
            } else {
                claim.bytes
            }),
            volume_id: record.name.clone(),
            volume_context: context.collect(),
            content_source: source.map(|source| VolumeContentSource {
                r#type: Some(source),
            }),
            accessible_topology: vec![volume_request::topology(&self.node)],
        }
    }

    fn delete_volume(&self, request: &DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Status> {
        let id = required("volume_id", &request.volume_id)?;
        match self.pool.retire(id) {
            Err(error) if ![api::Code::NoSuchVolume, api::Code::BadName].contains(&error.code) => {
                Err(status_of(error))
            }
            _ => Ok(DeleteVolumeResponse {}),
        }
    }

    fn validate(
        &self,
        request: &ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        let record = self.volume(required("volume_id", &request.volume_id)?)?;
        if request.volume_capabilities.is_empty() {
            return Err(invalid("volume_capabilities is missing"));
        }
        let same_parameters = |given| {
            volume_request::parameters(given).map(|given| {
                record
                    .claim
                    .as_ref()
                    .is_none_or(|claim| claim.parameters == given)
            })
        };
        let refused = |message: &str| {
            Ok(ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message: message.to_owned(),
            })
        };
        if let Err(why) = volume_request::all_shown(&request.volume_capabilities) {
            return refused(why.message());
        }
        if !request.mutable_parameters.is_empty()
            || !request.parameters.is_empty()
                && !same_parameters(&request.parameters).unwrap_or(false)
        {
            return refused("the volume has other parameters");
        }
        let confirmed = validate_volume_capabilities_response::Confirmed {
            volume_context: request.volume_context.clone(),
            volume_capabilities: request.volume_capabilities.clone(),
            parameters: request.parameters.clone(),
            mutable_parameters: request.mutable_parameters.clone(),
        };
        Ok(ValidateVolumeCapabilitiesResponse {
            confirmed: Some(confirmed),
            message: String::new(),
        })
    }

    pub(super) fn records(&self) -> Result<Vec<VolumeRecord>, Status> {
        self.pool.registry().list().map_err(status_of)
    }

    fn list_volumes(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        let there = self.records()?.into_iter().filter(|record| !record.retired);
        let all = there
            .map(|record| ((record.made_ns(), record.name.clone()), self.told(&record)))
            .collect();
        let (volumes, next_token) = page(all, request.max_entries, &request.starting_token)?;
        let entries = volumes
            .into_iter()
            .map(|volume| list_volumes_response::Entry {
                volume: Some(volume),
                status: None,
            })
            .collect();
        Ok(ListVolumesResponse {
            entries,
            next_token,
        })
    }

    fn get_volume(
        &self,
        request: &ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        let record = self.volume(required("volume_id", &request.volume_id)?)?;
        let status = Some(controller_get_volume_response::VolumeStatus {
            published_node_ids: Vec::new(),
        });
        Ok(ControllerGetVolumeResponse {
            volume: Some(self.told(&record)),
            status,
        })
    }

    fn capacity(&self, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        volume_request::parameters(&request.parameters)?;
        let elsewhere = request
            .accessible_topology
            .as_ref()
            .is_some_and(|topology| !volume_request::fits(topology, &self.node));
        let possible = request.volume_capabilities.is_empty()
            || volume_request::all_shown(&request.volume_capabilities).is_ok();
        let mut available_capacity = 0;
        if !elsewhere && possible {
            let info = host::open_dir_path(self.pool.registry().root())
                .and_then(sys::statfs_fd)
                .map_err(|cause| Status::internal(format!("the pool: {cause}")))?;
            available_capacity = signed(info.bavail.saturating_mul(info.frsize.into()));
        }
        let minimum_volume_size = request
            .parameters
            .contains_key("size")
            .then(|| signed(SIZE_BYTES_MIN));
        Ok(GetCapacityResponse {
            available_capacity,
            maximum_volume_size: None,
            minimum_volume_size,
        })
    }
}

/// Creates the claimed volume. An existing volume of that name is returned if it matches.
fn claim_one(
    pool: &Pool,
    options: BTreeMap<String, String>,
    claim: Claim,
    range: SizeRange,
) -> VerbResult<VolumeRecord> {
    let name = claim.name.clone();
    let wanted = claim.clone();
    let same = |there: &VolumeRecord| {
        let Some(known) = &there.claim else {
            return false;
        };
        !there.retired
            && known.name == wanted.name
            && known.parameters == wanted.parameters
            && known.source == wanted.source
            && range.takes(known.bytes)
    };
    pool.registry().alone(&format!("name {name}"), || {
        pool.claim(&id_for(pool, &name)?, options, claim, same)
    })
}

/// Returns the id of the volume with this name, or the first free one. A deleted volume that is
/// retained for its snapshots or clones still occupies its id.
fn id_for(pool: &Pool, name: &str) -> VerbResult<String> {
    let first = names::volume(name);
    let mut free = None;
    for id in std::iter::once(first.clone()).chain(names::volumes_again(name)) {
        match pool.registry().get(&id) {
            Ok(record) if record.retired => {}
            Ok(_) => return Ok(id),
            Err(error) if error.code == api::Code::NoSuchVolume => {
                free.get_or_insert(id);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(free.unwrap_or(first))
}

calls! {
    Controller {
        CreateVolume: create_volume(CreateVolumeRequest) -> CreateVolumeResponse = Driver::create_volume;
        DeleteVolume: delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse = Driver::delete_volume;
        ValidateVolumeCapabilities: validate_volume_capabilities(ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse = Driver::validate;
        ListVolumes: list_volumes(ListVolumesRequest) -> ListVolumesResponse = Driver::list_volumes;
        ControllerGetVolume: controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse = Driver::get_volume;
        GetCapacity: get_capacity(GetCapacityRequest) -> GetCapacityResponse = Driver::capacity;
        CreateSnapshot: create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse = Driver::create_snapshot;
        DeleteSnapshot: delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse = Driver::delete_snapshot;
        ListSnapshots: list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse = Driver::list_snapshots;
        GetSnapshot: get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse = Driver::get_snapshot;
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capabilities = CAPABILITIES
            .into_iter()
            .map(|one| ControllerServiceCapability {
                r#type: Some(Type::Rpc(RpcOf { r#type: one.into() })),
            })
            .collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities,
        }))
    }
}
