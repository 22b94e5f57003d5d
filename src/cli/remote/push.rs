//! `ckptfs push`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::export_common::ExportStream;
use super::super::remotes::names;
use super::super::size;
use super::{auto, oci, repository};
use ckptfs_api::display::count as plural;
use ckptfs_api::{
    CheckpointId, CheckpointInfo, Code, ListCheckpoints, NotePush, PinCheckpoint, ShowCheckpoint,
    StateName, VerbResult, microseconds, push_pin,
};
use ckptfs_remote::restic::push::PushSource;
use ckptfs_remote::restic::{OpenPurpose, PushedSnapshot, Remote, guarded};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome, error, hinted};
use ckptfs_ui::locate::{self, ServedTree};
use ckptfs_ui::past::StateTree;
use ckptfs_ui::progress::Bar;
use ckptfs_ui::time;

/// Send checkpoints to a remote: a repository in restic's format, or an image in a registry
///
/// Files that have not changed since the checkpoint pushed last are not read again. The same
/// command continues an interrupted push.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The name of a remote (ckptfs remote add), or oci://HOST/NAME:TAG
    #[arg(value_name = "REMOTE")]
    pub(super) remote: String,
    /// Checkpoints: numbers or tags; default: all that the remote lacks (of an image: `latest`)
    #[arg(value_name = "ID")]
    pub(super) ids: Vec<String>,
    /// Only checkpoints after this one
    #[arg(long, value_name = "ID", conflicts_with = "ids")]
    pub(super) since: Option<String>,
    /// Continue until the tree is unmounted: push each new checkpoint, or with TIME the newest one
    /// at this interval
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "0s",
        value_parser = time::span, conflicts_with_all = ["ids", "dry_run"])]
    pub(super) auto: Option<Duration>,
    /// Only show what would be sent
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) registry: oci::Options,
}

/// A pushed checkpoint, in the output of `--json`.
#[derive(Serialize)]
struct Sent {
    checkpoint: CheckpointId,
    snapshot: Option<String>,
    /// The pushed checkpoint whose files were not read again.
    from: Option<CheckpointId>,
    entries: u64,
    files_read: u64,
    files_kept: u64,
    bytes_sent: u64,
    duration_us: u64,
}

#[derive(Serialize)]
struct Answer {
    remote: String,
    pushed: Vec<Sent>,
    dry_run: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    if oci::is_place(&args.remote) {
        return oci::push(&args, context);
    }
    match args.auto {
        Some(every) => auto::follow(&args, every, context),
        None => push_noted(&args, &args.ids, context),
    }
}

/// Like [`push`]; also reports the result to the daemon, for `status`.
pub(super) fn push_noted(args: &Args, ids: &[String], context: &mut Context) -> Outcome {
    let pushed = guarded(|| push(args, ids, context));
    let error = match &pushed {
        Ok(()) => None,
        Err(Failure::Verb(error)) => Some(error.message.clone()),
        Err(_) => return pushed,
    };
    let is_known = || names().is_ok_and(|names| names.get(&args.remote).is_ok());
    if !args.dry_run
        && is_known()
        && let Ok(mut served) = locate::served(context.dir())
    {
        let remote = args.remote.clone();
        // A daemon of an older version does not support this.
        let _ = served.client.ask(NotePush { remote, error });
    }
    pushed
}

/// Pushes once: `ids`, or all checkpoints that the remote lacks.
fn push(args: &Args, ids: &[String], context: &mut Context) -> Outcome {
    let names = names()?;
    let named = names.get(&args.remote)?;
    let mut served = locate::served(context.dir())?;
    let Some(store) = repository::store_of(&mut served)? else {
        return Err(hinted(
            Code::UnknownCheckpoint,
            "there is no checkpoint to send",
            "ckptfs checkpoint makes one",
        )
        .into());
    };
    let mut remote = repository::open(named, OpenPurpose::Verb)?;
    let mut pushed = remote.pushed(Some(&store))?;
    let kept = served.client.ask(ListCheckpoints)?;
    let wanted = wanted(args, ids, &mut served, &kept, &pushed)?;
    let mut answer = Answer {
        remote: args.remote.clone(),
        pushed: Vec::new(),
        dry_run: args.dry_run,
    };
    if args.dry_run {
        for one in &wanted {
            tell_planned(one, context)?;
            answer.pushed.push(Sent::planned(one.id));
        }
    } else if !wanted.is_empty() {
        for one in &wanted {
            let push = Push {
                store: &store,
                one,
                parent: parent_of(one, &pushed, &kept),
            };
            let (again, is_there, sent) = push.run(remote, &served, context)?;
            remote = again;
            follow(&args.remote, one, &mut served)?;
            tell(&sent, context)?;
            pushed.push(is_there);
            answer.pushed.push(sent);
        }
    }
    let out = &mut context.out;
    if out.json {
        return Ok(out.json(&answer)?);
    }
    if wanted.is_empty() {
        out.text_line(&format!("{} has everything already", args.remote))?;
    }
    Ok(())
}

/// Returns the checkpoints to push, the oldest first.
fn wanted(
    args: &Args,
    ids: &[String],
    served: &mut ServedTree,
    kept: &[CheckpointInfo],
    pushed: &[PushedSnapshot],
) -> VerbResult<Vec<CheckpointInfo>> {
    let mut show = |id: &String| {
        served.client.ask(ShowCheckpoint {
            state: StateName(id.clone()),
        })
    };
    let since = args.since.as_ref().map(&mut show).transpose()?;
    let mut wanted = if ids.is_empty() {
        kept.to_vec()
    } else {
        ids.iter().map(show).collect::<VerbResult<_>>()?
    };
    wanted.retain(|one| {
        since.as_ref().is_none_or(|since| one.id > since.id)
            && !pushed.iter().any(|known| is_of(known, one))
    });
    wanted.sort_by_key(|one| one.id);
    wanted.dedup_by_key(|one| one.id);
    Ok(wanted)
}

/// Reports whether a snapshot is that of a checkpoint: number and time are equal. The numbers alone
/// may be equal in a copy of a store.
pub(super) fn is_of(pushed: &PushedSnapshot, checkpoint: &CheckpointInfo) -> bool {
    pushed.checkpoint == checkpoint.id
        && created(checkpoint).is_ok_and(|created| created == pushed.created)
}

/// Returns the pushed checkpoint to compare a new one with: the newest before it that still exists
/// here.
fn parent_of<'a>(
    one: &CheckpointInfo,
    pushed: &'a [PushedSnapshot],
    kept: &[CheckpointInfo],
) -> Option<&'a PushedSnapshot> {
    let is_kept = |known: &PushedSnapshot| kept.iter().any(|kept| is_of(known, kept));
    pushed
        .iter()
        .filter(|known| known.checkpoint < one.id && is_kept(known))
        .max_by_key(|known| known.checkpoint)
}

fn created(checkpoint: &CheckpointInfo) -> VerbResult<jiff::Timestamp> {
    checkpoint
        .created
        .parse()
        .map_err(|_| error(Code::Protocol, "the daemon's answer has no time"))
}

/// The push of one checkpoint.
struct Push<'a> {
    store: &'a str,
    one: &'a CheckpointInfo,
    parent: Option<&'a PushedSnapshot>,
}

impl Push<'_> {
    fn run(
        &self,
        remote: Remote,
        served: &ServedTree,
        context: &Context,
    ) -> VerbResult<(Remote, PushedSnapshot, Sent)> {
        let started = Instant::now();
        let client = served
            .client
            .again()
            .ok_or_else(|| error(Code::DaemonLost, "the daemon is gone"))?;
        let since = self.parent.map(|parent| parent.checkpoint);
        let begun = ExportStream::whole(client, self.one.id, since)?;
        // If the parent was deleted since, every file is sent and read.
        let parent = self.parent.filter(|_| begun.part.from == since);
        let view = StateTree::at(served, Some(self.one))?;
        let bar = Bar::files(&context.out, "pushing");
        let root = served.root.file_name().map_or_else(
            || "tree".to_owned(),
            |name| name.to_string_lossy().into_owned(),
        );
        let what = PushSource {
            store: self.store.to_owned(),
            checkpoint: self.one.id,
            tags: self.one.tags.clone(),
            note: self.one.note.clone(),
            created: created(self.one)?,
            root,
        };
        let done = remote.push(
            &what,
            parent,
            begun.ahead(),
            Arc::new(move |path| view.open_file(path)),
            &|done| bar.at(done, 0),
        );
        bar.stop();
        let (remote, pushed, done) = done?;
        let sent = Sent {
            snapshot: Some(pushed.snapshot.clone()),
            from: parent.map(|parent| parent.checkpoint),
            entries: done.entries,
            files_read: done.read,
            files_kept: done.kept,
            bytes_sent: done.sent,
            duration_us: microseconds(started.elapsed()),
            ..Sent::planned(self.one.id)
        };
        if done.sockets > 0 {
            context.out.warn(&format!(
                "{} of checkpoint {} restic will not make again",
                plural(done.sockets, "socket"),
                self.one.id
            ));
        }
        Ok((remote, pushed, sent))
    }
}

impl Sent {
    fn planned(checkpoint: CheckpointId) -> Sent {
        Sent {
            checkpoint,
            snapshot: None,
            from: None,
            entries: 0,
            files_read: 0,
            files_kept: 0,
            bytes_sent: 0,
            duration_us: 0,
        }
    }
}

fn tell_planned(one: &CheckpointInfo, context: &mut Context) -> Outcome {
    let out = &mut context.out;
    if !out.json {
        out.text_line(&format!("checkpoint {} would be sent", one.id))?;
    }
    Ok(())
}

fn tell(sent: &Sent, context: &mut Context) -> Outcome {
    let out = &mut context.out;
    if out.json {
        return Ok(());
    }
    let snapshot = sent.snapshot.as_deref().unwrap_or_default();
    let kept = match sent.files_kept {
        0 => String::new(),
        kept => format!(", {kept} unchanged"),
    };
    out.text_line(&format!(
        "checkpoint {} is snapshot {}: {} read{kept}, {} sent, in {}",
        sent.checkpoint,
        snapshot.get(..8).unwrap_or(snapshot),
        plural(sent.files_read, "file"),
        size::human(sent.bytes_sent),
        time::duration(sent.duration_us)
    ))?;
    Ok(out.flush()?)
}

/// Pins the newest checkpoint that a remote has, because the next push starts from it, and unpins
/// the one before.
fn follow(remote: &str, sent: &CheckpointInfo, served: &mut ServedTree) -> VerbResult<()> {
    let reason = push_pin(remote);
    let kept = served.client.ask(ListCheckpoints)?;
    let mut pin = |id: CheckpointId, reason: Option<String>| {
        let state = StateName(id.to_string());
        served.client.ask(PinCheckpoint { state, reason }).map(drop)
    };
    let is_ours = |one: &&CheckpointInfo| one.pinned.as_deref() == Some(reason.as_str());
    let before: Vec<CheckpointId> = kept.iter().filter(is_ours).map(|one| one.id).collect();
    if before.iter().any(|before| *before >= sent.id) {
        return Ok(());
    }
    // The new pin is set before the old one is removed. The checkpoint may have been deleted since.
    match kept.iter().find(|one| one.id == sent.id) {
        Some(there) if there.pinned.is_none() => pin(sent.id, Some(reason.clone()))?,
        Some(_) => {}
        None => return Ok(()),
    }
    before.into_iter().try_for_each(|id| pin(id, None))
}
