//! `push` to a registry, and `pull` from a registry.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use super::super::export_common::{self, Copied, ExportStream};
use super::super::size;
use super::{pull, push};
use ckptfs_api::display::count as plural;
use ckptfs_api::{
    CheckpointId, CheckpointInfo, Code, ShowCheckpoint, StateName, VerbResult, host_path,
    microseconds,
};
use ckptfs_remote::oci::image::{self, ImageOrigin};
use ckptfs_remote::oci::layer::{self, Layer, LayerChanges, LayerCounts};
use ckptfs_remote::oci::pull::{fetch, find};
use ckptfs_remote::oci::push::{Base, PutResult, base_for, put, put_again};
use ckptfs_remote::oci::registry::Registry;
use ckptfs_remote::oci::unpack::{self, LeftOutCounts};
use ckptfs_remote::oci::{ImageRef, SCHEME, auth};
use ckptfs_sys as sys;
use ckptfs_transfer::mark::ExportMark;
use ckptfs_transfer::write::{DestState, Writer};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Failure, Outcome, hinted};
use ckptfs_ui::past::StateTree;
use ckptfs_ui::progress::Bar;
use ckptfs_ui::{locate, time};

/// Options for a registry.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// For a registry: connect without TLS; loopback addresses never use it
    #[arg(long)]
    pub(super) plain_http: bool,
}

/// Reports whether a remote is a place in a registry.
pub fn is_place(remote: &str) -> bool {
    remote.starts_with(super::OCI)
}

fn registry(place: &ImageRef, write: bool, options: &Options) -> VerbResult<Registry> {
    let known = auth::find(&place.host, &place.name, |name| std::env::var(name).ok());
    Registry::new(place.clone(), known, write, options.plain_http)
}

fn usage<T>(message: &str, hint: &str) -> Outcome<T> {
    Err(Failure::Verb(hinted(Code::Usage, message, hint)))
}

#[derive(Serialize)]
struct Pushed {
    pushed: CheckpointId,
    image: String,
    digest: Option<String>,
    /// The checkpoint of the image that it is based on.
    from: Option<CheckpointId>,
    layers: usize,
    sent_bytes: u64,
    sockets: u64,
    parted_links: u64,
    xattrs_lost: u64,
    dry_run: bool,
    duration_us: u64,
}

/// Pushes a checkpoint.
pub fn push(args: &push::Args, context: &mut Context) -> Outcome {
    let started = Instant::now();
    let place = ImageRef::parse(&args.remote)?;
    if place.digest().is_some() {
        return usage(
            "an image is pushed under a tag, not under a digest",
            "oci://HOST/NAME:TAG",
        );
    }
    if args.since.is_some() {
        return usage(
            "--since is for repositories",
            "an image is of one checkpoint: ckptfs push oci://HOST/NAME:TAG ID",
        );
    }
    let id = match args.ids.as_slice() {
        [] => "latest",
        [id] => id,
        _ => {
            return usage(
                "an image is of one checkpoint",
                "push each one under a tag of its own",
            );
        }
    };
    let mut source = Source::find(id, context)?;
    let registry = registry(&place, true, &args.registry)?;
    let base = source.base(&registry, &place, context)?;
    let from = base.as_ref().map(|base| base.origin.checkpoint);
    let mut answer = Pushed {
        pushed: source.checkpoint.id,
        image: place.to_string(),
        digest: None,
        from,
        layers: base
            .as_ref()
            .map_or(0, |base| base.image.manifest.layers().len()),
        sent_bytes: 0,
        sockets: 0,
        parted_links: 0,
        xattrs_lost: 0,
        dry_run: args.dry_run,
        duration_us: 0,
    };
    if !args.dry_run {
        let (put, count) = match &base {
            Some(base) if base.origin.checkpoint == source.checkpoint.id => (
                put_again(&registry, place.tag(), base)?,
                LayerCounts::default(),
            ),
            base => source.put(&registry, &place, base.as_ref(), &mut answer, context)?,
        };
        (answer.digest, answer.layers, answer.sent_bytes) =
            (Some(put.digest), put.layers, put.sent);
        (answer.sockets, answer.parted_links, answer.xattrs_lost) =
            (count.sockets, count.parted, count.xattrs);
    }
    answer.duration_us = microseconds(started.elapsed());
    tell_pushed(&answer, context)
}

fn tell_pushed(answer: &Pushed, context: &mut Context) -> Outcome {
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(answer)?);
    }
    let (id, image) = (answer.pushed, &answer.image);
    let how = match answer.from {
        Some(from) if from == id => "which is there already".to_owned(),
        Some(from) => format!("as what changed since checkpoint {from}"),
        None => "as one layer".to_owned(),
    };
    out.line(&match &answer.digest {
        None => format!("checkpoint {id} would be pushed to {image}, {how}"),
        Some(digest) => format!(
            "pushed checkpoint {id} to {image}, {how}: {}, {} sent, in {}\n{digest}",
            plural(answer.layers, "layer"),
            size::human(answer.sent_bytes),
            time::duration(answer.duration_us)
        ),
    })?;
    if answer.sockets > 0 {
        out.warn(&format!(
            "{} left out: an image cannot hold them",
            plural(answer.sockets, "socket")
        ));
    }
    if answer.parted_links > 0 {
        out.warn(&format!(
            "{} with further names in layers below: in the image they are separate files with the same content",
            plural(answer.parted_links, "file")
        ));
    }
    if answer.xattrs_lost > 0 {
        out.warn(&format!(
            "{} with = in the name left out: an image cannot hold them",
            plural(answer.xattrs_lost, "extended attribute")
        ));
    }
    Ok(())
}

/// Source of a push.
struct Source {
    checkpoint: CheckpointInfo,
    origin: ImageOrigin,
    /// Name of the directory.
    title: String,
    view: std::os::fd::OwnedFd,
    /// Export of the whole checkpoint.
    whole: Option<ExportStream>,
}

impl Source {
    fn find(id: &str, context: &Context) -> VerbResult<Source> {
        let mut served = export_common::served(context)?;
        let state = StateName(id.to_owned());
        let checkpoint = served.client.ask(ShowCheckpoint { state })?;
        let title = served.root.file_name().unwrap_or_default();
        let title = title.to_string_lossy().into_owned();
        let view = StateTree::at(&served, Some(&checkpoint))?.into_root();
        // In the order of names, so that the same checkpoint becomes the same layer.
        let begun = ExportStream::whole(served.client, checkpoint.id, None)?;
        Ok(Source {
            origin: ImageOrigin::new(&begun.part.store, &checkpoint),
            checkpoint,
            title,
            view,
            whole: Some(begun),
        })
    }

    /// Returns the image to build upon; `None`: all of the tree is pushed.
    fn base(
        &self,
        registry: &Registry,
        place: &ImageRef,
        context: &Context,
    ) -> VerbResult<Option<Base>> {
        let mut client = export_common::served(context)?.client;
        let mut is_kept = |origin: &ImageOrigin| -> VerbResult<bool> {
            let state = StateName(origin.checkpoint.to_string());
            match client.ask(ShowCheckpoint { state }) {
                Ok(kept) => Ok(kept.created == origin.created),
                Err(gone) if gone.code == Code::UnknownCheckpoint => Ok(false),
                Err(other) => Err(other),
            }
        };
        let store = &self.origin.store;
        let base = base_for(registry, place.tag(), store, &mut is_kept)?;
        Ok(base.filter(|base| !base.is_full() || base.origin.checkpoint == self.checkpoint.id))
    }

    fn put(
        &mut self,
        registry: &Registry,
        place: &ImageRef,
        base: Option<&Base>,
        answer: &mut Pushed,
        context: &Context,
    ) -> VerbResult<(PutResult, LayerCounts)> {
        let bar = Bar::files(&context.out, "packing");
        let packed = match base {
            Some(base) => self.difference(base, &bar, context),
            None => self.packed(&bar).map(|layer| (true, Some(layer))),
        };
        bar.stop();
        let (whole, layer) = packed?;
        if whole {
            answer.from = None;
        }
        let base = base.filter(|_| !whole).map(|base| &base.image);
        let note = &self.checkpoint.note;
        let made = image::make(base, layer.as_ref(), &self.origin, &self.title, note)?;
        let bar = Bar::start(&context.out, "sending", true);
        let told = |done, total| bar.at(done, total);
        let put = put(registry, place.tag(), &made, layer.as_ref(), &told);
        bar.stop();
        Ok((put?, layer.map(|layer| layer.count).unwrap_or_default()))
    }

    fn packed(&mut self, bar: &Bar) -> VerbResult<Layer> {
        let begun = self
            .whole
            .take()
            .ok_or_else(|| hinted(Code::Internal, "the export is over", "push again"))?;
        let (layer, refused) = layer::whole(begun.ahead(), &self.view, &|done| bar.at(done, 0))?;
        layer::refused(&refused)?;
        Ok(layer)
    }

    /// Returns the layer of the changes since another checkpoint, or, with `true`, of the whole
    /// tree if that checkpoint is gone; `None`: no changes.
    fn difference(
        &mut self,
        base: &Base,
        bar: &Bar,
        context: &Context,
    ) -> VerbResult<(bool, Option<Layer>)> {
        let (id, from) = (self.checkpoint.id.to_string(), base.origin.checkpoint);
        let begun = ExportStream::begin(export_common::served(context)?, &id, Some(from))?;
        if begun.part.from != Some(from) {
            return self.packed(bar).map(|layer| (true, Some(layer)));
        }
        let changes = LayerChanges::default();
        layer::refused(&begun.hand_over(&changes, export_common::threads(Some(from)), bar)?)?;
        if changes.is_empty() {
            return Ok((false, None));
        }
        let layer = changes.layer(&self.view, &|done| bar.at(done, 0))?;
        Ok((false, Some(layer)))
    }
}

#[derive(Serialize)]
struct Pulled {
    pulled: String,
    digest: String,
    /// Its checkpoint, if ckptfs made it.
    checkpoint: Option<CheckpointId>,
    store: Option<String>,
    #[serde(with = "host_path")]
    into: PathBuf,
    layers: usize,
    bytes: u64,
    dry_run: bool,
    #[serde(flatten)]
    copied: Option<Copied>,
    devices_left_out: u64,
    set_ids_left_out: u64,
    xattrs_left_out: u64,
    duration_us: u64,
}

/// Pulls an image.
pub fn pull(args: &pull::Args, context: &mut Context) -> Outcome {
    let started = Instant::now();
    let place = ImageRef::parse(&args.remote)?;
    if args.id.is_some() {
        return usage(
            "which image is said by its tag",
            "ckptfs pull oci://HOST/NAME:TAG --into DIR",
        );
    }
    let Some(into) = &args.into else {
        return usage(
            "an image is pulled into a directory",
            "then make it a checkpoint: ckptfs import DIR --into TREE",
        );
    };
    let into = export_common::destination(&locate::start(context.dir())?, into);
    let registry = registry(&place, false, &args.registry)?;
    let found = find(&registry, place.wanted())?;
    let origin = found.image.origin();
    let mut answer = Pulled {
        pulled: place.to_string(),
        digest: found.digest.clone(),
        checkpoint: origin.as_ref().map(|origin| origin.checkpoint),
        store: origin.as_ref().map(|origin| origin.store.clone()),
        into,
        layers: found.image.manifest.layers().len(),
        bytes: found.bytes,
        dry_run: args.dry_run,
        copied: None,
        devices_left_out: 0,
        set_ids_left_out: 0,
        xattrs_left_out: 0,
        duration_us: 0,
    };
    if args.dry_run {
        return tell_pulled(&answer, LeftOutCounts::default(), context);
    }
    sys::umask0();
    // An unusable destination is rejected before layers are fetched.
    let mark = mark_of(&place, origin.as_ref());
    let before = before(&answer.into, &mark)?;
    let bar = Bar::start(&context.out, "fetching", true);
    let layers = fetch(&registry, &found, &|done, total| bar.at(done, total));
    bar.stop();
    let layers = layers?;
    let bar = Bar::files(&context.out, "reading");
    let tree = unpack::ImageTree::read(&layers, args.trusted, &|done| bar.at(done, 0));
    bar.stop();
    let tree = tree?;
    answer.copied = Some(write(&answer.into, &layers, &tree, before, mark, context)?);
    answer.devices_left_out = tree.left.devices;
    answer.set_ids_left_out = tree.left.set_ids;
    answer.xattrs_left_out = tree.left.xattrs;
    answer.duration_us = microseconds(started.elapsed());
    tell_pulled(&answer, tree.left, context)?;
    if args.mount {
        export_common::own_verb("mount", &answer.into, &[], &[])?;
    }
    Ok(())
}

/// Returns the mark of a directory with the image; for an image of another program, with its name.
fn mark_of(place: &ImageRef, origin: Option<&ImageOrigin>) -> ExportMark {
    let (store, checkpoint) = match origin {
        Some(origin) => (origin.store.clone(), origin.checkpoint),
        None => (format!("{SCHEME}{}", place.repository()), CheckpointId(0)),
    };
    ExportMark {
        store,
        checkpoint,
        whole: false,
    }
}

/// Returns the content of a destination that the writer must expect.
fn before(into: &Path, mark: &ExportMark) -> VerbResult<DestState> {
    let dir = export_common::open_destination(into)?;
    if export_common::is_empty(into, &dir)? {
        return Ok(DestState::Nothing);
    }
    match ExportMark::read(&dir).unwrap_or_default() {
        Some(there) if there.store == mark.store => Ok(DestState::Anything),
        Some(_) => Err(hinted(
            Code::NotEmpty,
            format!("{} holds another tree", into.display()),
            "pull into another directory, or remove that one first",
        )),
        None => Err(export_common::not_empty(
            into,
            "pull into a directory that does not exist or is empty",
        )),
    }
}

/// Writes the tree, and marks it as complete once it is on disk.
fn write(
    into: &Path,
    layers: &[unpack::PackedLayer],
    tree: &unpack::ImageTree,
    before: DestState,
    mut mark: ExportMark,
    context: &Context,
) -> VerbResult<Copied> {
    let dir = export_common::open_destination(into)?;
    let marked = mark.write(&dir).on(into.display())?;
    if !marked {
        context.out.warn("the filesystem there has no extended attributes: another pull needs an empty directory");
    }
    // Existing files may have been changed without a trace, so their content is compared.
    let writer = Writer::of_compared(dir.try_clone().on(into.display())?, before);
    writer.prepare().on(into.display())?;
    let bar = Bar::files(&context.out, "unpacking");
    let refused = tree.write(layers, (&dir, &writer), &|done| bar.at(done, 0));
    bar.stop();
    let mut refused = refused?;
    refused.extend(writer.finish());
    refused.sort_by(|a, b| a.path.cmp(&b.path));
    sys::syncfs(&dir).on(into.display())?;
    if refused.is_empty() && marked {
        mark.whole = true;
        mark.write(&dir).on(into.display())?;
        sys::fsync(&dir).on(into.display())?;
    }
    Ok(Copied::new(&writer, &refused, Vec::new()))
}

fn tell_pulled(answer: &Pulled, left: LeftOutCounts, context: &mut Context) -> Outcome {
    let out = &mut context.out;
    if out.json {
        out.json(answer)?;
    } else {
        let (image, into) = (&answer.pulled, answer.into.display().to_string());
        let into = out.text(&into).into_owned();
        let what = answer.checkpoint.map_or_else(
            || "which is no checkpoint of ckptfs".to_owned(),
            |checkpoint| format!("checkpoint {checkpoint}"),
        );
        out.line(&match &answer.copied {
            None => format!(
                "{image} ({what}) would be pulled into {into}: {}, {}",
                plural(answer.layers, "layer"),
                size::human(answer.bytes)
            ),
            Some(copied) => format!(
                "pulled {image} ({what}) into {into}: {}",
                copied.how(answer.duration_us)
            ),
        })?;
    }
    let not_trusted = [
        (left.devices, "device"),
        (left.set_ids, "set-id bit"),
        (left.xattrs, "extended attribute"),
    ];
    for (count, what) in not_trusted.into_iter().filter(|(count, _)| *count > 0) {
        out.warn(&format!(
            "{} left out: whoever may write to the registry could have made them; --trusted keeps them",
            plural(count, what)
        ));
    }
    if left.store > 0 {
        out.warn("a store in the image (.ckptfs) is left out: a tree is mounted with a history of its own");
    }
    answer.copied.as_ref().map_or(Ok(()), |copied| {
        copied.report(
            out,
            "everything else was made; run the same command again once the cause is fixed",
        )
    })
}
