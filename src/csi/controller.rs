//! Volumes and snapshots are made, listed and deleted.

use tonic::{Request, Response, Status};

use super::names::{self, SnapshotId};
use super::node::signed;
use super::pages::{Key, page};
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
    ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, Snapshot,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
    VolumeContentSource, controller_get_volume_response, list_snapshots_response,
    list_volumes_response, validate_volume_capabilities_response,
};
use super::serve::{Driver, Service};
use super::status::{invalid, required};
use super::wanted::{self, Range};
use crate::engine::api::{self, VerbResult};
use crate::sys::{self, host};
use crate::volumes::options::{Options, SIZE_BYTES_MIN};
use crate::volumes::{Claim, Record, Snapshot as Kept};

/// What is declared.
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

/// In the context of a volume that begins as another: whether it is a `branch` of that, or a `copy`.
const CLONE: &str = "clone";

/// What a volume begins with.
struct Begins {
    /// Its id.
    id: String,
    /// The same as the pool calls it.
    from: String,
    /// Its size; 0: not known.
    bytes: u64,
}

/// A name that somebody gives.
fn named(text: &str) -> Result<&str, Status> {
    let text = required("name", text)?;
    if text.len() > names::NAME_BYTES_MAX {
        Err(invalid(format!(
            "a name has at most {} bytes",
            names::NAME_BYTES_MAX
        )))
    } else {
        Ok(text)
    }
}

impl Driver {
    fn create_volume(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        let name = named(&request.name)?;
        wanted::all_shown(&request.volume_capabilities)?;
        if !request.mutable_parameters.is_empty() {
            return Err(invalid("mutable parameters are not supported"));
        }
        let range = Range::of(request.capacity_range.as_ref())?;
        let parameters = wanted::parameters(&request.parameters)?;
        wanted::accessible(request.accessibility_requirements.as_ref(), &self.node)?;
        let source = request
            .volume_content_source
            .as_ref()
            .map(|source| self.source(source))
            .transpose()?;
        let from = source
            .as_ref()
            .map(|source| (source.from.as_str(), source.bytes));
        let (bytes, options) = wanted::options(&parameters, range, from)?;
        let source = source.map(|source| source.id);
        let made_ns = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(0);
        let claim = Claim {
            name: name.to_owned(),
            bytes,
            parameters: parameters.clone(),
            source: source.clone(),
            made_ns,
        };
        let same = |there: &Record| {
            let Some(known) = &there.claim else {
                return false;
            };
            !there.retired
                && known.name == name
                && known.parameters == parameters
                && known.source == source
                && range.takes(known.bytes)
        };
        let record = self.pool.registry().alone(&format!("name {name}"), || {
            self.pool.claim(&self.id_for(name)?, options, claim, same)
        })?;
        Ok(CreateVolumeResponse {
            volume: Some(self.told(&record)),
        })
    }

    /// The id that a volume of this name has, or would have: one that was deleted and is kept, for
    /// its snapshots or its clones, has the first in vain.
    fn id_for(&self, name: &str) -> VerbResult<String> {
        let first = names::volume(name);
        let mut free = None;
        for id in std::iter::once(first.clone()).chain(names::volumes_again(name)) {
            match self.pool.registry().get(&id) {
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

    /// What a volume shall begin with.
    fn source(&self, source: &VolumeContentSource) -> Result<Begins, Status> {
        let bytes = |record: &Record| record.claim.as_ref().map_or(0, |claim| claim.bytes);
        match &source.r#type {
            Some(Source::Volume(VolumeSource { volume_id })) => {
                let record = self.volume(required("volume_id of the source", volume_id)?)?;
                Ok(Begins {
                    id: volume_id.clone(),
                    from: volume_id.clone(),
                    bytes: bytes(&record),
                })
            }
            Some(Source::Snapshot(SnapshotSource { snapshot_id })) => {
                let id = required("snapshot_id of the source", snapshot_id)?;
                if let Some(node) = self.elsewhere(id) {
                    // With this the provisioner has another node chosen for the pod (CSI:
                    // CreateVolume, RESOURCE_EXHAUSTED).
                    return Err(Status::resource_exhausted(format!(
                        "snapshot {id} is on node {node}: volumes can be made from it only there"
                    )));
                }
                let (volume, kept) = self.find(id)?.ok_or_else(|| no_snapshot(id))?;
                Ok(Begins {
                    id: id.to_owned(),
                    from: format!("{volume}@{}", kept.checkpoint),
                    bytes: kept.bytes,
                })
            }
            None => Err(invalid("volume_content_source has no source")),
        }
    }

    fn told(&self, record: &Record) -> Volume {
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
            accessible_topology: vec![wanted::topology(&self.node)],
        }
    }

    fn delete_volume(&self, request: &DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Status> {
        let id = required("volume_id", &request.volume_id)?;
        match self.pool.retire(id) {
            Err(error) if ![api::Code::NoSuchVolume, api::Code::BadName].contains(&error.code) => {
                Err(error.into())
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
            wanted::parameters(given).map(|given| {
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
        if let Err(why) = wanted::all_shown(&request.volume_capabilities) {
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

    fn records(&self) -> Result<Vec<Record>, Status> {
        self.pool.registry().list().map_err(Status::from)
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
        wanted::parameters(&request.parameters)?;
        let elsewhere = request
            .accessible_topology
            .as_ref()
            .is_some_and(|topology| !wanted::fits(topology, &self.node));
        let possible = request.volume_capabilities.is_empty()
            || wanted::all_shown(&request.volume_capabilities).is_ok();
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

    fn create_snapshot(
        &self,
        request: &CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Status> {
        let name = named(&request.name)?;
        let volume = required("source_volume_id", &request.source_volume_id)?;
        if let Some(unknown) = request
            .parameters
            .keys()
            .find(|name| !name.starts_with("csi.storage.k8s.io/"))
        {
            return Err(invalid(format!("a snapshot has no parameter {unknown}")));
        }
        self.volume(volume)?;
        let kept = self.pool.snapshot(volume, name, &names::tag(name))?;
        Ok(CreateSnapshotResponse {
            snapshot: Some(snapshot(
                names::snapshot_id(volume, kept.checkpoint, &self.node),
                volume,
                &kept,
            )?),
        })
    }

    fn delete_snapshot(
        &self,
        request: &DeleteSnapshotRequest,
    ) -> Result<DeleteSnapshotResponse, Status> {
        let id = required("snapshot_id", &request.snapshot_id)?;
        if let Some(node) = self.elsewhere(id) {
            return Err(Status::failed_precondition(format!(
                "snapshot {id} is on node {node}, and can be deleted only there"
            )));
        }
        if let Some(SnapshotId {
            volume, checkpoint, ..
        }) = names::parse_snapshot_id(id)
        {
            self.pool.drop_snapshot(volume, checkpoint, names::tag)?;
        }
        Ok(DeleteSnapshotResponse {})
    }

    /// The node that a snapshot is on, if its id says that it is another than this one.
    fn elsewhere<'a>(&self, id: &'a str) -> Option<&'a str> {
        names::parse_snapshot_id(id)?
            .node
            .filter(|node| *node != names::node(&self.node))
    }

    /// A snapshot of this node, and its volume. A checkpoint that somebody has made otherwise is
    /// one for whoever knows its id.
    fn find(&self, id: &str) -> Result<Option<(String, Kept)>, Status> {
        let Some(SnapshotId {
            volume, checkpoint, ..
        }) = names::parse_snapshot_id(id).filter(|_| self.elsewhere(id).is_none())
        else {
            return Ok(None);
        };
        let Ok(record) = self.pool.registry().get(volume) else {
            return Ok(None);
        };
        if let Some(kept) = record
            .snapshots
            .iter()
            .find(|one| one.checkpoint == checkpoint)
        {
            return Ok((!kept.deleted).then(|| (volume.to_owned(), kept.clone())));
        }
        match self
            .pool
            .registry()
            .history(&record)
            .and_then(|history| history.checkpoint(&checkpoint.to_string()))
        {
            Ok(found) => {
                let bytes = record.claim.as_ref().map_or(0, |claim| claim.bytes);
                Ok(Some((
                    volume.to_owned(),
                    Kept {
                        name: found.note,
                        checkpoint,
                        created: found.created,
                        bytes,
                        deleted: false,
                    },
                )))
            }
            Err(error) if error.code == api::Code::UnknownCheckpoint => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn get_snapshot(&self, request: &GetSnapshotRequest) -> Result<GetSnapshotResponse, Status> {
        let id = required("snapshot_id", &request.snapshot_id)?;
        let (volume, kept) = self.find(id)?.ok_or_else(|| no_snapshot(id))?;
        Ok(GetSnapshotResponse {
            snapshot: Some(snapshot(id.to_owned(), &volume, &kept)?),
        })
    }

    fn list_snapshots(
        &self,
        request: &ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let of_volume = |volume: &str| {
            request.source_volume_id.is_empty() || request.source_volume_id == volume
        };
        let known: Vec<(String, Kept)> = if request.snapshot_id.is_empty() {
            let records = self
                .records()?
                .into_iter()
                .filter(|record| of_volume(&record.name));
            records
                .flat_map(|record| {
                    record
                        .snapshots
                        .into_iter()
                        .filter(|kept| !kept.deleted)
                        .map(move |kept| (record.name.clone(), kept))
                })
                .collect()
        } else {
            self.find(&request.snapshot_id)?
                .into_iter()
                .filter(|(volume, _)| of_volume(volume))
                .collect()
        };
        let all: Vec<(Key, Snapshot)> = known
            .iter()
            .map(|(volume, kept)| {
                // Asked for by its id, it has that one.
                let id = Some(&request.snapshot_id)
                    .filter(|id| !id.is_empty())
                    .cloned();
                let told = snapshot(
                    id.unwrap_or_else(|| names::snapshot_id(volume, kept.checkpoint, &self.node)),
                    volume,
                    kept,
                )?;
                let made_ns = time(kept)?.as_nanosecond();
                Ok((
                    (
                        i64::try_from(made_ns).unwrap_or(0),
                        told.snapshot_id.clone(),
                    ),
                    told,
                ))
            })
            .collect::<Result<_, Status>>()?;
        let (snapshots, next_token) = page(all, request.max_entries, &request.starting_token)?;
        let entries = snapshots
            .into_iter()
            .map(|one| list_snapshots_response::Entry {
                snapshot: Some(one),
            })
            .collect();
        Ok(ListSnapshotsResponse {
            entries,
            next_token,
        })
    }
}

fn no_snapshot(id: &str) -> Status {
    Status::not_found(format!("no such snapshot: {id}"))
}

fn time(kept: &Kept) -> Result<jiff::Timestamp, Status> {
    kept.created.parse().map_err(|_| {
        Status::internal(format!(
            "the time of checkpoint {} cannot be read",
            kept.checkpoint
        ))
    })
}

fn snapshot(snapshot_id: String, volume: &str, kept: &Kept) -> Result<Snapshot, Status> {
    let created = time(kept)?;
    Ok(Snapshot {
        size_bytes: signed(kept.bytes),
        snapshot_id,
        source_volume_id: volume.to_owned(),
        creation_time: Some(prost_types::Timestamp {
            seconds: created.as_second(),
            nanos: created.subsec_nanosecond(),
        }),
        // It is one the moment it is made.
        ready_to_use: true,
        group_snapshot_id: String::new(),
        accessible_topology: Vec::new(),
    })
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
