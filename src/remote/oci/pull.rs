//! Pulls an image from a registry.

use oci_spec::image::{Arch, Descriptor, ImageIndex, MediaType, Os};

use super::image::{self, Image};
use super::registry::Registry;
use super::unpack::{LayerCompression, PackedLayer};
use super::{digest_of, scratch};
use crate::limits;
use ckptfs_api::{Code, VerbResult, error};

/// Limit of layers in an image.
const LAYERS_MAX: usize = 500;

/// An image in a registry.
#[derive(Debug)]
pub struct FoundImage {
    /// Manifest and configuration.
    pub image: Image,
    /// Digest of the manifest.
    pub digest: String,
    /// Total size of the layers in bytes.
    pub bytes: u64,
}

/// Finds an image. If the name refers to several platforms, selects that of this machine.
///
/// # Errors
/// `not-found`; errors of the registry.
pub fn find(registry: &Registry, wanted: &str) -> VerbResult<FoundImage> {
    let manifest_of = |wanted: &str| {
        let missing = || {
            error(
                Code::NotFound,
                format!("{} has no {wanted}", registry.shown()),
            )
        };
        registry.manifest(wanted)?.ok_or_else(missing)
    };
    let mut manifest = manifest_of(wanted)?;
    if let Some(index) = index_of(&manifest) {
        manifest = manifest_of(for_this_machine(&index)?.digest().as_ref())?;
    }
    let parsed = image::manifest_of(&manifest)?;
    let config = registry.short_blob(parsed.config().digest().as_ref(), "configuration")?;
    let image = Image::parse(&manifest, &config)?;
    let sizes = image.manifest.layers().iter().map(Descriptor::size);
    Ok(FoundImage {
        digest: digest_of(&manifest),
        bytes: sizes.fold(0, u64::saturating_add),
        image,
    })
}

/// Fetches the layers of an image into scratch files, the lowest first, and verifies their digests.
/// `progress` receives the bytes fetched and their total.
///
/// # Errors
/// Errors of the registry and of the scratch files.
pub fn fetch(
    registry: &Registry,
    found: &FoundImage,
    progress: &dyn Fn(u64, u64),
) -> VerbResult<Vec<PackedLayer>> {
    let (descriptors, config) = (found.image.manifest.layers(), &found.image.config);
    if descriptors.len() > LAYERS_MAX {
        return Err(error(Code::RemoteFailed, "the image has too many layers"));
    }
    let (mut layers, mut done) = (Vec::new(), 0_u64);
    for (descriptor, diff_id) in descriptors.iter().zip(config.rootfs().diff_ids()) {
        let packing = packing_of(descriptor.media_type())?;
        let (file, digest) = (scratch()?, descriptor.digest().as_ref());
        if !limits::has_room(&file, descriptor.size(), 0) {
            return Err(limits::no_room());
        }
        registry.blob(digest, descriptor.size(), &file, &|come| {
            progress(done.saturating_add(come), found.bytes);
        })?;
        done = done.saturating_add(descriptor.size());
        layers.push(PackedLayer {
            file,
            packing,
            diff_id: diff_id.clone(),
        });
    }
    Ok(layers)
}

/// Parses an image index, if it is one.
fn index_of(manifest: &[u8]) -> Option<ImageIndex> {
    serde_json::from_slice(manifest).ok()
}

fn for_this_machine(index: &ImageIndex) -> VerbResult<&Descriptor> {
    let fits = |one: &&Descriptor| {
        let platform = one.platform().as_ref();
        platform.is_some_and(|platform| {
            *platform.os() == Os::default() && *platform.architecture() == Arch::default()
        })
    };
    let mut all = index.manifests().iter();
    let only = (all.len() == 1)
        .then(|| index.manifests().first())
        .flatten();
    all.find(fits).or(only).ok_or_else(|| {
        error(
            Code::NotFound,
            "the image is not for this machine: none of its variants is",
        )
    })
}

fn packing_of(kind: &MediaType) -> VerbResult<LayerCompression> {
    Ok(match kind {
        MediaType::ImageLayer | MediaType::ImageLayerNonDistributable => LayerCompression::None,
        MediaType::ImageLayerGzip | MediaType::ImageLayerNonDistributableGzip => {
            LayerCompression::Gzip
        }
        MediaType::ImageLayerZstd | MediaType::ImageLayerNonDistributableZstd => {
            LayerCompression::Zstd
        }
        MediaType::Other(other) => match other.as_str() {
            "application/vnd.docker.image.rootfs.diff.tar" => LayerCompression::None,
            "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip" => LayerCompression::Gzip,
            "application/vnd.docker.image.rootfs.diff.tar.zstd" => LayerCompression::Zstd,
            other => return Err(unknown(other)),
        },
        other => return Err(unknown(other.as_ref())),
    })
}

fn unknown(kind: &str) -> ckptfs_api::VerbError {
    let kind: String = kind.chars().take(100).collect();
    error(
        Code::RemoteFailed,
        format!(
            "it is no image: a layer is of the unknown kind {}",
            kind.escape_debug()
        ),
    )
}
