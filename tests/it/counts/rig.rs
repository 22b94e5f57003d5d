//! A mount whose requests are counted without making requests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::common::mount::minor_of;
use crate::common::wait::{same, wait_until};
use crate::common::{Image, Mount, MountOpts, Variant};
use ckptfs_api::{
    CheckpointOptions, Client, GetStats, RestoreOptions, SOCKET_NAME, STORE_NAME, StateName, Stats,
};

/// Time limit of such a mount: each call of its daemon is traced, on a machine that may be busy.
const LIMIT: Duration = Duration::from_secs(1200);

/// Numbers of requests by kind, or of calls by system call.
pub type Counts = BTreeMap<String, u64>;

/// A directory mounted elsewhere: clients reach its daemon through the backing directory, which
/// makes no request.
pub struct CountedMount {
    client: Client,
    mount: Mount,
    backing: PathBuf,
    _image: Image,
}

impl CountedMount {
    /// Mounts a directory filled by `fill`.
    pub fn start(variant: Variant, fill: impl FnOnce(&Path)) -> CountedMount {
        CountedMount::start_with(variant, "--xattrs=all", fill)
    }

    /// Like [`CountedMount::start`], with an additional argument.
    pub fn start_with(variant: Variant, argument: &str, fill: impl FnOnce(&Path)) -> CountedMount {
        let image = Image::of(variant.fs);
        let backing = image.dir("project");
        fill(&backing);
        // The sealer works ahead in the background, and its calls would be counted with unrelated
        // operations. A mark of the tripwire would be a checkpoint missing from the baseline; files
        // made within this minute and shown by no checkpoint may be removed without one.
        let opts = MountOpts {
            mountpoint: Some(image.dir("mounted")),
            limit: LIMIT,
            ..MountOpts::new(variant.io)
                .arg("--seal=off")
                .arg("--tripwire=25/60s")
                .arg(argument)
        };
        let mount = Mount::start(&backing, &opts);
        let client = connect(&backing);
        let mut counted = CountedMount {
            client,
            mount,
            backing,
            _image: image,
        };
        assert_eq!(
            counted.stats().io,
            variant.io.name(),
            "the mount uses another I/O path than requested"
        );
        counted
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Returns the view of checkpoint `id`.
    pub fn view(&self, id: u64) -> PathBuf {
        self.mount.view(id)
    }

    pub fn pid(&self) -> u32 {
        self.mount.pid()
    }

    /// Remounts, which empties the kernel's caches.
    pub fn remount(&mut self) {
        self.mount.umount();
        self.mount.remount();
        self.client = connect(&self.backing);
    }

    /// Makes a checkpoint and returns its number.
    pub fn checkpoint(&mut self) -> u64 {
        self.client
            .ask(CheckpointOptions::default())
            .expect("a checkpoint")
            .id
            .0
    }

    /// Syncs the backing filesystem.
    pub fn sync(&self) {
        let backing = fs::File::open(&self.backing).expect("the directory exists");
        rustix::fs::syncfs(backing).expect("syncfs");
    }

    /// Restores the tree to checkpoint `id`.
    pub fn restore(&mut self, id: u64) {
        let options = RestoreOptions {
            to: StateName(id.to_string()),
            paths: Vec::new(),
            dry_run: false,
            times: None,
        };
        self.client.ask(options).expect("a restore");
    }

    /// Returns the daemon's statistics once every request is answered, including requests without a
    /// waiting caller such as RELEASE.
    pub fn stats(&mut self) -> Stats {
        self.settle();
        self.client.ask(GetStats).expect("stats")
    }

    /// Waits until every request is answered.
    pub fn settle(&self) {
        let minor = minor_of(self.path()).expect("it is mounted");
        let waiting = PathBuf::from(format!("/sys/fs/fuse/connections/{minor}/waiting"));
        wait_until("every request is answered", || {
            same(
                fs::read_to_string(&waiting).expect("fusectl is mounted"),
                "0\n",
            )
        });
    }

    /// Waits until the daemon is idle and the background work of a checkpoint or restore is done.
    pub fn rest(&self) {
        let used = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()))
                .expect("the daemon is alive");
            let ticks = |field: usize| {
                stat.rsplit_once(") ")
                    .and_then(|(_, rest)| rest.split(' ').nth(field - 3))
                    .map(str::to_owned)
            };
            (ticks(14), ticks(15))
        };
        wait_until("the daemon rests", || {
            let before = used();
            thread::sleep(Duration::from_secs(1));
            same(used(), before)
        });
    }

    /// Returns the requests of `work`, except FORGET, which depends on memory pressure, and STATFS,
    /// which any program that inspects all mounts of the machine sends.
    pub fn requests(&mut self, work: impl FnOnce(&Path)) -> Counts {
        let before = self.stats().requests;
        let path = self.path().to_owned();
        work(&path);
        let mut counts = self.stats().requests;
        counts.retain(|kind, count| {
            *count -= before.get(kind).copied().unwrap_or(0);
            *count > 0 && !["forget", "statfs"].contains(&kind.as_str())
        });
        counts
    }
}

fn connect(backing: &Path) -> Client {
    // The path of a socket is limited to 108 bytes; a path through a descriptor always fits.
    let store = fs::File::open(backing.join(STORE_NAME)).expect("the store exists");
    let client = Client::connect(&store);
    client.unwrap_or_else(|error| panic!("the daemon does not listen on {SOCKET_NAME}: {error}"))
}
