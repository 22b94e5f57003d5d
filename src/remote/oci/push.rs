//! Pushes a checkpoint to a registry.

use super::image::{self, Image, ImageOrigin, LAYERS_MAX};
use super::layer::{self, Layer};
use super::registry::Registry;
use ckptfs_api::{CheckpointId, VerbResult};

/// Limit of other tags searched for a base image.
const TAGS_MAX: usize = 32;

/// An image of an earlier checkpoint, to which a layer can be added.
#[derive(Debug)]
pub struct Base {
    /// The tag under which it was found.
    pub tag: String,
    /// Its manifest, unchanged.
    pub manifest: Vec<u8>,
    /// The image.
    pub image: Image,
    /// Its checkpoint.
    pub origin: ImageOrigin,
}

impl Base {
    /// Returns whether it has the maximum number of layers.
    pub fn is_full(&self) -> bool {
        self.image.manifest.layers().len() >= LAYERS_MAX
    }
}

/// Finds a base image for a checkpoint: at the tag itself, at `latest`, or at the other tag with
/// the newest checkpoint. It must be of the same store and of a checkpoint accepted by `is_kept`,
/// and the registry must have all its layers.
///
/// # Errors
/// Errors of the registry. An image that cannot be parsed is skipped.
pub fn base_for(
    registry: &Registry,
    tag: &str,
    store: &str,
    is_kept: &mut dyn FnMut(&ImageOrigin) -> VerbResult<bool>,
) -> VerbResult<Option<Base>> {
    let mut usable = |tag: &str, manifest: Vec<u8>| -> VerbResult<Option<Base>> {
        let Ok(parsed) = image::manifest_of(&manifest) else {
            return Ok(None);
        };
        if image::hint_of(&parsed).is_none_or(|hint| hint.store != store) {
            return Ok(None);
        }
        let config = registry.short_blob(parsed.config().digest().as_ref(), "configuration");
        let image = config.and_then(|config| Image::parse(&manifest, &config));
        let Ok(image) = image else { return Ok(None) };
        let Some(origin) = image.origin().filter(|origin| origin.store == store) else {
            return Ok(None);
        };
        if !is_kept(&origin)? {
            return Ok(None);
        }
        for digest in image.layers() {
            if !registry.has_blob(digest)? {
                return Ok(None);
            }
        }
        Ok(Some(Base {
            tag: tag.to_owned(),
            manifest,
            image,
            origin,
        }))
    };
    let mut first = vec![tag];
    first.extend((tag != "latest").then_some("latest"));
    for tag in &first {
        if let Some(manifest) = registry.manifest(tag)?
            && let Some(base) = usable(tag, manifest)?
        {
            return Ok(Some(base));
        }
    }
    let mut others: Vec<(CheckpointId, String, Vec<u8>)> = Vec::new();
    let tags = registry.tags()?;
    let tags = tags
        .into_iter()
        .rev()
        .filter(|tag| !first.contains(&tag.as_str()));
    for tag in tags.take(TAGS_MAX) {
        let Some(manifest) = registry.manifest(&tag)? else {
            continue;
        };
        let hint = image::manifest_of(&manifest)
            .ok()
            .and_then(|parsed| image::hint_of(&parsed));
        if let Some(hint) = hint.filter(|hint| hint.store == store) {
            others.push((hint.checkpoint, tag, manifest));
        }
    }
    others.sort_by(|a, b| b.cmp(a));
    for (_, tag, manifest) in others {
        if let Some(base) = usable(&tag, manifest)? {
            return Ok(Some(base));
        }
    }
    Ok(None)
}

/// The result of a push.
#[derive(Debug)]
pub struct PutResult {
    /// Digest of the manifest.
    pub digest: String,
    /// Number of layers of the image.
    pub layers: usize,
    /// Bytes sent.
    pub sent: u64,
}

/// Puts an image under a tag: its parts first and, when the registry has all of them, the manifest.
/// `progress` receives the bytes of the layer sent.
///
/// # Errors
/// Errors of the registry; the tag is unchanged then.
pub fn put(
    registry: &Registry,
    tag: &str,
    made: &image::NewImage,
    layer: Option<&Layer>,
    progress: &dyn Fn(u64, u64),
) -> VerbResult<PutResult> {
    let mut sent = 0;
    if let Some(layer) = layer {
        let read = |offset: u64, buffer: &mut [u8]| layer::read_at(&layer.file, offset, buffer);
        let told = |done: u64| progress(done, layer.size);
        if registry.send_blob(&layer.digest, layer.size, &read, &told)? {
            sent += layer.size;
        }
    }
    let size = made.config.len() as u64;
    let read = |offset: u64, buffer: &mut [u8]| {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|offset| made.config.get(offset..));
        let piece = rest.and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(piece.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    if registry.send_blob(&made.config_digest, size, &read, &|_| {})? {
        sent += size;
    }
    registry.put_manifest(tag, super::MANIFEST_KIND, &made.manifest)?;
    Ok(PutResult {
        digest: super::digest_of(&made.manifest),
        layers: made.layers,
        sent: sent + made.manifest.len() as u64,
    })
}

/// Puts an existing image under another tag.
///
/// # Errors
/// Errors of the registry.
pub fn put_again(registry: &Registry, tag: &str, base: &Base) -> VerbResult<PutResult> {
    let mut sent = 0;
    if base.tag != tag {
        registry.put_manifest(tag, super::MANIFEST_KIND, &base.manifest)?;
        sent = base.manifest.len() as u64;
    }
    Ok(PutResult {
        digest: super::digest_of(&base.manifest),
        layers: base.image.manifest.layers().len(),
        sent,
    })
}
