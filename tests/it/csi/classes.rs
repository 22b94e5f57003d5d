//! Volume parameters from storage classes and claims, and volume names.

use std::collections::BTreeSet;
use std::fs;

use tonic::Code;

use crate::csi::support::{Rig, class, code, from_volume, unavailable, wanted};
use ckptfs_volumes::csi::proto::{
    CapacityRange, CreateVolumeRequest, GetCapacityRequest, GetPluginCapabilitiesRequest,
    GetPluginInfoRequest, ProbeRequest, Topology, TopologyRequirement,
};

#[test]
fn a_class_has_the_options_of_a_volume() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    let create = |name: &str, list: &[(&str, &str)]| {
        rig.try_create(CreateVolumeRequest {
            parameters: class(list),
            ..wanted(name, 0)
        })
    };
    let refused = create("v", &[("kep", "1d")]).unwrap_err();
    assert!(
        refused.code() == Code::InvalidArgument && refused.message().contains("did you mean keep?"),
        "{refused}"
    );
    for never in [
        ("source", "/etc"),
        ("ephemeral", "true"),
        ("keep", "no"),
        ("size", "12"),
    ] {
        assert_eq!(
            code(create("v", &[never])),
            Code::InvalidArgument,
            "{never:?}"
        );
    }
    assert!(!rig.root.join("meta/v.json").exists());
    create(
        "v",
        &[
            ("keep", "4h:1d"),
            ("mode", "0777"),
            ("csi.storage.k8s.io/pvc/name", "data"),
        ],
    )
    .unwrap();
    let at = rig.use_it("v", "pod");
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&at).unwrap().permissions()) & 0o7777,
        0o777
    );
    let keys = rig.ok(&["--volume", "v", "config", "show"]);
    assert!(
        keys.contains("retention.keep-within = \"14400s\""),
        "{keys}"
    );
    // The same name with other parameters.
    assert_eq!(
        code(create("v", &[("keep", "5h:1d"), ("mode", "0777")])),
        Code::AlreadyExists
    );
    assert_eq!(
        code(rig.try_create(CreateVolumeRequest {
            volume_content_source: from_volume("v"),
            ..wanted("v", 0)
        })),
        Code::AlreadyExists
    );
    // A volume created for Docker does not satisfy a claim.
    rig.ok(&["volumes", "create", "docker"]);
    assert_eq!(
        code(rig.try_create(wanted("docker", 0))),
        Code::AlreadyExists
    );
}

#[test]
fn many_who_ask_for_one_name_get_one_volume() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    rig.create("base");
    fs::write(rig.use_it("base", "pod").join("f"), "x").unwrap();
    let made = rig.call(|channel| async move {
        let calls = (0..12).map(|_| {
            let mut client = ckptfs_volumes::csi::proto::controller_client::ControllerClient::new(
                channel.clone(),
            );
            let request = CreateVolumeRequest {
                volume_content_source: from_volume("base"),
                ..wanted("one/ä", 5)
            };
            tokio::spawn(async move { client.create_volume(request).await })
        });
        let mut ids = BTreeSet::new();
        for call in calls.collect::<Vec<_>>() {
            ids.insert(
                call.await
                    .expect("no panic")?
                    .into_inner()
                    .volume
                    .expect("a volume")
                    .volume_id,
            );
        }
        Ok(tonic::Response::new(ids))
    });
    assert_eq!(made.unwrap().len(), 1);
    let volumes: Vec<_> = fs::read_dir(rig.root.join("volumes")).unwrap().collect();
    assert_eq!(volumes.len(), 2);
}

#[test]
fn any_name_is_a_volume_of_its_own() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    let long = "x".repeat(128);
    let names = [
        "pvc-1",
        "a b",
        "a/b",
        "../../etc",
        ".",
        "-o",
        "ä",
        "a\nb",
        long.as_str(),
    ];
    let ids: BTreeSet<String> = names
        .iter()
        .map(|name| rig.create(name).volume_id)
        .collect();
    assert_eq!(ids.len(), names.len());
    assert!(ids.contains("pvc-1") && ids.contains(&long));
    for name in names {
        let id = rig.create(name).volume_id;
        assert_eq!(
            rig.record(&id)["claim"]["name"],
            name,
            "a repeated request returns the same volume"
        );
        // The id is itself a valid name, of another volume.
        if id != name {
            assert!(!ids.contains(&rig.create(&id).volume_id));
        }
    }
    assert_eq!(
        code(rig.try_create(wanted(&"x".repeat(129), 0))),
        Code::InvalidArgument
    );
    assert_eq!(code(rig.try_create(wanted("", 0))), Code::InvalidArgument);
}

#[test]
fn sizes_are_kept_to() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    let ranged = |name: &str, required_bytes: i64, limit_bytes: i64| {
        let capacity_range = Some(CapacityRange {
            required_bytes,
            limit_bytes,
        });
        rig.try_create(CreateVolumeRequest {
            capacity_range,
            ..wanted(name, 0)
        })
    };
    assert_eq!(ranged("v", 5, 10).unwrap().capacity_bytes, 5);
    assert_eq!(
        ranged("v", 1, 0).unwrap().capacity_bytes,
        5,
        "the size of the volume is in the range"
    );
    assert_eq!(code(ranged("v", 6, 0)), Code::AlreadyExists);
    assert_eq!(code(ranged("v", 1, 4)), Code::AlreadyExists);
    for (required, limit) in [(-1, 0), (0, -1), (2, 1)] {
        assert_eq!(code(ranged("w", required, limit)), Code::InvalidArgument);
    }
    let from = |required_bytes: i64, limit_bytes: i64| CreateVolumeRequest {
        capacity_range: Some(CapacityRange {
            required_bytes,
            limit_bytes,
        }),
        volume_content_source: from_volume("v"),
        ..wanted("copy", 0)
    };
    assert_eq!(
        code(rig.try_create(from(1, 4))),
        Code::OutOfRange,
        "the initial content would not fit"
    );
    assert_eq!(rig.try_create(from(1, 0)).unwrap().capacity_bytes, 5);
    let capacity = |request: GetCapacityRequest| {
        rig.controller(|mut client| async move { client.get_capacity(request).await })
    };
    assert!(
        capacity(GetCapacityRequest::default())
            .unwrap()
            .available_capacity
            > 0
    );
    let elsewhere = Topology {
        segments: class(&[("csi.ckptfs/node", "another")]),
    };
    let request = GetCapacityRequest {
        accessible_topology: Some(elsewhere.clone()),
        ..GetCapacityRequest::default()
    };
    assert_eq!(capacity(request).unwrap().available_capacity, 0);
    let requirement = TopologyRequirement {
        requisite: vec![elsewhere],
        preferred: Vec::new(),
    };
    let request = CreateVolumeRequest {
        accessibility_requirements: Some(requirement),
        ..wanted("there", 0)
    };
    assert_eq!(code(rig.try_create(request)), Code::ResourceExhausted);
}

#[test]
fn the_driver_says_who_it_is_and_is_alone() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    let info = rig
        .identity(|mut client| async move { client.get_plugin_info(GetPluginInfoRequest {}).await })
        .unwrap();
    assert_eq!(
        (info.name.as_str(), info.vendor_version.as_str()),
        ("csi.ckptfs", env!("CARGO_PKG_VERSION"))
    );
    let told = rig
        .identity(|mut client| async move {
            client
                .get_plugin_capabilities(GetPluginCapabilitiesRequest {})
                .await
        })
        .unwrap();
    assert_eq!(told.capabilities.len(), 3);
    assert_eq!(
        rig.identity(|mut client| async move { client.probe(ProbeRequest {}).await })
            .unwrap()
            .ready,
        Some(true)
    );
    let other = format!("unix://{}", rig.disk().join("other.sock").display());
    let refused = rig.refused(&["serve", "csi", "--endpoint", &other, "--node-id", "n"]);
    assert!(
        refused.contains("another driver is serving the pool"),
        "{refused}"
    );
    for (arguments, said) in [
        (
            ["--endpoint", "tcp://1.2.3.4:5", "--node-id", "n"],
            "unix socket",
        ),
        (["--endpoint", &other, "--node-id", "a b"], "letters"),
    ] {
        let refused = rig.refused(&[&["serve", "csi"], &arguments[..]].concat());
        assert!(refused.contains(said), "{refused}");
    }
}

#[test]
fn nonsense_is_answered_with_an_error_and_nothing_else() {
    if unavailable() {
        return;
    }
    let rig = Rig::start();
    for bytes in [
        &b"POST /VolumeDriver.List HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\xff\xff\x01\x05\x00\x00\x00\x01",
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(&rig.socket).unwrap();
        let _ = std::io::Write::write_all(&mut stream, bytes);
    }
    let huge = "x".repeat(5 << 20);
    assert!(rig.try_create(wanted(&huge, 0)).is_err());
    let odd = "a\0b\u{202e}/../".repeat(300);
    assert_eq!(code(rig.try_create(wanted(&odd, 0))), Code::InvalidArgument);
    for id in [odd.as_str(), "..", "a/b", "v@1"] {
        rig.delete(id).unwrap();
        rig.delete_snapshot(id).unwrap();
        assert_eq!(code(rig.try_snapshot(id, "s")), Code::NotFound, "{id:?}");
        assert_eq!(
            code(rig.try_create(CreateVolumeRequest {
                volume_content_source: from_volume(id),
                ..wanted("w", 0)
            })),
            Code::NotFound
        );
    }
    rig.create("v");
    // Concurrent snapshots of an unused volume succeed, and it is unmounted afterwards.
    let socket = &rig.socket;
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..6)
            .map(|number| {
                scope.spawn(move || {
                    crate::csi::support::snapshot_at(socket, "v", &format!("s{}", number / 2))
                })
            })
            .collect();
        let made: BTreeSet<String> = asked
            .into_iter()
            .map(|one| one.join().unwrap().unwrap())
            .collect();
        assert_eq!(
            made.len(),
            3,
            "two requests with one name create one volume"
        );
    });
    assert!(
        !rig.is_mounted("v")
            && rig.record("v")["mounts"]
                .as_array()
                .is_some_and(Vec::is_empty)
    );
}
