//! A checkpoint goes to a registry.

use super::image::{self, Image, LAYERS_MAX, Origin};
use super::layer::{self, Layer};
use super::registry::Registry;
use crate::engine::api::VerbResult;
use crate::store::ids::CheckpointId;

/// So many other tags are looked at for an image to build upon.
const TAGS_MAX: usize = 32;

/// An image that one of another checkpoint can be built upon.
#[derive(Debug)]
pub struct Base {
    /// Where it was found.
    pub tag: String,
    /// Its manifest, as it was found.
    pub manifest: Vec<u8>,
    /// The image.
    pub image: Image,
    /// What it is of.
    pub origin: Origin,
}

impl Base {
    /// One more layer would be one too many.
    pub fn is_full(&self) -> bool {
        self.image.manifest.layers().len() >= LAYERS_MAX
    }
}

/// Looks for an image that one of a checkpoint can be built upon: the tag itself, `latest`, or
/// whichever other tag has the newest checkpoint. It is of the same store, of a checkpoint that
/// `is_kept` knows, and all its layers are there.
///
/// # Errors
/// Those of asking for the tag; what is odd about an image is only a reason not to use it.
pub fn base_for(
    registry: &Registry,
    tag: &str,
    store: &str,
    is_kept: &mut dyn FnMut(&Origin) -> VerbResult<bool>,
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

/// What was put.
#[derive(Debug)]
pub struct Put {
    /// Digest of the manifest.
    pub digest: String,
    /// How many layers the image has.
    pub layers: usize,
    /// Bytes that were sent.
    pub sent: u64,
}

/// Puts an image under a tag: what it consists of first, then, when the registry has it all, the
/// manifest. `progress` is told how much of the layer is there.
///
/// # Errors
/// Those of the registry: then the tag is what it was.
pub fn put(
    registry: &Registry,
    tag: &str,
    made: &image::Made,
    layer: Option<&Layer>,
    progress: &dyn Fn(u64, u64),
) -> VerbResult<Put> {
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
    Ok(Put {
        digest: super::digest_of(&made.manifest),
        layers: made.layers,
        sent: sent + made.manifest.len() as u64,
    })
}

/// Puts an image that is there under another tag.
///
/// # Errors
/// Those of the registry.
pub fn put_again(registry: &Registry, tag: &str, base: &Base) -> VerbResult<Put> {
    let mut sent = 0;
    if base.tag != tag {
        registry.put_manifest(tag, super::MANIFEST_KIND, &base.manifest)?;
        sent = base.manifest.len() as u64;
    }
    Ok(Put {
        digest: super::digest_of(&base.manifest),
        layers: base.image.manifest.layers().len(),
        sent,
    })
}
