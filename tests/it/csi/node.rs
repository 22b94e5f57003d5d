//! Volumes as pods see them: one mount each, with the requested access, and no leftovers.

use std::fs;
use std::path::Path;

use tonic::{Code, Status};

use crate::csi::support::{
    NODE, PodWriter, Rig, class, code, from_snapshot, text, unavailable, wanted,
};
use ckptfs_volumes::csi::proto::volume_capability::access_mode::Mode;
use ckptfs_volumes::csi::proto::volume_capability::{AccessMode, AccessType, BlockVolume};
use ckptfs_volumes::csi::proto::volume_usage::Unit;
use ckptfs_volumes::csi::proto::{
    CapacityRange, CreateVolumeRequest, NodeExpandVolumeRequest, NodeGetInfoRequest,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeCapability, VolumeUsage,
};

const WRITER: Mode = Mode::SingleNodeWriter;

#[test]
fn staging_and_publishing_twice_is_one_mount_and_nothing_stays() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    assert_eq!(
        code(rig.try_publish("v", "a", WRITER, false)),
        Code::FailedPrecondition,
        "it is not staged"
    );
    let staging = rig.try_stage("v", WRITER).unwrap();
    let target = rig.try_publish("v", "a", WRITER, false).unwrap();
    fs::write(target.join("f"), "x").unwrap();
    rig.try_stage("v", WRITER).unwrap();
    rig.try_publish("v", "a", WRITER, false).unwrap();
    assert_eq!((rig.mounts_at(&staging), rig.mounts_at(&target)), (1, 1));
    let second = rig.try_publish("v", "b", WRITER, false).unwrap();
    assert_eq!(fs::read(second.join("f")).unwrap(), b"x");
    // A volume that is unstaged too early stays until the last pod has left.
    rig.unstage("v").unwrap();
    rig.unpublish("v", "a").unwrap();
    assert!(!target.exists() && rig.is_mounted("v"));
    assert_eq!(fs::read(second.join("f")).unwrap(), b"x");
    rig.unpublish("v", "b").unwrap();
    assert!(!second.exists() && !rig.is_mounted("v") && rig.mounts_at(&staging) == 0);
    // Unpublish and unstage succeed for volumes that do not exist.
    for id in ["v", "nothing", "../v"] {
        rig.unpublish(id, "b").unwrap();
        rig.unstage(id).unwrap();
    }
    assert_eq!(rig.record("v")["mounts"].as_array().map(Vec::len), Some(0));
    rig.delete("v").unwrap();
    rig.delete("v").unwrap();
}

#[test]
fn many_publish_at_once() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    rig.try_stage("v", WRITER).unwrap();
    let socket = rig.socket.clone();
    let (staging, target) = (rig.staging("v"), rig.target("v", "a"));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (socket, staging, target) = (socket.clone(), staging.clone(), target.clone());
            std::thread::spawn(move || {
                crate::csi::support::publish_at(&socket, "v", &staging, &target)
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap().unwrap());
    assert_eq!(rig.mounts_at(&target), 1);
    rig.leave("v", "a");
}

#[test]
fn who_may_only_read_cannot_write() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let writable = rig.use_it("v", "writer");
    fs::write(writable.join("f"), "x").unwrap();
    let readonly = rig.try_publish("v", "reader", WRITER, true).unwrap();
    assert_eq!(fs::read(readonly.join("f")).unwrap(), b"x");
    assert_eq!(
        fs::write(readonly.join("f"), "y")
            .unwrap_err()
            .raw_os_error(),
        Some(30),
        "EROFS"
    );
    fs::write(writable.join("f"), "z").unwrap();
    rig.try_publish("v", "reader", WRITER, true).unwrap();
    assert_eq!(rig.mounts_at(&readonly), 1);
    assert_eq!(
        code(rig.try_publish("v", "reader", WRITER, false)),
        Code::FailedPrecondition,
        "it is mounted with other permissions"
    );
    // A read-only volume of a past state.
    let snapshot = rig.snapshot("v", "s");
    let capability = crate::csi::support::capability(Mode::MultiNodeReaderOnly);
    let request = CreateVolumeRequest {
        volume_content_source: from_snapshot(&snapshot.snapshot_id),
        volume_capabilities: capability.into_iter().collect(),
        ..wanted("past", 0)
    };
    rig.try_create(request).unwrap();
    rig.try_stage("past", Mode::MultiNodeReaderOnly).unwrap();
    let past = rig
        .try_publish("past", "reader", Mode::MultiNodeReaderOnly, false)
        .unwrap();
    assert_eq!(fs::read(past.join("f")).unwrap(), b"z");
    assert_eq!(
        fs::write(past.join("g"), "y").unwrap_err().raw_os_error(),
        Some(30),
        "EROFS"
    );
    // Read-only by an option of the class.
    let class = class(&[("readonly", "true"), ("from", "v")]);
    rig.try_create(CreateVolumeRequest {
        parameters: class,
        ..wanted("frozen", 0)
    })
    .unwrap();
    let frozen = rig.use_it("frozen", "pod");
    assert_eq!(
        fs::write(frozen.join("g"), "y").unwrap_err().raw_os_error(),
        Some(30),
        "EROFS"
    );
    assert_eq!(
        rig.snapshot("frozen", "of it").snapshot_id,
        "frozen@1@node-1"
    );
}

#[test]
fn a_volume_that_is_wanted_alone_is_published_once() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    rig.try_stage("v", Mode::SingleNodeSingleWriter).unwrap();
    rig.try_publish("v", "a", Mode::SingleNodeSingleWriter, false)
        .unwrap();
    rig.try_publish("v", "a", Mode::SingleNodeSingleWriter, false)
        .unwrap();
    assert_eq!(
        code(rig.try_publish("v", "b", Mode::SingleNodeSingleWriter, false)),
        Code::FailedPrecondition
    );
    rig.unpublish("v", "a").unwrap();
    rig.try_publish("v", "b", Mode::SingleNodeSingleWriter, false)
        .unwrap();
    rig.leave("v", "b");
}

#[test]
fn what_cannot_be_is_refused() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("v");
    let block = VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode {
            mode: WRITER.into(),
        }),
    };
    assert_eq!(
        code(rig.try_create(CreateVolumeRequest {
            volume_capabilities: vec![block],
            ..wanted("b", 0)
        })),
        Code::InvalidArgument
    );
    assert_eq!(
        code(rig.try_stage("v", Mode::MultiNodeMultiWriter)),
        Code::InvalidArgument,
        "a volume is on one node"
    );
    assert_eq!(code(rig.try_stage("nothing", WRITER)), Code::NotFound);
    // Another volume is mounted at the target.
    rig.create("w");
    let (staging, target) = (rig.try_stage("v", WRITER).unwrap(), rig.target("v", "a"));
    rig.try_publish("v", "a", WRITER, false).unwrap();
    rig.try_stage("w", WRITER).unwrap();
    let other = crate::csi::support::publish_at(&rig.socket, "w", &rig.staging("w"), &target);
    assert_eq!(code(other), Code::FailedPrecondition);
    // Unstage with the other volume's id does not unmount it.
    let request = ckptfs_volumes::csi::proto::NodeUnstageVolumeRequest {
        volume_id: "w".into(),
        staging_target_path: text(&staging),
    };
    rig.node(|mut client| async move { client.node_unstage_volume(request).await })
        .unwrap();
    assert_eq!((rig.mounts_at(&staging), rig.mounts_at(&target)), (1, 1));
}

/// Returns the node's statistics of volume `v` at a path.
fn stats(rig: &Rig, path: &str) -> Result<NodeGetVolumeStatsResponse, Status> {
    let request = NodeGetVolumeStatsRequest {
        volume_id: "v".into(),
        volume_path: path.to_owned(),
        ..NodeGetVolumeStatsRequest::default()
    };
    rig.node(|mut client| async move { client.node_get_volume_stats(request).await })
}

/// Returns the usage in the given unit.
fn usage(rig: &Rig, at: &Path, unit: Unit) -> VolumeUsage {
    let told = stats(rig, &text(at)).expect("it is mounted there").usage;
    let mut found = told.into_iter().filter(|one| one.unit() == unit);
    found.next().expect("both units are reported")
}

#[test]
fn stats_and_sizes_are_those_of_the_filesystem() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    let made = rig
        .try_create(CreateVolumeRequest {
            parameters: class(&[("size", "requested")]),
            ..wanted("v", 320 << 20)
        })
        .unwrap();
    assert_eq!(made.capacity_bytes, 320 << 20);
    let at = rig.use_it("v", "pod");
    let bytes = usage(&rig, &at, Unit::Bytes);
    assert!(
        bytes.total > 200 << 20
            && bytes.total <= 320 << 20
            && bytes.used > 0
            && bytes.available <= bytes.total,
        "{bytes:?}"
    );
    let files = usage(&rig, &at, Unit::Inodes);
    fs::write(at.join("f"), vec![1; 1 << 20]).unwrap();
    assert!(usage(&rig, &at, Unit::Inodes).used > files.used);
    assert_eq!(code(stats(&rig, "/")), Code::NotFound);
    assert_eq!(code(stats(&rig, "some/path")), Code::NotFound);
    let too_much = fs::write(at.join("big"), vec![1; 330 << 20]).unwrap_err();
    assert_eq!(too_much.raw_os_error(), Some(28), "ENOSPC");
    fs::remove_file(at.join("big")).unwrap();
    // Expansion while the pod writes.
    let pod = PodWriter::start(&at);
    let request = NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: text(&at),
        capacity_range: Some(CapacityRange {
            required_bytes: 640 << 20,
            limit_bytes: 0,
        }),
        ..NodeExpandVolumeRequest::default()
    };
    for _ in 0..2 {
        let request = request.clone();
        let grown = rig
            .node(|mut client| async move { client.node_expand_volume(request).await })
            .unwrap();
        assert_eq!(grown.capacity_bytes, 640 << 20);
    }
    pod.writes_on();
    drop(pod);
    let total = usage(&rig, &at, Unit::Bytes).total;
    assert!(total > 500 << 20, "{total}");
    fs::write(at.join("big"), vec![1; 400 << 20]).unwrap();
    rig.leave("v", "pod");
    assert_eq!(
        fs::read(rig.use_it("v", "pod").join("f")).unwrap().len(),
        1 << 20,
        "its content is unchanged"
    );
    rig.leave("v", "pod");
    rig.delete("v").unwrap();
}

#[test]
fn the_node_says_where_it_is() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    let info = rig
        .node(|mut client| async move { client.node_get_info(NodeGetInfoRequest {}).await })
        .unwrap();
    assert_eq!(info.node_id, NODE);
    assert_eq!(
        info.accessible_topology.unwrap().segments,
        class(&[("csi.ckptfs/node", NODE)])
    );
    let made = rig.create("v");
    assert_eq!(made.accessible_topology.len(), 1);
}
