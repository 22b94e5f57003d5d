//! A watcher, and helpers of these tests.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

pub use crate::common::command::{has, sh};
use crate::common::tree::NodeKind;
pub use crate::common::tree::{names, tree};

/// Time limit for an expected event.
pub const EVENT_SECONDS: u64 = crate::common::wait::WAIT_SECONDS;

/// Events for changes, without opens and reads.
pub const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

/// An inotify instance and its events so far, as lines such as `CREATE,ISDIR d/new` with paths
/// relative to the root.
pub struct Watcher {
    inotify: OwnedFd,
    root: PathBuf,
    places: HashMap<i32, PathBuf>,
    pub said: Vec<String>,
}

impl Watcher {
    /// Creates a watcher without watches.
    pub fn new(root: &Path) -> Watcher {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("inotify");
        Watcher {
            inotify,
            root: root.to_owned(),
            places: HashMap::new(),
            said: Vec::new(),
        }
    }

    /// Watches the root and all directories below.
    pub fn all_below(root: &Path) -> Watcher {
        let mut watcher = Watcher::new(root);
        watcher.add("", CHANGES);
        for path in tree(root)
            .iter()
            .filter(|(path, node)| node.kind == NodeKind::Dir && !path.as_os_str().is_empty())
            .map(|(path, _)| path)
        {
            watcher.add(path.to_str().expect("the tests' names are UTF-8"), CHANGES);
        }
        watcher
    }

    /// Watches a path relative to the root.
    pub fn add(&mut self, path: &str, events: WatchFlags) {
        let place = self.root.join(path);
        let wd = inotify::add_watch(&self.inotify, &place, events | WatchFlags::DONT_FOLLOW);
        self.places.insert(
            wd.unwrap_or_else(|error| panic!("{}: {error}", place.display())),
            PathBuf::from(path),
        );
    }

    /// Reads the pending events.
    pub fn take(&mut self) {
        let mut buffer = vec![MaybeUninit::uninit(); 1 << 16];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let place = self.places.get(&event.wd()).cloned().unwrap_or_default();
                    let path = event.file_name().map_or(place.clone(), |name| {
                        place.join(OsStr::from_bytes(name.to_bytes()))
                    });
                    self.said
                        .push(format!("{} {}", words(event.events()), path.display()));
                }
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("inotify: {error}"),
            }
        }
    }

    /// Waits until all expected events have arrived, in any order; panics with the missing ones.
    #[track_caller]
    pub fn expect(&mut self, expected: &[&str]) {
        let started = Instant::now();
        loop {
            self.take();
            let missing: Vec<&&str> = expected
                .iter()
                .filter(|line| !self.said.iter().any(|said| said == *line))
                .collect();
            if missing.is_empty() {
                return;
            }
            let late = started.elapsed() > Duration::from_secs(EVENT_SECONDS);
            assert!(
                !late,
                "events are missing: {missing:#?}; received: {:#?}",
                self.said
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn words(events: ReadFlags) -> String {
    events
        .iter_names()
        .map(|(name, _)| name)
        .collect::<Vec<_>>()
        .join(",")
}
