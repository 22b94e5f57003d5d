//! The manifest and the configuration of an image.
//!
//! Labels name the store and the checkpoint. An image built on a pushed one inherits them, so a
//! third label identifies the layers, by their chain ID as in the OCI specification. Only if all
//! three match was the image pushed by ckptfs, and a layer with later changes can be added.

use std::collections::{BTreeMap, HashMap};

use oci_spec::image::{
    ANNOTATION_CREATED, ANNOTATION_DESCRIPTION, ANNOTATION_TITLE, Config, Descriptor, Digest,
    History, ImageConfiguration, ImageManifest, MediaType, RootFs,
};
use serde::Serialize;
use serde_json::Value;

use super::digest_of;
use super::layer::Layer;
use ckptfs_api::{CheckpointId, CheckpointInfo, Code, VerbResult, error};

/// Above this number, all layers are replaced by one: container engines support about 127.
pub const LAYERS_MAX: usize = 100;

/// The labels and annotations.
const STORE: &str = "dev.ckptfs.store";
const CHECKPOINT: &str = "dev.ckptfs.checkpoint";
const CHAIN: &str = "dev.ckptfs.chain";

/// The checkpoint of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOrigin {
    /// The store.
    pub store: String,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Its time of creation: RFC 3339.
    pub created: String,
}

impl ImageOrigin {
    /// Returns the origin for a checkpoint of a store.
    pub fn new(store: &str, checkpoint: &CheckpointInfo) -> ImageOrigin {
        ImageOrigin {
            store: store.to_owned(),
            checkpoint: checkpoint.id,
            created: checkpoint.created.clone(),
        }
    }

    fn of(map: Option<&HashMap<String, String>>) -> Option<ImageOrigin> {
        let of = |key: &str| map?.get(key);
        Some(ImageOrigin {
            store: of(STORE)?.clone(),
            checkpoint: CheckpointId(of(CHECKPOINT)?.parse().ok()?),
            created: of(ANNOTATION_CREATED)?.clone(),
        })
    }
}

/// An image that was read.
#[derive(Clone, Debug)]
pub struct Image {
    /// The manifest.
    pub manifest: ImageManifest,
    /// The configuration.
    pub config: ImageConfiguration,
}

impl Image {
    /// Parses both parts of an image.
    ///
    /// # Errors
    /// `remote-failed`: they are invalid or inconsistent.
    pub fn parse(manifest: &[u8], config: &[u8]) -> VerbResult<Image> {
        let odd = |why: &str| {
            error(
                Code::RemoteFailed,
                format!("the image cannot be understood: {why}"),
            )
        };
        let image = Image {
            manifest: manifest_of(manifest)?,
            config: serde_json::from_slice(config).map_err(|cause| odd(&cause.to_string()))?,
        };
        if image.config.rootfs().diff_ids().len() == image.manifest.layers().len() {
            Ok(image)
        } else {
            Err(odd(
                "manifest and configuration have different numbers of layers",
            ))
        }
    }

    /// Returns the checkpoint of an image that ckptfs pushed and that has no layers added by
    /// others.
    pub fn origin(&self) -> Option<ImageOrigin> {
        let labels = self.config.labels_of_config()?;
        let chain = chain(self.config.rootfs().diff_ids());
        ImageOrigin::of(Some(labels)).filter(|_| labels.get(CHAIN) == Some(&chain))
    }

    /// Returns the digests of the layers.
    pub fn layers(&self) -> impl Iterator<Item = &str> {
        self.manifest
            .layers()
            .iter()
            .map(|layer| layer.digest().as_ref())
    }
}

/// Parses a manifest.
///
/// # Errors
/// `remote-failed`.
pub fn manifest_of(bytes: &[u8]) -> VerbResult<ImageManifest> {
    serde_json::from_slice(bytes).map_err(|cause| {
        error(
            Code::RemoteFailed,
            format!("the manifest cannot be understood: {cause}"),
        )
    })
}

/// Returns the origin in the annotations of a manifest. It is only a hint, because annotations may
/// be inherited.
pub fn hint_of(manifest: &ImageManifest) -> Option<ImageOrigin> {
    ImageOrigin::of(manifest.annotations().as_ref())
}

/// An image to put.
#[derive(Debug)]
pub struct NewImage {
    /// The configuration.
    pub config: Vec<u8>,
    /// Its digest.
    pub config_digest: String,
    /// The manifest.
    pub manifest: Vec<u8>,
    /// The number of layers.
    pub layers: usize,
}

/// Builds the image of a checkpoint: the layers of `base`, and one more. `title`: a name for the
/// tree.
///
/// # Errors
/// `internal`.
pub fn make(
    base: Option<&Image>,
    layer: Option<&Layer>,
    origin: &ImageOrigin,
    title: &str,
    note: &str,
) -> VerbResult<NewImage> {
    let internal =
        |cause: &dyn std::fmt::Display| error(Code::Internal, format!("an image: {cause}"));
    let mut layers = base.map_or_else(Vec::new, |base| base.manifest.layers().clone());
    let mut diff_ids = base.map_or_else(Vec::new, |base| base.config.rootfs().diff_ids().clone());
    let mut history = base
        .and_then(|base| base.config.history().clone())
        .unwrap_or_default();
    if let Some(layer) = layer {
        let digest: Digest = layer.digest.parse().map_err(|cause| internal(&cause))?;
        layers.push(Descriptor::new(
            MediaType::ImageLayerGzip,
            layer.size,
            digest,
        ));
        diff_ids.push(layer.diff_id.clone());
    }
    history.push(event(origin, layer.is_none()));
    let said = said_of(origin, title, note);
    let mut labels = said.clone();
    labels.insert(CHAIN.to_owned(), chain(&diff_ids));

    let mut for_containers = Config::default();
    for_containers.set_labels(Some(labels));
    let mut rootfs = RootFs::default();
    rootfs.set_diff_ids(diff_ids);
    // The default platform is that of this machine.
    let mut config = ImageConfiguration::default();
    config.set_created(Some(origin.created.clone()));
    config.set_config(Some(for_containers));
    config.set_rootfs(rootfs);
    config.set_history(Some(history));
    let config = canonical(&config).map_err(|cause| internal(&cause))?;
    let config_digest = digest_of(&config);

    let digest: Digest = config_digest.parse().map_err(|cause| internal(&cause))?;
    let mut manifest = oci_spec::image::ImageManifestBuilder::default()
        .schema_version(oci_spec::image::SCHEMA_VERSION)
        .media_type(MediaType::ImageManifest)
        .config(Descriptor::new(
            MediaType::ImageConfig,
            config.len() as u64,
            digest,
        ))
        .layers(layers)
        .build()
        .map_err(|cause| internal(&cause))?;
    manifest.set_annotations(Some(said));
    Ok(NewImage {
        layers: manifest.layers().len(),
        manifest: canonical(&manifest).map_err(|cause| internal(&cause))?,
        config,
        config_digest,
    })
}

/// Returns the history entry of the newest layer.
fn event(origin: &ImageOrigin, without_layer: bool) -> History {
    let mut event = History::default();
    event.set_created(Some(origin.created.clone()));
    event.set_created_by(Some(format!("ckptfs, checkpoint {}", origin.checkpoint)));
    event.set_empty_layer(without_layer.then_some(true));
    event
}

/// Returns the annotations common to manifest and configuration.
fn said_of(origin: &ImageOrigin, title: &str, note: &str) -> HashMap<String, String> {
    let mut said = HashMap::from([
        (STORE.to_owned(), origin.store.clone()),
        (CHECKPOINT.to_owned(), origin.checkpoint.to_string()),
        (ANNOTATION_CREATED.to_owned(), origin.created.clone()),
        (ANNOTATION_TITLE.to_owned(), title.to_owned()),
    ]);
    if !note.is_empty() {
        said.insert(ANNOTATION_DESCRIPTION.to_owned(), note.to_owned());
    }
    said
}

/// Returns the chain ID of the layers.
fn chain(diff_ids: &[String]) -> String {
    let mut ids = diff_ids.iter();
    let first = ids.next().cloned().unwrap_or_default();
    ids.fold(first, |below, id| {
        digest_of(format!("{below} {id}").as_bytes())
    })
}

/// Serializes with sorted keys, so that equal images are equal bytes.
fn canonical(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Sorted::of(serde_json::to_value(value)?))
}

#[derive(Serialize)]
#[serde(untagged)]
enum Sorted {
    Map(BTreeMap<String, Sorted>),
    List(Vec<Sorted>),
    Other(Value),
}

impl Sorted {
    fn of(value: Value) -> Sorted {
        match value {
            Value::Object(map) => Sorted::Map(
                map.into_iter()
                    .map(|(key, value)| (key, Sorted::of(value)))
                    .collect(),
            ),
            Value::Array(list) => Sorted::List(list.into_iter().map(Sorted::of).collect()),
            other => Sorted::Other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::layer::LayerCounts;

    fn layer(content: &[u8]) -> Layer {
        Layer {
            file: tempfile::tempfile().expect("a file"),
            digest: digest_of(&[b"packed", content].concat()),
            size: 7,
            diff_id: digest_of(content),
            count: LayerCounts::default(),
        }
    }

    fn origin(checkpoint: u64) -> ImageOrigin {
        ImageOrigin {
            store: "s".into(),
            checkpoint: CheckpointId(checkpoint),
            created: "2026-11-26T00:00:00.000000001Z".into(),
        }
    }

    fn made(base: Option<&Image>, content: Option<&[u8]>, checkpoint: u64) -> (NewImage, Image) {
        let layer = content.map(layer);
        let made = make(base, layer.as_ref(), &origin(checkpoint), "t", "a note").expect("made");
        let image = Image::parse(&made.manifest, &made.config).expect("understood");
        (made, image)
    }

    #[test]
    fn what_was_made_is_understood_and_is_always_the_same() {
        let (first, image) = made(None, Some(b"one"), 3);
        assert_eq!(image.origin(), Some(origin(3)));
        assert_eq!(hint_of(&image.manifest), Some(origin(3)));
        for _ in 0..8 {
            assert_eq!(made(None, Some(b"one"), 3).0.manifest, first.manifest);
        }
        let (second, image) = made(Some(&image), Some(b"two"), 5);
        assert_eq!((second.layers, image.origin()), (2, Some(origin(5))));
        let (third, image) = made(Some(&image), None, 6);
        assert_eq!((third.layers, image.origin()), (2, Some(origin(6))));
        let layers = image.config.history().as_ref().expect("history").iter();
        assert_eq!(
            layers
                .filter(|event| event.empty_layer() != Some(true))
                .count(),
            2
        );
    }

    #[test]
    fn an_image_that_was_built_on_ours_is_not_ours() {
        let (made, mut image) = made(None, Some(b"one"), 3);
        image
            .config
            .rootfs_mut()
            .diff_ids_mut()
            .push(digest_of(b"RUN x"));
        assert_eq!(image.origin(), None);
        let config = String::from_utf8(made.config).expect("text");
        let other = config.replace("dev.ckptfs.chain", "dev.other");
        assert_eq!(
            Image::parse(&made.manifest, other.as_bytes())
                .expect("understood")
                .origin(),
            None
        );
    }

    #[test]
    fn what_is_no_image_is_said_to_be_none() {
        let (made, _) = made(None, Some(b"one"), 3);
        for (manifest, config) in [
            (b"{}".as_slice(), made.config.as_slice()),
            (&made.manifest, b"{}"),
            (b"\xff", b""),
            (&made.manifest, b"[1]"),
        ] {
            assert!(Image::parse(manifest, config).is_err());
        }
    }
}
