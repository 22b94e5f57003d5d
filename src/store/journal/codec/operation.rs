//! Operations as bytes, and back.

use super::{Coded, NOTE_MAX, PATH_BYTES_MAX, PAYLOAD_MAX, Reader, Writer};
use crate::store::error::CodecError;
use crate::store::ids::CheckpointId;
use crate::store::operation::{Deed, Operation, Retagged};

impl Writer<'_> {
    pub(super) fn operation(&mut self, operation: &Operation) -> Coded<()> {
        self.uint(operation.number);
        self.actor(operation.at_ns, &operation.by)?;
        self.option(operation.undoes.as_ref(), |w, number| {
            w.uint(*number);
            Ok(())
        })?;
        match &operation.deed {
            Deed::Made { id } => self.uints([0, id.0]),
            Deed::Restored {
                target,
                guard,
                paths,
                only,
            } => {
                self.uints([if *only { 6 } else { 1 }, target.0, guard.0]);
                self.list(paths, PAYLOAD_MAX, |w, path| w.bytes(path, PATH_BYTES_MAX))?;
            }
            Deed::Deleted { id, freed } => self.uints([2, id.0, u64::from(*freed)]),
            Deed::Revived { id } => self.uints([3, id.0]),
            Deed::Tagged { changes } => {
                self.byte(4);
                self.list(changes, PAYLOAD_MAX, |w, change| {
                    w.uint(change.id.0);
                    w.tags(&change.lost)?;
                    w.tags(&change.got)
                })?;
            }
            Deed::Pinned { id, before, after } => {
                self.uints([5, id.0]);
                for reason in [before, after] {
                    self.option(reason.as_ref(), |w, reason| {
                        w.bytes(reason.as_bytes(), NOTE_MAX)
                    })?;
                }
            }
        }
        Ok(())
    }
}

impl Reader<'_> {
    pub(super) fn operation(&mut self) -> Coded<Operation> {
        Ok(Operation {
            number: self.uint()?,
            at_ns: self.int()?,
            by: self.actor()?,
            undoes: self.option(Reader::uint)?,
            deed: match self.byte()? {
                0 => Deed::Made { id: self.id()? },
                tag @ (1 | 6) => Deed::Restored {
                    target: self.id()?,
                    guard: self.id()?,
                    paths: self.list(PAYLOAD_MAX, |r| Ok(r.bytes(PATH_BYTES_MAX)?.to_vec()))?,
                    only: tag == 6,
                },
                2 => Deed::Deleted {
                    id: self.id()?,
                    freed: self.bool()?,
                },
                3 => Deed::Revived { id: self.id()? },
                4 => Deed::Tagged {
                    changes: self.list(PAYLOAD_MAX, |r| {
                        Ok(Retagged {
                            id: r.id()?,
                            lost: r.tags()?,
                            got: r.tags()?,
                        })
                    })?,
                },
                5 => {
                    let reason = |r: &mut Self| r.option(|r| r.text(NOTE_MAX));
                    Deed::Pinned {
                        id: self.id()?,
                        before: reason(self)?,
                        after: reason(self)?,
                    }
                }
                _ => return Err(CodecError::Unknown),
            },
        })
    }

    fn id(&mut self) -> Coded<CheckpointId> {
        self.uint().map(CheckpointId)
    }
}
