//! Snapshots: recorded checkpoints, on this node or in a remote.

use std::time::Duration;

use tonic::Status;

use super::names::{self, SnapshotId};
use super::node::signed;
use super::pages::{PageKey, page};
use super::proto::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse, Snapshot,
    list_snapshots_response,
};
use super::serve::Driver;
use super::status::{invalid, required, status_of};
use super::volume_request;
use crate::{RemoteDestination, Snapshot as Kept};
use ckptfs_api as api;

/// Parameter of a snapshot class: the remote to which snapshots are pushed.
const REMOTE: &str = "remote";
/// A longer push continues in the background; the snapshot is not ready until it ends.
const PATIENCE: Duration = Duration::from_secs(5);

impl Driver {
    pub(super) fn create_snapshot(
        &self,
        request: &CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Status> {
        let name = volume_request::named(&request.name)?;
        let volume = required("source_volume_id", &request.source_volume_id)?;
        let mut given = request.parameters.iter();
        let unknown = given
            .find(|(name, _)| *name != REMOTE && !name.starts_with(volume_request::OF_KUBERNETES));
        if let Some((unknown, _)) = unknown {
            return Err(invalid(format!(
                "a snapshot has no parameter {unknown}; there is {REMOTE}"
            )));
        }
        if !self.knows(volume, name) {
            self.volume(volume)?;
        }
        let remote = request.parameters.get(REMOTE).map(String::as_str);
        let mut kept = self
            .pool
            .snapshot(volume, name, &names::tag(name), remote)
            .map_err(status_of)?;
        let whole = self.pool.send(volume, &kept, PATIENCE).map_err(status_of)?;
        if let Some(sent) = &mut kept.sent {
            sent.whole = whole;
        }
        Ok(CreateSnapshotResponse {
            snapshot: Some(snapshot(self.id_of(volume, &kept), volume, &kept)?),
        })
    }

    pub(super) fn delete_snapshot(
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
            match names::sent(id) {
                Some((_, sent)) => self
                    .pool
                    .drop_sent(volume, checkpoint, &sent, names::tag)
                    .map_err(status_of)?,
                None => self
                    .pool
                    .drop_snapshot(volume, checkpoint, names::tag)
                    .map_err(status_of)?,
            }
        }
        Ok(DeleteSnapshotResponse {})
    }

    /// Returns whether a snapshot of this name exists, even of a deleted volume: a push may still
    /// be running.
    fn knows(&self, volume: &str, name: &str) -> bool {
        let record = self.pool.registry().get(volume);
        record.is_ok_and(|record| record.snapshots_told().any(|one| one.name == name))
    }

    /// Returns the id of a snapshot in this pool.
    fn id_of(&self, volume: &str, kept: &Kept) -> String {
        match &kept.sent {
            Some(sent) => names::sent_id(volume, kept.checkpoint, sent),
            None => names::snapshot_id(volume, kept.checkpoint, &self.node),
        }
    }

    /// Returns the node of a snapshot if its id names another node.
    pub(super) fn elsewhere<'a>(&self, id: &'a str) -> Option<&'a str> {
        names::parse_snapshot_id(id)?
            .node
            .filter(|node| *node != names::node(&self.node))
    }

    /// Returns a snapshot on this node or in a remote, and its volume.
    fn find(&self, id: &str) -> Result<Option<(String, Kept)>, Status> {
        if let Some(here) = self.find_here(id)? {
            return Ok(Some(here));
        }
        let (Some((number, sent)), Some(parsed)) = (names::sent(id), names::parse_snapshot_id(id))
        else {
            return Ok(None);
        };
        let found = self
            .pool
            .pushed(&sent.remote, &sent.store, number)
            .map_err(status_of)?
            .pop();
        Ok(found.map(|found| {
            let kept = Kept {
                name: found.note,
                checkpoint: number,
                created: found.created,
                bytes: 0,
                deleted: false,
                sent: Some(RemoteDestination {
                    whole: true,
                    ..sent
                }),
            };
            (parsed.volume.to_owned(), kept)
        }))
    }

    /// Returns a snapshot on this node, and its volume. Any checkpoint is a snapshot for callers
    /// that use its id.
    pub(super) fn find_here(&self, id: &str) -> Result<Option<(String, Kept)>, Status> {
        let Some(SnapshotId {
            volume, checkpoint, ..
        }) = names::parse_snapshot_id(id).filter(|_| self.elsewhere(id).is_none())
        else {
            return Ok(None);
        };
        let Ok(record) = self.pool.registry().get(volume) else {
            return Ok(None);
        };
        if let Some((number, sent)) = names::sent(id) {
            let kept = record.sent(number, &sent).cloned();
            return Ok(kept.map(|kept| (volume.to_owned(), kept)));
        }
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
                        sent: None,
                    },
                )))
            }
            Err(error) if error.code == api::Code::UnknownCheckpoint => Ok(None),
            Err(error) => Err(status_of(error)),
        }
    }

    pub(super) fn get_snapshot(
        &self,
        request: &GetSnapshotRequest,
    ) -> Result<GetSnapshotResponse, Status> {
        let id = required("snapshot_id", &request.snapshot_id)?;
        let (volume, kept) = self.find(id)?.ok_or_else(|| no_snapshot(id))?;
        Ok(GetSnapshotResponse {
            snapshot: Some(snapshot(id.to_owned(), &volume, &kept)?),
        })
    }

    pub(super) fn list_snapshots(
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
        let all: Vec<(PageKey, Snapshot)> = known
            .iter()
            .map(|(volume, kept)| {
                // A snapshot requested by id is returned with that id.
                let id = Some(&request.snapshot_id)
                    .filter(|id| !id.is_empty())
                    .cloned();
                let told = snapshot(id.unwrap_or_else(|| self.id_of(volume, kept)), volume, kept)?;
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

pub(super) fn no_snapshot(id: &str) -> Status {
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
        // A snapshot is ready at once, except while it is being pushed.
        ready_to_use: kept.sent.as_ref().is_none_or(|sent| sent.whole),
        group_snapshot_id: String::new(),
        accessible_topology: Vec::new(),
    })
}
