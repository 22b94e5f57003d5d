//! Power cuts: the disk is copied at one instant, and the copy is mounted.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::control::said;
use super::frees::findings;
use super::observe::{compare, observe};
use super::world::ModelRun;
use crate::common::{Fs, Mount};
use crate::crash::disk::{ImageDisk, ImageHost};
use ckptfs_api::{Client, Query};

const DISK_BYTES: u64 = 512 << 20;
/// Age from which a checkpoint is durable without a sync.
const SETTLED: Duration = Duration::from_secs(10);

/// A disk for runs, on a filesystem with reflink.
pub struct CutDisk {
    // Dropped before its host.
    disk: ImageDisk,
    host: ImageHost,
    fs: Fs,
    next: AtomicU64,
}

impl CutDisk {
    pub fn new(fs: Fs) -> CutDisk {
        let host = ImageHost::in_memory();
        let image = host.format_sized(fs, "disk.img", DISK_BYTES);
        CutDisk {
            disk: host.mount(fs, &image),
            host,
            fs,
            next: AtomicU64::new(1),
        }
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.disk.path()
    }

    /// Mounts the state that a power cut would leave.
    fn cut(&self) -> ImageDisk {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let copy = self.host.file(&format!("cut-{number}.img"));
        self.disk.freeze(&copy);
        let disk = self.host.mount(self.fs, &copy);
        // Exists until its loop device is detached.
        std::fs::remove_file(&copy).expect("it was created just now");
        disk
    }
}

impl ModelRun {
    /// Checks the state that a power cut would leave now. The run itself continues unaffected.
    pub(super) fn power_cut(&mut self) -> Result<(), String> {
        let (Some(disk), Some(mounted)) = (self.disk.clone(), &self.mounted) else {
            return Ok(());
        };
        let opts = mounted.mount.opts.clone();
        let name = PathBuf::from(self.root.file_name().expect("it has a name"));
        self.counts.cuts += 1;
        let copy = disk.cut();
        let dir = copy.path().join(name);
        let looked = {
            let _mount = Mount::start(&dir, &opts);
            self.look_after_cut(&dir)
        };
        let point = copy.path().to_owned();
        drop(copy);
        let _ = std::fs::remove_dir(point);
        looked.map_err(|problem| format!("after a cut {problem}"))
    }

    fn look_after_cut(&mut self, dir: &Path) -> Result<(), String> {
        let store = File::open(dir.join(".ckptfs"))
            .map_err(|error| format!("the store cannot be opened: {error}"))?;
        let mut client = Client::connect(&store)
            .map_err(|error| format!("the daemon cannot be reached: {error}"))?;
        let listed = client
            .ask(Query::default())
            .map_err(|error| said("log", &error))?;
        let hidden = client
            .ask(Query {
                hidden: true,
                ..Query::default()
            })
            .map_err(|error| said("log --deleted", &error))?;
        let named: BTreeSet<u64> = listed
            .iter()
            .chain(&hidden)
            .filter(|info| info.tags.iter().any(|tag| tag.starts_with("!incomplete")))
            .map(|info| info.id.0)
            .collect();
        for snap in &self.snaps {
            let promised = snap.synced || snap.made.elapsed() > SETTLED;
            let there = listed.iter().any(|info| info.id.0 == snap.id);
            match (there, named.contains(&snap.id)) {
                (false, _) if promised => return Err(format!("checkpoint {} is gone", snap.id)),
                (true, true) if promised => {
                    return Err(format!("checkpoint {} is reported as incomplete", snap.id));
                }
                (true, false) => {}
                _ => continue,
            }
            let what = format!("the view of {}", snap.id);
            let sight = observe(&dir.join(".snapshots").join(snap.id.to_string()))
                .map_err(|problem| format!("{what}: {problem}"))?;
            // Times not yet known remain unknown.
            let mut times = self.times.clone();
            compare(&what, &snap.tree, &sight, &mut times, &BTreeSet::new())?;
            self.counts.views_after_cuts += 1;
        }
        let unnamed = findings(&mut client, false)?
            .into_iter()
            .find(|(_, by)| by.is_empty() || by.iter().any(|id| !named.contains(id)));
        unnamed.map_or(Ok(()), |(told, by)| {
            Err(format!(
                "verify finds {told} {by:?}, but incomplete are {named:?}"
            ))
        })
    }
}
