//! The effect of path operations on the model.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::calls::{target, xattr};
use super::observe::StampTimes;
use super::ops::{Op, Verb};
use super::tree::{Body, Model, OpResult};
use super::world::data;

/// Performs an operation on the model and returns the expected result.
pub fn expected(
    model: &mut Model,
    times: &mut StampTimes,
    op: &Op,
    path: &[u8],
    second: &[u8],
) -> OpResult<()> {
    let n = |index| op.number(index);
    match op.verb {
        Verb::Create => model
            .make(path, Body::File(Vec::new().into()), n(0) as u32)
            .map(drop),
        Verb::Mkdir => model
            .make(path, Body::Dir(BTreeMap::new()), n(0) as u32)
            .map(drop),
        Verb::Mkfifo => model.make(path, Body::Fifo, n(0) as u32).map(drop),
        Verb::Mksock => model.make(path, Body::Socket, n(0) as u32).map(drop),
        Verb::Symlink => model
            .make(path, Body::Symlink(target(n(0))), 0o777)
            .map(drop),
        Verb::Put => {
            let id = match model.file(path, true)? {
                Some(id) => id,
                None => model.make(path, Body::File(Vec::new().into()), 0o644)?,
            };
            model.truncate(id, 0);
            model.write(id, 0, &data(n(1), n(0)));
            Ok(())
        }
        Verb::Write | Verb::Append | Verb::Punch => {
            let id = model.file(path, false)?.ok_or(Errno::NOENT)?;
            match op.verb {
                Verb::Write => model.write(id, n(0) as usize, &data(n(2), n(1))),
                Verb::Append => model.append(id, &data(n(1), n(0))),
                _ => model.punch(id, n(0) as usize, n(1) as usize),
            }
            Ok(())
        }
        Verb::Truncate => {
            let id = model.tree.lookup(path)?;
            match model.tree.node(id).body {
                Body::File(_) => model.truncate(id, n(0) as usize),
                Body::Dir(_) => return Err(Errno::ISDIR),
                Body::Symlink(_) => return Err(Errno::NOENT),
                Body::Fifo | Body::Socket => return Err(Errno::INVAL),
            }
            Ok(())
        }
        Verb::Unlink => model.remove(path, false),
        Verb::Rmdir => model.remove(path, true),
        Verb::Rename => model.rename(path, second, false, false),
        Verb::RenameNoReplace => model.rename(path, second, true, false),
        Verb::Exchange => model.rename(path, second, false, true),
        Verb::Link => model.link(path, second),
        Verb::Copy => expected_copy(model, op, path, second),
        _ => expected_attributes(model, times, op, path),
    }
}

fn expected_copy(model: &mut Model, op: &Op, path: &[u8], second: &[u8]) -> OpResult<()> {
    let from = model.tree.lookup(path)?;
    let source = match &model.tree.node(from).body {
        Body::File(content) => content.clone(),
        // open(2) for reading succeeds; the test stops there.
        Body::Dir(_) | Body::Fifo => return Ok(()),
        Body::Socket => return Err(Errno::NXIO),
        Body::Symlink(_) => return Err(Errno::LOOP),
    };
    let to = model.file(second, false)?.ok_or(Errno::NOENT)?;
    let (offset, target) = (op.number(0) as usize, op.number(1) as usize);
    let end = source.len().min(offset + op.number(2) as usize);
    if from != to && offset < end {
        model.write(to, target, &source[offset..end]);
    }
    Ok(())
}

fn expected_attributes(
    model: &mut Model,
    times: &mut StampTimes,
    op: &Op,
    path: &[u8],
) -> OpResult<()> {
    let id = model.tree.lookup(path)?;
    let stamp = model.counter.next();
    let node = model.node_mut(id);
    let has_xattrs = matches!(node.body, Body::File(_) | Body::Dir(_));
    match op.verb {
        Verb::Chmod if matches!(node.body, Body::Symlink(_)) => return Err(Errno::NOENT),
        Verb::Chmod => node.mode = op.number(0) as u32,
        Verb::Chown => {
            (node.uid, node.gid) = (op.number(0) as u32, op.number(1) as u32);
            if !node.is_dir() {
                node.mode &= !0o4000;
                node.mode &= if node.mode & 0o010 != 0 { !0o2000 } else { !0 };
            }
        }
        Verb::Utimens => {
            node.mtime = stamp;
            times.set(stamp, (op.number(0) as i64, op.number(1) as i64));
        }
        Verb::SetXattr | Verb::RemoveXattr if !has_xattrs => return Err(Errno::PERM),
        Verb::SetXattr => drop(
            node.xattrs
                .insert(xattr(op.number(0)), data(op.number(2), op.number(1))),
        ),
        Verb::RemoveXattr => drop(
            node.xattrs
                .remove(&xattr(op.number(0)))
                .ok_or(Errno::NODATA)?,
        ),
        _ => panic!("unexpected operation {op}"),
    }
    Ok(())
}
