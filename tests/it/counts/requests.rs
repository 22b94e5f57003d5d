//! Kernel requests per workload.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::path::Path;

use crate::common::{Fs, Io, Variant, for_each_variant, skip, succeeds, tool};
use crate::counts::baseline::{self, Baseline};
use crate::counts::databases::{self, Postgres, Sqlite};
use crate::counts::rig::{CountedMount, Counts};
use crate::counts::tree;

/// Directories and links to create.
const FEW: usize = 100;
/// Time limit of a tool.
const TOOL_SECONDS: u64 = 120;
/// Tolerated excess of requests: the kernel may have dropped a cached inode. A regression adds at
/// least one request per file.
const SLACK: f64 = 10.0;
/// Tolerance for system tools, other versions of which may access a few more files, and for
/// periodic requests on open files: a busy machine takes longer, and attributes expire.
const TOOL_SLACK: f64 = 40.0;

/// A mount and its baseline.
struct Session {
    rig: CountedMount,
    baseline: Baseline,
}

impl Session {
    /// Counts the requests of our own workload.
    fn exactly(&mut self, workload: &str, work: impl FnOnce(&Path)) {
        self.count(workload, SLACK, work);
    }

    /// Counts the requests of a system tool.
    fn about(&mut self, workload: &str, work: impl FnOnce(&Path)) {
        self.count(workload, TOOL_SLACK, work);
    }

    fn count(&mut self, workload: &str, slack: f64, work: impl FnOnce(&Path)) {
        let counts: Counts = self.rig.requests(work);
        self.baseline.check(
            workload,
            counts
                .into_iter()
                .map(|(kind, count)| (kind, count as f64))
                .collect(),
            slack,
        );
    }
}

for_each_variant! { xfs => requests_per_workload_do_not_grow }

fn requests_per_workload_do_not_grow(variant: Variant) {
    if let Err(reason) = baseline::compare(&format!("requests-{}", variant.io.name()), |baseline| {
        Ok(session(variant, baseline))
    }) {
        skip(&reason);
    }
}

fn session(variant: Variant, baseline: Baseline) -> Baseline {
    let mut session = Session {
        rig: CountedMount::start(variant, tree::fill),
        baseline,
    };
    new_files(&mut session);
    known_files(&mut session);
    writes(&mut session);
    databases(&mut session);
    archives(&mut session);
    git(&mut session);
    views(&mut session);
    session.baseline
}

/// Counts the workloads that differ when the kernel does not request extended attributes.
fn session_without_xattrs(variant: Variant, baseline: Baseline) -> Baseline {
    let mut session = Session {
        rig: CountedMount::start_with(variant, "--xattrs=off", tree::fill),
        baseline,
    };
    // The first request of this kind returns ENOSYS, which ends all later ones.
    let first = session.rig.path().join("first");
    std::fs::write(&first, "x").expect("a file");
    std::fs::remove_file(&first).expect("it exists");
    new_files(&mut session);
    databases(&mut session);
    archives(&mut session);
    let id = session.rig.checkpoint();
    let view = session.rig.view(id);
    lists(&mut session, &view);
    session.baseline
}

/// Names created and removed in the open epoch.
fn new_files(session: &mut Session) {
    let dir = session.rig.path().join("new");
    std::fs::create_dir(&dir).expect("a directory");
    let files = tree::names(&dir, tree::FILES);
    let dirs = tree::names(&dir.with_file_name("new-dirs"), FEW);
    let links = tree::names(&dir.with_file_name("new-links"), FEW);
    for names in [&dirs, &links] {
        std::fs::create_dir(names[0].parent().expect("a parent")).expect("a directory");
    }
    session.exactly("create, write, close 1000 files", |_| tree::create(&files));
    session.exactly("mkdir 100", |_| tree::mkdir(&dirs));
    session.exactly("symlink 100", |_| tree::links(&links));
    session.exactly("read 1000 new files", |_| tree::read(&files));
    session.exactly("rename 1000", |_| tree::rename(&files));
    let renamed: Vec<_> = files.iter().map(|path| tree::renamed(path)).collect();
    session.exactly("unlink 1000", |_| tree::unlink(&renamed));
}

/// Walks and reads of existing files.
fn known_files(session: &mut Session) {
    let walk = |path: &Path| assert!(tree::stat_walk(path) >= tree::FILES);
    session.rig.remount();
    session.exactly("stat walk of 1000 files, cold", walk);
    session.exactly("stat walk of 1000 files, warm", walk);
    session.exactly("read 1000 files, known, cold data", |path| {
        tree::read(&tree::paths(path))
    });
    session.exactly("read 1000 files, warm", |path| {
        tree::read(&tree::paths(path))
    });
    session.rig.remount();
    session.exactly("read 1000 files, cold", |path| {
        tree::read(&tree::paths(path))
    });
    session.rig.remount();
    session.exactly("name walk of 1000 files, cold", |path| {
        assert!(tree::name_walk(path) >= tree::FILES)
    });
}

/// Writes to existing files, before and after a checkpoint.
fn writes(session: &mut Session) {
    let walk = |path: &Path| assert!(tree::stat_walk(path) >= tree::FILES);
    session.rig.remount();
    session.exactly("stat walk of 1000 files, cold again", walk);
    session.exactly("first write of 1000 files, no checkpoint", |path| {
        tree::touch(&tree::paths(path))
    });
    session.exactly("next write of 1000 files, no checkpoint", |path| {
        tree::touch(&tree::paths(path))
    });
    session.rig.checkpoint();
    session.exactly("first write of 1000 files after a checkpoint", |path| {
        tree::touch(&tree::paths(path))
    });
    session.exactly("next write of 1000 files after a checkpoint", |path| {
        tree::touch(&tree::paths(path))
    });
    session.rig.checkpoint();
    session.exactly("rename 1000 after a checkpoint", |path| {
        tree::rename(&tree::paths(path))
    });
    session.exactly("unlink 1000 after a checkpoint", |path| {
        let renamed: Vec<_> = tree::paths(path)
            .iter()
            .map(|path| tree::renamed(path))
            .collect();
        tree::unlink(&renamed);
    });
    session.exactly(
        "create, write, close 1000 files after a checkpoint",
        |path| tree::create(&tree::paths(path)),
    );
}

/// Transactions of each database: cached reads make no request, writes are synced, and a request
/// for all attributes after a read gets fresh ones.
fn databases(session: &mut Session) {
    let dir = session.rig.path().join("databases");
    std::fs::create_dir(&dir).expect("a directory");
    let postgres = Postgres::connected(&dir);
    session.about("postgresql: 1000 selects", |_| postgres.selects());
    session.about("postgresql: 1000 transactions", |_| postgres.transactions());
    let sqlite = Sqlite::open(&dir);
    session.about("sqlite: 1000 inserts with wal", |_| {
        sqlite.inserts_with_wal()
    });
    session.about("sqlite: 1000 selects without wal", |_| sqlite.selects());
    session.about("sqlite: 1000 inserts without wal", |_| {
        sqlite.inserts_with_journal()
    });
    let mut log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join("appendonly.aof"))
        .expect("a log");
    session.about("redis: 1000 appends", |_| databases::redis(&mut log));
    drop((postgres, sqlite, log));
    std::fs::remove_dir_all(&dir).expect("no process has it open");
}

/// Common archive tools.
fn archives(session: &mut Session) {
    let archive = std::env::temp_dir().join(format!(
        "ckptfs-counts-{}-{:p}.tar",
        std::process::id(),
        session
    ));
    let dirs: Vec<String> = (0..tree::DIRS).map(|dir| format!("dir-{dir:02}")).collect();
    succeeds(
        tool("tar", &[OsStr::new("-cf"), archive.as_os_str()])
            .args(&dirs)
            .current_dir(session.rig.path()),
        TOOL_SECONDS,
    );
    let unpacked = session.rig.path().join("unpacked");
    std::fs::create_dir(&unpacked).expect("a directory");
    session.about("untar 1000 files", |_| {
        succeeds(
            tool("tar", &[OsStr::new("-xf"), archive.as_os_str()]).current_dir(&unpacked),
            TOOL_SECONDS,
        );
    });
    std::fs::remove_file(&archive).expect("the archive can be removed");
    session.about("rm -rf 1000 files", |_| {
        succeeds(
            &mut tool("rm", &[OsStr::new("-rf"), unpacked.as_os_str()]),
            TOOL_SECONDS,
        );
    });
}

fn git(session: &mut Session) {
    let git = |arguments: &[&str], dir: &Path| {
        let who = [
            "-c",
            "user.name=n",
            "-c",
            "user.email=e@x",
            "-c",
            "gc.auto=0",
            "-c",
            "core.fsmonitor=false",
            "-c",
            "safe.directory=*",
        ];
        succeeds(
            tool("git", &[&who, arguments].concat())
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .current_dir(dir),
            TOOL_SECONDS,
        );
    };
    let root = session.rig.path().to_owned();
    git(&["init", "-q"], &root);
    git(&["add", "dir-00", "dir-01", "dir-02", "dir-03"], &root);
    git(&["commit", "-qm", "c"], &root);
    git(&["status"], &root);
    session.about("git status, warm", |path| git(&["status"], path));
}

/// Views: their contents never change, so the kernel may cache everything.
fn views(session: &mut Session) {
    session.rig.remount();
    let id = session.rig.checkpoint();
    let view = session.rig.view(id);
    // Half of the files differ from the view.
    let changed: Vec<_> = tree::paths(session.rig.path())
        .into_iter()
        .step_by(2)
        .collect();
    tree::touch(&changed);
    let walk = |view: &Path| assert!(tree::stat_walk(view) >= tree::FILES);
    session.exactly("view: stat walk of 1000 files, cold", |_| walk(&view));
    session.exactly("view: stat walk of 1000 files, warm", |_| walk(&view));
    lists(session, &view);
    session.exactly("view: read 1000 files, cold data", |_| {
        tree::read(&tree::paths(&view))
    });
    session.exactly("view: read 1000 files, warm", |_| {
        tree::read(&tree::paths(&view))
    });
    session.rig.remount();
    session.exactly("view: name walk of 1000 files, cold", |_| {
        assert!(tree::name_walk(&view) >= tree::FILES)
    });
}

/// `ls -l` requests the ACL of each file, which the kernel caches, and its security label, which
/// the kernel does not cache.
fn lists(session: &mut Session, view: &Path) {
    let list = |_: &Path| {
        succeeds(
            tool("ls", &["-l"])
                .arg(view.join("dir-00"))
                .stdout(std::process::Stdio::null()),
            TOOL_SECONDS,
        );
    };
    session.about("view: ls -l of 50 files", list);
    session.about("view: ls -l of 50 files, again", list);
}

#[test]
fn requests_without_extended_attributes_do_not_grow() {
    let variant = Variant {
        fs: Fs::Xfs,
        io: Io::Passthrough,
    };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    if let Err(reason) = baseline::compare("requests-without-xattrs", |baseline| {
        Ok(session_without_xattrs(variant, baseline))
    }) {
        skip(&reason);
    }
}

/// The backing filesystem makes no difference.
#[test]
#[ignore = "long: the same again on btrfs"]
fn requests_per_workload_do_not_grow_btrfs() {
    requests_per_workload_do_not_grow(Variant {
        fs: Fs::Btrfs,
        io: Io::Passthrough,
    });
    requests_per_workload_do_not_grow(Variant {
        fs: Fs::Btrfs,
        io: Io::Daemon,
    });
}
