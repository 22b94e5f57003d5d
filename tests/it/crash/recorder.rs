//! A disk that records its writes: one file served through FUSE, as the backing file of a loop
//! device.
//!
//! Every write and flush is logged. The states that a power cut may leave are built from the log:
//! everything that was flushed, and any subset of the rest, because a disk caches writes and
//! persists them in any order.

use crate::common::fuse_replies::attributes;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

const FOR_EVER: Duration = Duration::from_secs(365 * 86_400);
const FILE: u64 = 2;
const NAME: &str = "disk";
/// Maximum length of a logged write of zeros.
const ZEROS: usize = 1 << 20;

/// A logged event.
#[derive(Clone, Copy, Debug)]
pub enum DiskEvent {
    /// `length` bytes were written at `offset`; their copy is at `at` in the log file.
    Write { offset: u64, length: usize, at: u64 },
    /// All earlier writes are durable.
    Flush,
}

struct Inner {
    data: File,
    bytes: File,
    logged: u64,
    events: Vec<DiskEvent>,
}

/// The log of a disk.
#[derive(Clone)]
pub struct DiskLog(Arc<Mutex<Inner>>);

impl DiskLog {
    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().events.len()
    }

    /// Returns all events.
    pub fn events(&self) -> Vec<DiskEvent> {
        self.0.lock().unwrap().events.clone()
    }

    /// Returns the bytes of a write.
    pub fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0
            .lock()
            .unwrap()
            .bytes
            .read_exact_at(&mut bytes, at)
            .expect("the log can be read");
        bytes
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        inner.data.write_all_at(data, offset)?;
        inner.bytes.write_all(data)?;
        let at = inner.logged;
        inner.logged += data.len() as u64;
        inner.events.push(DiskEvent::Write {
            offset,
            length: data.len(),
            at,
        });
        Ok(())
    }

    fn flush(&self) {
        self.0.lock().unwrap().events.push(DiskEvent::Flush);
    }
}

struct RecordedDisk {
    log: DiskLog,
    size: u64,
}

/// A running recorder. Drop unmounts it.
pub struct Recorder {
    pub log: DiskLog,
    point: PathBuf,
    _session: BackgroundSession,
}

impl Recorder {
    /// Serves the image `data` in the directory `point`; the bytes of the log are stored in
    /// `bytes`.
    pub fn start(data: &Path, bytes: &Path, point: &Path) -> Recorder {
        let data = OpenOptions::new()
            .read(true)
            .write(true)
            .open(data)
            .expect("the image exists");
        let size = data.metadata().expect("an image").len();
        let bytes = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .open(bytes)
            .expect("the log can be created");
        let log = DiskLog(Arc::new(Mutex::new(Inner {
            data,
            bytes,
            logged: 0,
            events: Vec::new(),
        })));
        std::fs::create_dir_all(point).expect("a directory can be created");
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("ckptfs-test-recorder".to_owned()),
            MountOption::NoAtime,
        ];
        let session = fuser::spawn_mount(
            RecordedDisk {
                log: log.clone(),
                size,
            },
            point,
            &config,
        )
        .expect("the recorder can be mounted");
        Recorder {
            log,
            point: point.to_owned(),
            _session: session,
        }
    }

    /// Returns the path of the disk file.
    pub fn disk(&self) -> PathBuf {
        self.point.join(NAME)
    }
}

impl RecordedDisk {
    fn attr(&self, ino: u64) -> FileAttr {
        let (kind, perm) = if ino == FILE {
            (FileType::RegularFile, 0o600)
        } else {
            (FileType::Directory, 0o700)
        };
        let size = if ino == FILE { self.size } else { 0 };
        attributes(ino, kind, perm, size)
    }
}

impl Filesystem for RecordedDisk {
    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&FOR_EVER, &self.attr(FILE), Generation(0))
        } else {
            reply.error(Errno::ENOENT)
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOR_EVER, &self.attr(ino.0));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    #[allow(clippy::too_many_arguments)]
    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; u64::from(size).min(self.size.saturating_sub(offset)) as usize];
        match self
            .log
            .0
            .lock()
            .unwrap()
            .data
            .read_exact_at(&mut bytes, offset)
        {
            Ok(()) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.log.write(offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.log.flush();
        reply.ok();
    }

    /// Discarded and zeroed ranges read as zeros.
    #[allow(clippy::too_many_arguments)]
    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let zeros = vec![0; ZEROS];
        let mut done = 0;
        while done < length {
            let piece = (length - done).min(ZEROS as u64);
            if self
                .log
                .write(offset + done, &zeros[..piece as usize])
                .is_err()
            {
                return reply.error(Errno::EIO);
            }
            done += piece;
        }
        reply.ok();
    }
}
