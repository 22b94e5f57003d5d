//! Parsing of requests for volumes: capabilities, sizes, parameters.

use std::collections::{BTreeMap, HashMap};

use tonic::Status;

use super::names;
use super::proto::volume_capability::AccessType;
use super::proto::volume_capability::access_mode::Mode;
use super::proto::{CapacityRange, Topology, TopologyRequirement, VolumeCapability};
use super::status::{invalid, required, status_of};
use super::{NAME, TOPOLOGY_KEY};
use crate::options::{Options, SIZE_BYTES_MIN};

/// Prefix of parameters that sidecars add to those of a class.
pub const OF_KUBERNETES: &str = "csi.storage.k8s.io/";
/// Value of the parameter `size` that enforces the requested size.
const SIZE_AS_REQUESTED: &str = "requested";
/// Flags of mount(8) that a bind mount accepts.
const FLAGS: [&str; 10] = [
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "noatime",
    "nodiratime",
];

/// How a volume is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishOptions {
    /// Without write access.
    pub read_only: bool,
    /// At one path only.
    pub alone: bool,
    /// Flags of mount(8).
    pub flags: Vec<String>,
}

/// Validates a name from a request.
pub fn named(text: &str) -> Result<&str, Status> {
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

/// Parses a capability.
pub fn shown(capability: Option<&VolumeCapability>) -> Result<PublishOptions, Status> {
    let capability = capability.ok_or_else(|| invalid("volume_capability is missing"))?;
    let mount = match &capability.access_type {
        Some(AccessType::Mount(mount)) => mount,
        Some(AccessType::Block(_)) => {
            return Err(invalid(
                "only filesystem volumes are supported, no block volumes",
            ));
        }
        None => return Err(invalid("volume_capability has no access_type")),
    };
    let mode = capability
        .access_mode
        .as_ref()
        .map(super::proto::volume_capability::AccessMode::mode);
    let read_only = match mode {
        Some(
            Mode::SingleNodeWriter | Mode::SingleNodeSingleWriter | Mode::SingleNodeMultiWriter,
        ) => false,
        Some(Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly) => true,
        Some(Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter) => {
            return Err(invalid(
                "a volume is on one node: it cannot be written to from several",
            ));
        }
        Some(Mode::Unknown) | None => return Err(invalid("volume_capability has no access_mode")),
    };
    let flags = mount.mount_flags.clone();
    if let Some(unknown) = flags.iter().find(|flag| !FLAGS.contains(&flag.as_str())) {
        return Err(invalid(format!(
            "mount flag {unknown} is not known; the options are {}",
            FLAGS.join(", ")
        )));
    }
    let read_only = read_only || flags.iter().any(|flag| flag == "ro");
    Ok(PublishOptions {
        read_only,
        alone: mode == Some(Mode::SingleNodeSingleWriter),
        flags: flags
            .into_iter()
            .filter(|flag| flag != "ro" && flag != "rw")
            .collect(),
    })
}

/// Validates the capabilities of a new volume.
pub fn all_shown(capabilities: &[VolumeCapability]) -> Result<(), Status> {
    if capabilities.is_empty() {
        return Err(invalid("volume_capabilities is missing"));
    }
    capabilities
        .iter()
        .try_for_each(|one| shown(Some(one)).map(drop))
}

/// The requested range of sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeRange {
    /// Minimum.
    pub required: u64,
    /// Maximum; 0: unlimited.
    pub limit: u64,
}

impl SizeRange {
    /// Parses a range.
    pub fn of(range: Option<&CapacityRange>) -> Result<SizeRange, Status> {
        let Some(range) = range else {
            return Ok(SizeRange::default());
        };
        let number = |value: i64| {
            u64::try_from(value).map_err(|_| invalid("capacity_range has a negative number"))
        };
        let range = SizeRange {
            required: number(range.required_bytes)?,
            limit: number(range.limit_bytes)?,
        };
        if range.limit != 0 && range.required > range.limit {
            return Err(invalid("capacity_range requires more than its limit"));
        }
        Ok(range)
    }

    /// Returns whether a size is in the range.
    pub fn takes(self, bytes: u64) -> bool {
        bytes >= self.required && (self.limit == 0 || bytes <= self.limit)
    }
}

/// Returns the parameters of a class, without those that sidecars add.
pub fn parameters(given: &HashMap<String, String>) -> Result<BTreeMap<String, String>, Status> {
    let ours: BTreeMap<String, String> = given
        .iter()
        .filter(|(name, _)| !name.starts_with(OF_KUBERNETES))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    for never in ["source", "ephemeral"] {
        if ours.contains_key(never) {
            return Err(invalid(format!(
                "{never} cannot be a parameter of a class, because it would be the same for all its volumes"
            )));
        }
    }
    let mut checked = ours.clone();
    if checked
        .get("size")
        .is_some_and(|size| size == SIZE_AS_REQUESTED)
    {
        checked.remove("size");
    }
    Options::parse(&checked).map_err(status_of)?;
    Ok(ours)
}

/// Returns the size promised to the volume, and its options. `source`: the volume's source, and its
/// size in bytes.
pub fn options(
    parameters: &BTreeMap<String, String>,
    range: SizeRange,
    source: Option<(&str, u64)>,
) -> Result<(u64, BTreeMap<String, String>), Status> {
    let mut options = parameters.clone();
    let wanted = range.required.max(source.map_or(0, |(_, bytes)| bytes));
    let bytes = match options.get("size").map(String::as_str) {
        Some(SIZE_AS_REQUESTED) if wanted == 0 => {
            return Err(invalid("size=requested needs a claim that requests a size"));
        }
        Some(SIZE_AS_REQUESTED) => {
            let bytes = wanted.max(SIZE_BYTES_MIN);
            options.insert("size".to_owned(), bytes.to_string());
            bytes
        }
        Some(_) => Options::parse(parameters)
            .map_err(status_of)?
            .size
            .unwrap_or(wanted),
        None => wanted,
    };
    if bytes != 0 && !range.takes(bytes) {
        return Err(Status::out_of_range(format!(
            "the volume would have {bytes} bytes, which does not meet the request"
        )));
    }
    if let Some((from, _)) = source
        && options.insert("from".to_owned(), from.to_owned()).is_some()
    {
        return Err(invalid(
            "the class has the parameter from, and the claim has a source: only one is possible",
        ));
    }
    Ok((bytes, options))
}

/// Returns the topology in which a volume of this node is accessible.
pub fn topology(node: &str) -> Topology {
    Topology {
        segments: HashMap::from([(TOPOLOGY_KEY.to_owned(), node.to_owned())]),
    }
}

/// Returns whether a volume of this node meets the topology.
pub fn fits(topology: &Topology, node: &str) -> bool {
    topology
        .segments
        .get(TOPOLOGY_KEY)
        .is_none_or(|wanted| wanted == node)
}

/// Rejects a volume that is required on another node.
pub fn accessible(requirement: Option<&TopologyRequirement>, node: &str) -> Result<(), Status> {
    let elsewhere = requirement.is_some_and(|wanted| {
        !wanted.requisite.is_empty() && !wanted.requisite.iter().any(|one| fits(one, node))
    });
    if elsewhere {
        Err(Status::resource_exhausted(format!(
            "this is {NAME} on node {node}: volumes cannot be made elsewhere"
        )))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(list: &[(&str, &str)]) -> HashMap<String, String> {
        list.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn parameters_are_the_options_of_a_volume() {
        let ours = parameters(&given(&[
            ("keep", "4h:1d"),
            ("size", "requested"),
            ("csi.storage.k8s.io/pvc/name", "data"),
        ]))
        .unwrap();
        assert_eq!(ours.keys().collect::<Vec<_>>(), ["keep", "size"]);
        for (name, said) in [
            ("kep", "keep"),
            ("source", "class"),
            ("ephemeral", "class"),
            ("size", "size takes"),
        ] {
            let refused = parameters(&given(&[(name, "x")])).unwrap_err();
            assert!(
                refused.code() == tonic::Code::InvalidArgument && refused.message().contains(said),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_size_is_enforced_where_the_class_says_so() {
        let range = SizeRange {
            required: 1 << 30,
            limit: 2 << 30,
        };
        let class = |list: &[(&str, &str)]| parameters(&given(list)).unwrap();
        assert_eq!(
            options(&class(&[]), range, None).unwrap(),
            (1 << 30, BTreeMap::new())
        );
        let (bytes, made) = options(&class(&[("size", "requested")]), range, None).unwrap();
        assert_eq!((bytes, made["size"].as_str()), (1 << 30, "1073741824"));
        assert_eq!(
            options(&class(&[("size", "1536M")]), range, None)
                .unwrap()
                .0,
            1536 << 20
        );
        assert_eq!(
            options(&class(&[("size", "3G")]), range, None)
                .unwrap_err()
                .code(),
            tonic::Code::OutOfRange
        );
        let small = SizeRange {
            required: 1,
            limit: 2,
        };
        assert_eq!(
            options(&class(&[("size", "requested")]), small, None)
                .unwrap_err()
                .code(),
            tonic::Code::OutOfRange
        );
        // The volume must have space for its source.
        assert_eq!(
            options(
                &class(&[]),
                SizeRange {
                    required: 1,
                    limit: 0
                },
                Some(("v@1", 5))
            )
            .unwrap()
            .0,
            5
        );
        assert!(options(&class(&[("from", "a")]), range, Some(("v@1", 5))).is_err());
    }

    #[test]
    fn a_volume_of_another_node_cannot_be_made_here() {
        let at = |nodes: &[&str]| TopologyRequirement {
            requisite: nodes.iter().map(|node| topology(node)).collect(),
            preferred: Vec::new(),
        };
        assert!(
            accessible(None, "a").is_ok()
                && accessible(Some(&at(&[])), "a").is_ok()
                && accessible(Some(&at(&["b", "a"])), "a").is_ok()
        );
        assert_eq!(
            accessible(Some(&at(&["b"])), "a").unwrap_err().code(),
            tonic::Code::ResourceExhausted
        );
    }
}
