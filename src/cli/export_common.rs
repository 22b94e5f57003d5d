//! Common parts of `export`, `fork` and `import`: the destination, and the connections from which
//! an export is read.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::launch;
use ckptfs_api::display::count;
use ckptfs_api::{
    CheckpointId, Client, Code, ExportAsk, ExportPart, Refused, StateName, TreePath, VerbError,
    VerbResult,
};
use ckptfs_sys::{self as sys, Errno, SysResult};
use ckptfs_transfer::write::Writer;
use ckptfs_transfer::{PartSource, Sink, hand_over};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Failure, Outcome, error, hinted, io_error};
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::output::{Out, hand_on};
use ckptfs_ui::progress::Bar;
use ckptfs_ui::time;
use ckptfs_ui::tree_path::normal;

/// Threads that write files. With one in the daemon for each, two cores are busy.
const THREADS: usize = 2;
/// Limit of the failed paths that are printed one by one.
const REFUSED_TOLD_MAX: usize = 20;

/// A connection from which one export is read.
struct ExportFeed {
    client: Client,
    run: u64,
}

impl PartSource for ExportFeed {
    fn next(&mut self, done: Vec<u64>) -> VerbResult<(ExportPart, Vec<OwnedFd>)> {
        self.client.ask_with_files(ExportAsk::Next {
            run: self.run,
            done,
        })
    }
}

/// A connection from which one export is read in order. The daemon prepares the next part while one
/// is copied.
struct OrderedExportFeed(ExportFeed);

impl PartSource for OrderedExportFeed {
    fn next(&mut self, done: Vec<u64>) -> VerbResult<(ExportPart, Vec<OwnedFd>)> {
        self.0.client.ask_with_files(ExportAsk::Ahead {
            run: self.0.run,
            done,
        })
    }
}

/// An export in progress.
pub struct ExportStream {
    /// The first part: the exported checkpoint, and the one it is compared with.
    pub part: ExportPart,
    client: Client,
}

impl ExportStream {
    /// Starts an export; with `from`, of the difference from that checkpoint.
    ///
    /// # Errors
    /// `unknown-checkpoint`.
    pub fn begin(
        served: ServedTree,
        id: &str,
        from: Option<CheckpointId>,
    ) -> VerbResult<ExportStream> {
        let ServedTree { mut client, .. } = served;
        let (part, _) = client.ask_with_files(ExportAsk::Begin {
            state: StateName(id.to_owned()),
            from,
        })?;
        Ok(ExportStream { part, client })
    }

    /// Starts an export of a whole checkpoint in the order of names. `since`: see
    /// [`ExportAsk::Whole`].
    ///
    /// # Errors
    /// `unknown-checkpoint`.
    pub fn whole(
        mut client: Client,
        checkpoint: CheckpointId,
        since: Option<CheckpointId>,
    ) -> VerbResult<ExportStream> {
        let state = StateName(checkpoint.to_string());
        let (part, _) = client.ask_with_files(ExportAsk::Whole { state, since })?;
        Ok(ExportStream { part, client })
    }

    /// Returns a feed in order, prepared ahead of the copy.
    pub fn ahead(self) -> impl PartSource {
        OrderedExportFeed(ExportFeed {
            run: self.part.run,
            client: self.client,
        })
    }

    /// Passes everything to a sink.
    ///
    /// # Errors
    /// Those of the daemon.
    pub fn hand_over<S: Sink>(
        self,
        sink: &S,
        threads: usize,
        bar: &Bar,
    ) -> VerbResult<Vec<Refused>> {
        let run = self.part.run;
        let more: Vec<Client> = (1..threads).map_while(|_| self.client.again()).collect();
        let clients = std::iter::once(self.client).chain(more);
        let feeds = clients
            .map(|client| Box::new(ExportFeed { client, run }) as Box<dyn PartSource>)
            .collect();
        // The export ends with the connection that began it.
        hand_over(feeds, sink, &|done, total| bar.at(done, total.unwrap_or(0)))
    }
}

/// Returns the number of threads of a copy: one for a difference, which is sent in order.
pub fn threads(from: Option<CheckpointId>) -> usize {
    if from.is_some() { 1 } else { THREADS }
}

/// Returns the destination of a copy as an absolute path.
pub fn destination(cwd: &Path, dest: &Path) -> PathBuf {
    normal(&cwd.join(dest))
}

/// Opens and locks a destination, and creates it if missing (but not its parents).
///
/// # Errors
/// A message for the user; `busy` if another copy is being made there.
pub fn open_destination(dest: &Path) -> VerbResult<OwnedFd> {
    if let Err(cause) = std::fs::DirBuilder::new().mode(0o700).create(dest)
        && cause.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(io_error(dest.display(), cause));
    }
    let dir = sys::open_root(dest).map_err(|cause| match cause {
        Errno::ENOTDIR => error(
            Code::NotADirectory,
            format!("{} is not a directory", dest.display()),
        ),
        cause => unmounted(dest, cause),
    })?;
    let lock = File::from(dir.try_clone().on(dest.display())?);
    match sys::flock_exclusive(&lock) {
        Ok(false) => Err(hinted(
            Code::Busy,
            format!("another export is writing to {}", dest.display()),
            "wait until it has finished",
        )),
        // A filesystem without locks is accepted.
        _ => Ok(dir),
    }
}

/// Returns the result of a call below a path.
///
/// # Errors
/// `not-mounted` if the mount there has ended; `io` otherwise.
pub fn opened<T>(result: SysResult<T>, path: &Path) -> VerbResult<T> {
    result.map_err(|errno| unmounted(path, errno))
}

fn unmounted(path: &Path, errno: Errno) -> VerbError {
    match errno {
        Errno::ESTALE | Errno::ENOTCONN => error(
            Code::NotMounted,
            format!("{} was unmounted meanwhile", path.display()),
        ),
        errno => io_error(path.display(), errno),
    }
}

/// Reports whether a destination is empty.
///
/// # Errors
/// Those of reading it.
pub fn is_empty(dest: &Path, dir: &OwnedFd) -> VerbResult<bool> {
    sys::list_dir(dir)
        .map(|names| names.is_empty())
        .on(dest.display())
}

/// Result of a copy, for `--json`.
#[derive(Debug, Serialize)]
pub struct Copied {
    /// Inodes that were created, or whose attributes were changed.
    pub made: u64,
    /// Files that share their data with the store.
    pub cloned: u64,
    /// Files whose data was copied.
    pub copied: u64,
    /// Paths that were removed.
    pub removed: u64,
    /// Paths that could not be copied.
    pub refused: Vec<RefusedPath>,
    /// Paths that were skipped on request, because a tier has dropped their content.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<TreePath>,
    /// Inodes whose owner could not be set.
    pub owners_lost: u64,
    /// Extended attributes that could not be set.
    pub xattrs_lost: u64,
    /// The content of a refused path was dropped.
    #[serde(skip)]
    misses_dropped: bool,
}

/// Hint for dropped content.
const DROPPED_HINT: &str =
    "a retention rule has dropped the content of some files; --without-dropped leaves them out";

/// Separates the refused paths whose content a tier has dropped, if `leave_out` is set.
pub fn without_dropped(refused: Vec<Refused>, leave_out: bool) -> (Vec<Refused>, Vec<TreePath>) {
    let (dropped, refused): (Vec<Refused>, Vec<Refused>) = refused
        .into_iter()
        .partition(|one| leave_out && one.errno == Errno::ENODATA.0);
    let mut paths: Vec<TreePath> = dropped.into_iter().map(|one| one.path).collect();
    paths.sort();
    (refused, paths)
}

/// Warns about skipped paths.
pub fn warn_dropped(out: &Out, dropped: &[TreePath]) {
    for path in dropped.iter().take(REFUSED_TOLD_MAX) {
        out.warn(&format!(
            "{} is left out: a retention rule has dropped its content",
            String::from_utf8_lossy(&path.0)
        ));
    }
    if dropped.len() > REFUSED_TOLD_MAX {
        out.warn(&format!("and {} more", dropped.len() - REFUSED_TOLD_MAX));
    }
}

/// Warns about the owners and extended attributes that could not be set.
pub fn warn_lost(out: &Out, (owners, xattrs): (u64, u64)) {
    if owners > 0 {
        out.warn(&format!(
            "the owner of {} could not be kept: only root can set it",
            count(owners, "file")
        ));
    }
    if xattrs > 0 {
        out.warn(&format!(
            "{} could not be set there",
            count(xattrs, "extended attribute")
        ));
    }
}

/// A path that could not be copied, for `--json`.
#[derive(Debug, Serialize)]
pub struct RefusedPath {
    path: TreePath,
    error: String,
}

impl Copied {
    /// Returns the result of a writer. `dropped`: see [`without_dropped`].
    pub fn new(writer: &Writer, refused: &[Refused], dropped: Vec<TreePath>) -> Copied {
        let get = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let misses_dropped = refused.iter().any(|one| one.errno == Errno::ENODATA.0);
        let refused = refused.iter().map(|refused| RefusedPath {
            path: refused.path.clone(),
            error: Errno(refused.errno).to_string(),
        });
        Copied {
            made: get(&writer.made),
            cloned: get(&writer.inodes.cloned),
            copied: get(&writer.inodes.copied),
            removed: get(&writer.removed),
            refused: refused.collect(),
            dropped,
            owners_lost: get(&writer.inodes.owners_lost),
            xattrs_lost: get(&writer.inodes.xattrs_lost),
            misses_dropped,
        }
    }

    /// Formats a summary.
    pub fn how(&self, duration_us: u64) -> String {
        let files = match (self.cloned, self.copied) {
            (cloned, 0) => format!("{} reflinked", count(cloned, "file")),
            (0, copied) => format!("{} copied", count(copied, "file")),
            (cloned, copied) => format!("{} reflinked, {copied} copied", count(cloned, "file")),
        };
        format!(
            "{} made, {files}, {} removed, in {}",
            self.made,
            self.removed,
            time::duration(duration_us)
        )
    }

    /// Prints the warnings.
    ///
    /// # Errors
    /// `incomplete` if a path could not be copied.
    pub fn report(&self, out: &Out, hint: &str) -> Outcome {
        warn_lost(out, (self.owners_lost, self.xattrs_lost));
        warn_dropped(out, &self.dropped);
        let hint = if self.misses_dropped {
            DROPPED_HINT
        } else {
            hint
        };
        for refused in self.refused.iter().take(REFUSED_TOLD_MAX) {
            out.warn(&format!(
                "{}: {}",
                String::from_utf8_lossy(&refused.path.0),
                refused.error
            ));
        }
        match self.refused.as_slice() {
            [] => Ok(()),
            all => Err(Failure::Verb(hinted(
                Code::Incomplete,
                format!("{} could not be copied", count(all.len(), "path")),
                hint,
            ))),
        }
    }
}

/// Returns the error for a destination that is not empty.
pub fn not_empty(dest: &Path, hint: &str) -> VerbError {
    hinted(
        Code::NotEmpty,
        format!(
            "{} is not empty, and is not an export of this tree",
            dest.display()
        ),
        hint,
    )
}

/// Returns the tree of the working directory.
///
/// # Errors
/// `not-mounted`.
pub fn served(context: &Context) -> VerbResult<ServedTree> {
    ckptfs_ui::locate::served(context.dir())
}

/// The output of a failed verb on stderr with `--json`.
#[derive(Deserialize)]
struct JsonError {
    error: VerbError,
}

/// Runs a verb of this program on a directory.
///
/// # Errors
/// Those of the verb; [`Failure::No`] if it failed without one, after its stderr was printed.
pub fn own_verb(verb: &str, dir: &Path, options: &[String], variables: &[(&str, &str)]) -> Outcome {
    let output = Command::new(launch::program())
        .args(["--json", verb])
        .arg(dir)
        .args(options)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output();
    let output = output.on(format_args!("ckptfs {verb}"))?;
    if output.status.success() {
        return Ok(());
    }
    let last = output
        .stderr
        .trim_ascii_end()
        .rsplit(|byte| *byte == b'\n')
        .next();
    if let Some(Ok(JsonError { error })) = last.map(serde_json::from_slice) {
        return Err(Failure::Verb(error));
    }
    hand_on(&output.stderr);
    Err(Failure::No)
}
