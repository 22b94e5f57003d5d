//! The operations for fault injection.

use super::served::{ServedDir, at, libc_flags};
use ckptfs_api::VerbError;
use ckptfs_core::engine::request::{RenameMode, SetAttr};
use ckptfs_sys::{Errno, Kind};

/// The error of an operation: of a request, or of a verb.
#[derive(Debug)]
pub enum OpError {
    Errno(Errno),
    Words(VerbError),
}

impl From<Errno> for OpError {
    fn from(errno: Errno) -> OpError {
        OpError::Errno(errno)
    }
}

impl From<VerbError> for OpError {
    fn from(error: VerbError) -> OpError {
        OpError::Words(error)
    }
}

pub type FaultOpResult = Result<(), OpError>;

/// An operation in a separate directory.
pub struct FaultOp {
    pub name: &'static str,
    /// Setup after the checkpoint, without faults.
    pub before: fn(&ServedDir, &str) -> FaultOpResult,
    /// The operation, given the id of the checkpoint.
    pub run: fn(&ServedDir, &str, u64) -> FaultOpResult,
    /// Consists of many steps: a failure leaves some of them done, and a guard to undo them.
    pub steps: bool,
}

/// Creates the content of the directory before the checkpoint.
pub fn fill(tree: &ServedDir, dir: &str) -> FaultOpResult {
    tree.make(dir, Kind::Dir)?;
    let p = |name: &str| format!("{dir}/{name}");
    for name in ["small", "other", "gone", "one"] {
        tree.create(&p(name), format!("{name} as it was").as_bytes())?;
    }
    tree.create(&p("large"), &vec![7; 100_000])?;
    tree.create(&p("none"), b"")?;
    tree.link(&p("one"), &p("two"))?;
    tree.symlink(&p("link"), "small")?;
    tree.make(&p("fifo"), Kind::Fifo)?;
    tree.make(&p("sub"), Kind::Dir)?;
    tree.create(&p("sub/deep"), b"deep as it was")?;
    tree.make(&p("bare"), Kind::Dir)?;
    tree.setxattr(&p("other"), "user.note", b"a note")?;
    Ok(())
}

fn nothing(_: &ServedDir, _: &str) -> FaultOpResult {
    Ok(())
}

/// Typical changes after the checkpoint, for operations that compare or restore.
fn day(tree: &ServedDir, dir: &str) -> FaultOpResult {
    let p = |name: &str| format!("{dir}/{name}");
    tree.write(&p("small"), 2, b"CHANGED")?;
    tree.unlink(&p("gone"))?;
    tree.create(&p("new"), b"new")?;
    tree.rename(&p("sub"), &p("moved"), RenameMode::Replace)?;
    tree.create(&p("tmp"), b"replaced")?;
    tree.rename(&p("tmp"), &p("other"), RenameMode::Replace)?;
    tree.set(
        &p("large"),
        SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        },
    )?;
    tree.rmdir(&p("bare"))?;
    tree.unlink(&p("two"))?;
    Ok(())
}

macro_rules! op {
    ($name:literal, $run:expr) => {
        FaultOp {
            name: $name,
            before: nothing,
            run: $run,
            steps: false,
        }
    };
    ($name:literal, $before:expr, $run:expr) => {
        FaultOp {
            name: $name,
            before: $before,
            run: $run,
            steps: false,
        }
    };
}

pub fn all() -> Vec<FaultOp> {
    let mut ops = files();
    ops.extend(new_names());
    ops.extend(renames());
    ops.extend(removals());
    ops.extend(attributes());
    ops.extend(verbs());
    ops
}

fn files() -> Vec<FaultOp> {
    vec![
        op!("create", |t, d, _| Ok(t.create(&format!("{d}/new"), b"")?)),
        op!(
            "write to a new file",
            |t, d| Ok(t.create(&format!("{d}/new"), b"1")?),
            |t, d, _| Ok(t.write(&format!("{d}/new"), 0, b"XX")?)
        ),
        op!("write", |t, d, _| Ok(t.write(
            &format!("{d}/small"),
            1,
            b"XX"
        )?)),
        op!(
            "write to a file on disk",
            |t, d| Ok(t.fsync(&format!("{d}/large"))?),
            |t, d, _| Ok(t.write(&format!("{d}/large"), 5000, b"XX")?)
        ),
        op!("write below", |t, d, _| Ok(t.write(
            &format!("{d}/sub/deep"),
            0,
            b"XX"
        )?)),
        op!(
            "write a second time",
            |t, d| Ok(t.write(&format!("{d}/small"), 1, b"1")?),
            |t, d, _| Ok(t.write(&format!("{d}/small"), 1, b"XX")?)
        ),
        op!("append", |t, d, _| Ok(
            t.append(&format!("{d}/small"), b"more")?
        )),
        op!("truncate", |t, d, _| Ok(t.set(
            &format!("{d}/small"),
            SetAttr {
                size: Some(3),
                ..SetAttr::default()
            }
        )?)),
        op!("open to empty", |t, d, _| Ok(
            t.empty(&format!("{d}/small"))?
        )),
        op!("write to an empty file", |t, d, _| Ok(t.write(
            &format!("{d}/none"),
            0,
            b"XX"
        )?)),
        op!("fallocate", |t, d, _| Ok(t.fallocate(
            &format!("{d}/small"),
            0,
            20_000
        )?)),
        op!("copy range", |t, d, _| Ok(t.copy_range(
            &format!("{d}/large"),
            &format!("{d}/small"),
            50_000
        )?)),
        op!(
            "fsync",
            |t, d| Ok(t.write(&format!("{d}/small"), 1, b"XX")?),
            |t, d, _| Ok(t.fsync(&format!("{d}/small"))?)
        ),
    ]
}

const REPLACE: RenameMode = RenameMode::Replace;

fn new_names() -> Vec<FaultOp> {
    vec![
        op!("mkdir", |t, d, _| Ok(
            t.make(&format!("{d}/new"), Kind::Dir)?
        )),
        op!("symlink", |t, d, _| Ok(
            t.symlink(&format!("{d}/new"), "small")?
        )),
        op!("mknod", |t, d, _| Ok(
            t.make(&format!("{d}/new"), Kind::Fifo)?
        )),
        op!("link", |t, d, _| Ok(
            t.link(&format!("{d}/small"), &format!("{d}/new"))?
        )),
    ]
}

fn renames() -> Vec<FaultOp> {
    vec![
        op!("rename", |t, d, _| Ok(t.rename(
            &format!("{d}/small"),
            &format!("{d}/new"),
            REPLACE
        )?)),
        op!("rename into another directory", |t, d, _| Ok(t.rename(
            &format!("{d}/small"),
            &format!("{d}/sub/new"),
            REPLACE
        )?)),
        op!("rename over", |t, d, _| Ok(t.rename(
            &format!("{d}/small"),
            &format!("{d}/other"),
            REPLACE
        )?)),
        op!(
            "rename a new file over",
            |t, d| Ok(t.create(&format!("{d}/tmp"), b"new")?),
            |t, d, _| { Ok(t.rename(&format!("{d}/tmp"), &format!("{d}/other"), REPLACE)?) }
        ),
        op!(
            "rename over a new file",
            |t, d| Ok(t.create(&format!("{d}/tmp"), b"new")?),
            |t, d, _| { Ok(t.rename(&format!("{d}/small"), &format!("{d}/tmp"), REPLACE)?) }
        ),
        op!("rename over one of two names", |t, d, _| Ok(t.rename(
            &format!("{d}/small"),
            &format!("{d}/two"),
            REPLACE
        )?)),
        op!("rename a directory", |t, d, _| Ok(t.rename(
            &format!("{d}/sub"),
            &format!("{d}/moved"),
            REPLACE
        )?)),
        op!("rename a directory over", |t, d, _| Ok(t.rename(
            &format!("{d}/sub"),
            &format!("{d}/bare"),
            REPLACE
        )?)),
        op!("exchange", |t, d, _| Ok(t.rename(
            &format!("{d}/small"),
            &format!("{d}/sub"),
            RenameMode::Exchange
        )?)),
    ]
}

fn removals() -> Vec<FaultOp> {
    vec![
        op!("unlink", |t, d, _| Ok(t.unlink(&format!("{d}/small"))?)),
        op!(
            "unlink a changed file",
            |t, d| Ok(t.write(&format!("{d}/small"), 1, b"XX")?),
            |t, d, _| Ok(t.unlink(&format!("{d}/small"))?)
        ),
        op!(
            "unlink a new file",
            |t, d| Ok(t.create(&format!("{d}/new"), b"new")?),
            |t, d, _| Ok(t.unlink(&format!("{d}/new"))?)
        ),
        op!("unlink one of two names", |t, d, _| Ok(
            t.unlink(&format!("{d}/two"))?
        )),
        op!("unlink a link", |t, d, _| Ok(
            t.unlink(&format!("{d}/link"))?
        )),
        op!("unlink an open file", |t, d, _| {
            let open = t.open_fh(&format!("{d}/small"), libc_flags::READ)?;
            let removed = t.unlink(&format!("{d}/small"));
            t.release(open);
            Ok(removed?)
        }),
        op!("rmdir", |t, d, _| Ok(t.rmdir(&format!("{d}/bare"))?)),
    ]
}

fn attributes() -> Vec<FaultOp> {
    vec![
        op!("chmod", |t, d, _| Ok(t.set(
            &format!("{d}/small"),
            SetAttr {
                mode: Some(0o600),
                ..SetAttr::default()
            }
        )?)),
        op!("chmod of a directory", |t, d, _| Ok(t.set(
            &format!("{d}/sub"),
            SetAttr {
                mode: Some(0o700),
                ..SetAttr::default()
            }
        )?)),
        op!("chown", |t, d, _| Ok(t.set(
            &format!("{d}/small"),
            SetAttr {
                uid: Some(7),
                gid: Some(8),
                ..SetAttr::default()
            }
        )?)),
        op!("utimens", |t, d, _| Ok(
            t.set(&format!("{d}/small"), at(1_000_000_000))?
        )),
        op!("setxattr", |t, d, _| Ok(t.setxattr(
            &format!("{d}/small"),
            "user.note",
            b"new"
        )?)),
        op!("setxattr over", |t, d, _| Ok(t.setxattr(
            &format!("{d}/other"),
            "user.note",
            b"new"
        )?)),
        op!("removexattr", |t, d, _| Ok(
            t.removexattr(&format!("{d}/other"), "user.note")?
        )),
    ]
}

fn verbs() -> Vec<FaultOp> {
    vec![
        op!("checkpoint", day, |t, _, _| Ok(t.checkpoint().map(drop)?)),
        op!("checkpoint --sync", day, |t, _, _| Ok(t
            .checkpoint_with(true)
            .map(drop)?)),
        FaultOp {
            name: "checkpoint with an open file",
            before: |_, _| Ok(()),
            run: |t, d, _| {
                let open = t.open_fh(&format!("{d}/large"), libc_flags::READ_WRITE)?;
                let made = t.checkpoint();
                t.release(open);
                Ok(made.map(drop)?)
            },
            steps: false,
        },
        FaultOp {
            name: "restore",
            before: day,
            run: |t, d, id| Ok(t.restore(id, d)?),
            steps: true,
        },
        op!("status", day, |t, d, _| {
            t.status()?;
            let _ = d;
            Ok(())
        }),
        op!("read a view", day, |t, d, id| Ok(t
            .view(id, d)
            .map(drop)?)),
        FaultOp {
            name: "delete a checkpoint",
            before: |t, d| {
                day(t, d)?;
                t.checkpoint()?;
                Ok(t.write(&format!("{d}/one"), 0, b"again")?)
            },
            run: |t, _, id| {
                let next = t
                    .checkpoints()
                    .into_iter()
                    .filter(|other| *other > id)
                    .min()
                    .ok_or(Errno::ENOENT)?;
                Ok(t.free(next)?)
            },
            steps: false,
        },
        FaultOp {
            name: "undo a deletion",
            before: |t, d| {
                day(t, d)?;
                let id = t.checkpoints().into_iter().max().ok_or(Errno::ENOENT)?;
                Ok(t.delete(id)?)
            },
            run: |t, _, id| {
                t.undo()?;
                if t.checkpoints().contains(&id) {
                    Ok(())
                } else {
                    Err(Errno::ENOENT.into())
                }
            },
            steps: false,
        },
    ]
}
