//! Import of one directory into the tree, as a checkpoint.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde::Serialize;

use super::items::Item;
use super::shared_projects::ContentSource;
use super::target::{Target, TargetState};
use ckptfs_api::{
    ChangeTags, CheckpointId, CheckpointInfo, CheckpointOptions, Code, GetStatus, Retag,
    ShowCheckpoint, StateName, Status, VerbResult,
};
use ckptfs_sys::{self as sys, Errno, OpenKind, Time};
use ckptfs_transfer::dirs::open_below;
use ckptfs_transfer::import::contents::{ContentCounts, ContentIndex};
use ckptfs_transfer::import::execute::{ImportResult, ImportRun};
use ckptfs_transfer::import::plan::{self, ImportPlan, TreePair};
use ckptfs_transfer::import::record::ImportRecord;
use ckptfs_transfer::import::record_files::{self, StoredRecord};
use ckptfs_transfer::import::scan::{self, InodeCounts, Scan};
use ckptfs_transfer::import::skipped::SkippedPath;
use ckptfs_transfer::snapshots::Snapshot;
use ckptfs_transfer::write::{DestState, Writer};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Failure, Outcome, error, io_error};
use ckptfs_ui::progress::Bar;

/// Options of the import of items.
pub struct ImportOptions {
    /// Number of threads that read and write.
    pub threads: usize,
    /// Make a checkpoint for each item, even without changes.
    pub each: bool,
    /// Tag of the last checkpoint.
    pub tag: Option<String>,
    /// Hash files.
    pub hash: bool,
    /// Other projects to share content with.
    pub with: Vec<ContentSource>,
}

/// Result for one item, in the output of `--json`.
#[derive(Debug, Default, Serialize)]
pub struct ImportedItem {
    /// Name of the item.
    pub snapshot: String,
    /// Creation time, from the metadata of the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// The checkpoint of the item.
    pub checkpoint: Option<CheckpointId>,
    /// Nothing differs, and no checkpoint was made.
    pub unchanged: bool,
    /// The checkpoint of the earlier state, if that had changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<CheckpointId>,
    /// Inodes that were created, or whose attributes were changed.
    pub made: u64,
    /// Paths that were removed.
    pub removed: u64,
    /// Content of the source.
    #[serde(flatten)]
    pub count: InodeCounts,
    /// Bytes of new files that share their data with the source.
    pub shared_bytes: u64,
    /// Bytes of files that were copied.
    pub copied_bytes: u64,
    /// Reason for the copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copied_because: Option<String>,
    /// Result of the hashing, if files were hashed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contents: Option<ContentCounts>,
    /// Inodes whose owner could not be set.
    pub owners_lost: u64,
    /// Extended attributes that could not be set.
    pub xattrs_lost: u64,
    /// Skipped paths, and the reasons.
    pub left_out: Vec<SkippedPath>,
    /// Duration.
    pub duration_us: u64,
}

impl ImportedItem {
    /// Returns an empty result for an item.
    pub fn new(item: &Item) -> ImportedItem {
        ImportedItem {
            snapshot: item.name.clone(),
            date: item
                .snapshot
                .as_ref()
                .and_then(|snapshot| snapshot.date.clone()),
            ..ImportedItem::default()
        }
    }

    /// Returns the number of paths of the source that are missing in the tree.
    pub fn misses(&self) -> usize {
        self.left_out
            .iter()
            .filter(|left| left.why.is_missed())
            .count()
    }

    fn add(&mut self, writer: &Writer, brought: &ImportResult) {
        let get = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        (self.made, self.removed) = (get(&writer.made), get(&writer.removed));
        self.copied_bytes = get(&writer.inodes.copied_bytes);
        self.shared_bytes = get(&writer.inodes.bytes).saturating_sub(self.copied_bytes);
        (self.owners_lost, self.xattrs_lost) = (
            get(&writer.inodes.owners_lost),
            get(&writer.inodes.xattrs_lost),
        );
        let why = match Errno(writer.inodes.no_reflink.load(Ordering::Relaxed)) {
            Errno::EXDEV => "the source is on another filesystem",
            Errno(0) => "sharing is not permitted",
            _ => "the filesystem cannot share extents",
        };
        self.copied_because = (self.copied_bytes > 0).then(|| why.to_owned());
        self.contents = writer.inodes.contents.as_ref().map(ContentIndex::found);
        self.left_out.extend(brought.left.iter().cloned());
    }
}

/// The scanned source of an import.
pub struct ScannedSource {
    root: OwnedFd,
    scan: Scan,
    begun: Time,
    /// Owner of the mount, if that is neither the caller nor root.
    stranger: Option<u32>,
}

impl ScannedSource {
    /// Scans the source.
    pub fn read(item: &Item, threads: usize) -> VerbResult<ScannedSource> {
        let begun = sys::stamp_now();
        let root = open_below(&*item.dir, &item.below, OpenKind::Dir).on(item.path.display())?;
        let stranger = match sys::mount_of(&root) {
            Ok((mount, _)) => mount.owner.filter(|owner| !sys::is_trusted(*owner)),
            // An old kernel does not report it.
            Err(Errno::ENOSYS) => None,
            // The mount is in the table of another process, and its owner is unknown.
            Err(Errno::ENOENT) => Some(u32::MAX),
            Err(cause) => return Err(io_error(item.path.display(), cause)),
        };
        let scan = scan::scan(&root, threads).on(item.path.display())?;
        Ok(ScannedSource {
            root,
            scan: if stranger.is_some() {
                scan.of_stranger()
            } else {
                scan
            },
            begun,
            stranger,
        })
    }

    /// Returns the source with the tree that it replaces.
    fn sides<'a>(&'a self, there: &'a OwnedFd, there_scan: &'a Scan) -> TreePair<'a> {
        TreePair {
            source: &self.root,
            source_scan: &self.scan,
            there,
            there_scan,
        }
    }
}

/// Imports an item.
pub fn import(
    item: &Item,
    target: &mut Target,
    how: &ImportOptions,
    last: bool,
    context: &Context,
) -> Outcome<ImportedItem> {
    let started = Instant::now();
    let store = if target.state == TargetState::Tree {
        Some(target.store()?)
    } else {
        None
    };
    let (source, kept) = std::thread::scope(|scope| {
        let reading = store
            .as_ref()
            .map(|store| scope.spawn(move || StoredRecord::read(store)));
        let source = ScannedSource::read(item, how.threads);
        (
            source,
            reading
                .and_then(|reading| reading.join().ok())
                .unwrap_or_default(),
        )
    });
    let source = source?;
    if let Some(owner) = source.stranger {
        let what = "owners, set-id bits, devices and the system's attributes";
        context.out.warn(&format!(
            "{} is a filesystem mounted by user {owner}, so its {what} are not trusted, and not imported",
            item.path.display()
        ));
    }
    let mut made = ImportedItem {
        count: source.scan.count(),
        left_out: source.scan.left.clone(),
        ..ImportedItem::new(item)
    };
    let tag = how.tag.as_ref().filter(|_| last);
    let done = match target.state {
        TargetState::Empty | TargetState::Unfinished => {
            first(item, &source, target, how, tag, &mut made, context)
        }
        TargetState::Tree => again(item, &source, target, how, (tag, kept), &mut made, context),
    };
    done?;
    made.duration_us = ckptfs_api::microseconds(started.elapsed());
    Ok(made)
}

/// Imports into a directory that is not a tree yet: nothing in it has a past.
fn first(
    item: &Item,
    source: &ScannedSource,
    target: &mut Target,
    how: &ImportOptions,
    tag: Option<&String>,
    made: &mut ImportedItem,
    context: &Context,
) -> Outcome {
    let path = target.path.clone();
    let dir = target.backing()?.try_clone().on("a descriptor")?;
    record_files::begin(&dir, item.path.as_os_str().as_encoded_bytes()).on(path.display())?;
    let (plan, before) = if target.state == TargetState::Empty {
        (ImportPlan::all(&source.scan), DestState::Nothing)
    } else {
        let there = scan::scan(&dir, how.threads).on(path.display())?;
        let all = plan::everything(&source.scan, &there);
        let plan = source.sides(&dir, &there).plan(all);
        (with_root(plan, source), DestState::Copy)
    };
    let mut writer = Writer::new(dir.try_clone().on("a descriptor")?, before);
    writer.inodes.contents = contents(source, &dir, how, None)?;
    writer.prepare().on(path.display())?;
    let brought = bring(source, &writer, &plan, how, context, || {
        record_files::make_store(&dir).map_err(|cause| {
            error(
                Code::Io,
                format!("the store of {}: {cause}", path.display()),
            )
        })
    })?;
    record_files::end(&dir).on(path.display())?;
    target.state = TargetState::Tree;
    made.add(&writer, &brought);
    let bytes = write_record(source, target, how, &brought, None)?;
    let info = checkpoint(item, target, tag, false)?;
    made.checkpoint = Some(info.id);
    note_checkpoint(target, &bytes, info.id)
}

/// Returns the contents known before anything is read, if files are hashed.
fn contents(
    source: &ScannedSource,
    tree: &OwnedFd,
    how: &ImportOptions,
    record: Option<&ImportRecord>,
) -> VerbResult<Option<ContentIndex>> {
    if !how.hash {
        return Ok(None);
    }
    let dup = |fd: &OwnedFd| fd.try_clone().on("a descriptor");
    let mut contents = ContentIndex::new(dup(&source.root)?, dup(tree)?);
    if let Some(record) = record {
        contents.learn(None, record);
    }
    for project in &how.with {
        contents.learn(Some(dup(&project.root)?), &project.record);
    }
    Ok(Some(contents))
}

/// Carries out a plan. `ready` is called when only attributes of directories remain.
fn bring(
    source: &ScannedSource,
    writer: &Writer,
    plan: &ImportPlan,
    how: &ImportOptions,
    context: &Context,
    ready: impl FnOnce() -> VerbResult<()>,
) -> VerbResult<ImportResult> {
    let bar = Bar::files(&context.out, "importing");
    let total = plan.others.len() as u64;
    let progress = |done| bar.at(done, total);
    let bringing = ImportRun::new(&source.root, source.stranger.is_some(), writer, &progress);
    bringing.all(plan, how.threads);
    let ready = ready();
    let brought = bringing.finish(how.threads);
    bar.stop();
    ready.map(|()| brought)
}

/// Adds the root to a plan: writing changes it, so its attributes are set at the end.
fn with_root(mut plan: ImportPlan, source: &ScannedSource) -> ImportPlan {
    if !plan.dirs.iter().any(|(path, _)| path.is_empty()) {
        plan.dirs.insert(0, (Vec::new(), source.scan.root));
    }
    plan
}

/// Imports into a tree: only the differences.
fn again(
    item: &Item,
    source: &ScannedSource,
    target: &mut Target,
    how: &ImportOptions,
    (tag, mut kept): (Option<&String>, StoredRecord),
    made: &mut ImportedItem,
    context: &Context,
) -> Outcome {
    let served = target.served_by();
    if let Some(id) = kept.checkpoint.filter(|_| {
        !how.each
            && served
                .as_ref()
                .is_some_and(|(status, name)| is_known(&kept, source, status, name))
    }) {
        (made.checkpoint, made.unchanged) = (Some(id), true);
        return give_tag(target, id, tag);
    }
    loop {
        let there = scan::scan(target.backing()?, how.threads).on(target.path.display())?;
        let suspects = plan::suspects(kept.record.as_ref(), &source.scan, &there);
        if let Some(id) = kept.checkpoint.filter(|_| suspects.is_empty() && !how.each) {
            (made.checkpoint, made.unchanged) = (Some(id), true);
            if let Some((_, name)) = served {
                // It only saves time, so a failure is ignored.
                let _ = kept.write_daemon(target.store()?, &name);
            }
            return give_tag(target, id, tag);
        }
        if !target.is_served() {
            // The tree is scanned again: from now on no change in it is unseen.
            target.client()?;
            continue;
        }
        let plan = source.sides(target.backing()?, &there).plan(suspects);
        let record = kept.record.take();
        let mut brought = ImportResult::default();
        if !plan.is_empty() {
            made.guard = guard(item, target)?;
            brought = replace(source, target, plan, how, record.as_ref(), made, context)?;
        }
        let info = checkpoint(item, target, tag, !how.each)?;
        (made.checkpoint, made.unchanged) = (Some(info.id), info.unchanged);
        let bytes = write_record(source, target, how, &brought, record.as_ref())?;
        note_checkpoint(target, &bytes, info.id)?;
        return give_tag(target, info.id, tag.filter(|_| info.unchanged));
    }
}

/// Carries out a plan on a served tree, through its mount.
fn replace(
    source: &ScannedSource,
    target: &mut Target,
    plan: ImportPlan,
    how: &ImportOptions,
    record: Option<&ImportRecord>,
    made: &mut ImportedItem,
    context: &Context,
) -> Outcome<ImportResult> {
    let (mut writer, staged) = target.writer()?;
    writer.inodes.contents = contents(source, target.backing()?, how, record)?;
    writer.prepare().on(target.path.display())?;
    let plan = with_root(plan, source);
    let brought = bring(source, &writer, &plan, how, context, || Ok(()))?;
    made.add(&writer, &brought);
    match staged.failed() {
        Some(error) => Err(error.into()),
        None => Ok(brought),
    }
}

/// Reports whether the daemon shows that nothing has changed, without a scan of the tree.
fn is_known(kept: &StoredRecord, source: &ScannedSource, status: &Status, daemon: &str) -> bool {
    let as_imported = |record| plan::is_as_imported(record, &source.scan);
    kept.is_known_to(daemon)
        && status.base == kept.checkpoint
        && status.dirty.is_empty()
        && kept.record.as_ref().is_some_and(as_imported)
}

/// Makes a checkpoint of changes in the tree that no checkpoint contains.
fn guard(item: &Item, target: &mut Target) -> Outcome<Option<CheckpointId>> {
    let client = target.client()?;
    // A tree that cannot be compared may have changed.
    if client
        .ask(GetStatus)
        .is_ok_and(|status| status.base.is_some() && status.dirty.is_empty())
    {
        return Ok(None);
    }
    let note = format!("before importing {}", item.name);
    Ok(Some(
        client
            .ask(CheckpointOptions {
                note,
                ..CheckpointOptions::default()
            })?
            .id,
    ))
}

fn give_tag(target: &mut Target, id: CheckpointId, tag: Option<&String>) -> Outcome {
    let Some(tag) = tag else {
        return Ok(());
    };
    let (client, state) = (target.client()?, StateName(id.to_string()));
    let show = ShowCheckpoint {
        state: state.clone(),
    };
    if client.ask(show)?.tags.contains(tag) {
        return Ok(());
    }
    let retag = Retag {
        add: vec![tag.clone()],
        ..Retag::default()
    };
    Ok(client.ask(ChangeTags { state, retag }).map(drop)?)
}

/// Stores the record of the import; without it the next import compares everything.
fn write_record(
    source: &ScannedSource,
    target: &Target,
    how: &ImportOptions,
    brought: &ImportResult,
    old: Option<&ImportRecord>,
) -> VerbResult<Vec<u8>> {
    let there = scan::scan(target.backing()?, how.threads).on(target.path.display())?;
    let record = plan::record(&source.scan, &there, source.begun, brought, old);
    record_files::write(target.store()?, &record).on("the record of the import")
}

fn note_checkpoint(target: &Target, bytes: &[u8], id: CheckpointId) -> Outcome {
    Ok(
        record_files::write_checkpoint(target.store()?, bytes, id)
            .on("the record of the import")?,
    )
}

fn checkpoint(
    item: &Item,
    target: &mut Target,
    tag: Option<&String>,
    if_changed: bool,
) -> Outcome<CheckpointInfo> {
    let mut note = match &item.snapshot {
        Some(snapshot) => {
            let mut note = snapshot
                .description
                .clone()
                .unwrap_or_else(|| format!("imported {}", snapshot.name));
            note.push_str(&format!("\n\nSnapshot: {}", snapshot.name));
            note
        }
        None => format!(
            "imported {}\n\nImported: {}",
            item.name,
            item.path.display()
        ),
    };
    if let Some(date) = item
        .snapshot
        .as_ref()
        .and_then(|snapshot| snapshot.date.as_ref())
    {
        note.push_str(&format!("\nDate: {date}"));
    }
    if note.len() > 4096 {
        return Err(Failure::Verb(error(
            Code::BadNote,
            format!("the note for {} is too long", item.name),
        )));
    }
    let tags = tag.into_iter().cloned().collect();
    let of_ns = item.snapshot.as_ref().and_then(Snapshot::made_ns);
    Ok(target.client()?.ask(CheckpointOptions {
        note,
        tags,
        if_changed,
        of_ns,
        ..CheckpointOptions::default()
    })?)
}

/// Returns the result of a dry run: the numbers of inodes to make and paths to remove, in the tree,
/// or in its state after the item `before`.
pub fn look(
    item: &Item,
    before: Option<&Item>,
    target: Option<&Target>,
    how: &ImportOptions,
) -> VerbResult<ImportedItem> {
    let source = ScannedSource::read(item, how.threads)?;
    let mut made = ImportedItem {
        count: source.scan.count(),
        left_out: source.scan.left.clone(),
        ..ImportedItem::new(item)
    };
    let before = before
        .map(|before| ScannedSource::read(before, how.threads))
        .transpose()?;
    let plan = match (
        before,
        target.filter(|target| target.state != TargetState::Empty),
    ) {
        (Some(before), _) => source
            .sides(&before.root, &before.scan)
            .plan(plan::everything(&source.scan, &before.scan)),
        (None, None) => ImportPlan::all(&source.scan),
        (None, Some(target)) => {
            let backing = target.backing()?;
            let there = scan::scan(backing, how.threads).on(target.path.display())?;
            let record = match target.state {
                TargetState::Tree => StoredRecord::read(target.store()?).record,
                _ => None,
            };
            let suspects = plan::suspects(record.as_ref(), &source.scan, &there);
            source.sides(backing, &there).plan(suspects)
        }
    };
    made.made = (plan.dirs.len() + plan.others.len()) as u64;
    made.removed = plan.removed.len() as u64;
    made.unchanged = plan.is_empty();
    Ok(made)
}
