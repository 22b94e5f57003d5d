//! The payloads that tell who changed what.
//!
//! ```text
//! process   uint pid, start, uid, parent, session, text name, text cgroup
//! touch     u8 0 Name  uint by, directory, name, u8 0 it is removed, 1 made, 2 something is moved there
//!           u8 1 Data  uint by, slot          u8 2 Attr  uint by, slot         u8 3 Made  uint by, slot
//!           u8 4 Gone  uint slot              u8 5 Left  uint by, slot
//! ```
//! 18 `u8 0, list (uint number, process), list touch`, or `u8 1, uint checkpoint, list (bytes path,
//! process), uint more`; 19 RestoreOnly `list bytes`.

use super::{Coded, PATH_BYTES_MAX, PAYLOAD_MAX, PROCESS_MAX, Reader, Writer};
use crate::store::error::CodecError;
use crate::store::ids::{CheckpointId, Slot};
use crate::store::record::{NameTouch, Process, ProcessNumber, Record, Touch};

/// Most bytes of the path of a control group.
pub const CGROUP_MAX: usize = 4096;

impl Writer<'_> {
    fn process(&mut self, process: &Process) -> Coded<()> {
        self.uints([u64::from(process.pid), process.start]);
        self.uints([process.uid, process.parent, process.session].map(u64::from));
        self.bytes(process.name.as_bytes(), PROCESS_MAX)?;
        self.bytes(process.cgroup.as_bytes(), CGROUP_MAX)
    }

    fn touch(&mut self, touch: &Touch) -> Coded<()> {
        let (tag, by, slot) = match touch {
            Touch::Name { by, dir, name, how } => {
                self.byte(0);
                self.uints([u64::from(*by), dir.0]);
                self.name(name)?;
                self.byte(match how {
                    NameTouch::Removed => 0,
                    NameTouch::Made => 1,
                    NameTouch::Moved => 2,
                });
                return Ok(());
            }
            Touch::Gone { slot } => {
                self.byte(4);
                self.uint(slot.0);
                return Ok(());
            }
            Touch::Data { by, slot } => (1, by, slot),
            Touch::Attr { by, slot } => (2, by, slot),
            Touch::Made { by, slot } => (3, by, slot),
            Touch::Left { by, slot } => (5, by, slot),
        };
        self.byte(tag);
        self.uints([u64::from(*by), slot.0]);
        Ok(())
    }

    /// Appends the payload of one of these records and returns the frame's kind.
    pub(super) fn who(&mut self, record: &Record) -> Coded<u16> {
        match record {
            Record::Touched { processes, touches } => self.touched(processes, touches)?,
            Record::OpenAt { id, open, more } => self.open_at(*id, open, *more)?,
            Record::RestoreOnly { paths } => {
                self.list(paths, PAYLOAD_MAX, |w, path| w.bytes(path, PATH_BYTES_MAX))?;
                return Ok(19);
            }
            _ => return Err(CodecError::Unknown),
        }
        Ok(18)
    }

    fn touched(&mut self, processes: &[(ProcessNumber, Process)], touches: &[Touch]) -> Coded<()> {
        self.byte(0);
        self.list(processes, PAYLOAD_MAX, |w, (number, process)| {
            w.uint(u64::from(*number));
            w.process(process)
        })?;
        self.list(touches, PAYLOAD_MAX, Writer::touch)
    }

    fn open_at(&mut self, id: CheckpointId, open: &[(Vec<u8>, Process)], more: u64) -> Coded<()> {
        self.byte(1);
        self.uint(id.0);
        self.list(open, PAYLOAD_MAX, |w, (path, process)| {
            w.bytes(path, PATH_BYTES_MAX)?;
            w.process(process)
        })?;
        self.uint(more);
        Ok(())
    }
}

impl Reader<'_> {
    fn process(&mut self) -> Coded<Process> {
        Ok(Process {
            pid: self.small()?,
            start: self.uint()?,
            uid: self.small()?,
            parent: self.small()?,
            session: self.small()?,
            name: self.text(PROCESS_MAX)?,
            cgroup: self.text(CGROUP_MAX)?,
        })
    }

    fn touch(&mut self) -> Coded<Touch> {
        Ok(match self.byte()? {
            0 => Touch::Name {
                by: self.small()?,
                dir: Slot(self.uint()?),
                name: self.name()?,
                how: self.name_touch()?,
            },
            1 => Touch::Data {
                by: self.small()?,
                slot: Slot(self.uint()?),
            },
            2 => Touch::Attr {
                by: self.small()?,
                slot: Slot(self.uint()?),
            },
            3 => Touch::Made {
                by: self.small()?,
                slot: Slot(self.uint()?),
            },
            4 => Touch::Gone {
                slot: Slot(self.uint()?),
            },
            5 => Touch::Left {
                by: self.small()?,
                slot: Slot(self.uint()?),
            },
            _ => return Err(CodecError::Unknown),
        })
    }

    fn name_touch(&mut self) -> Coded<NameTouch> {
        Ok(match self.byte()? {
            0 => NameTouch::Removed,
            1 => NameTouch::Made,
            2 => NameTouch::Moved,
            _ => return Err(CodecError::Unknown),
        })
    }

    pub(super) fn who(&mut self) -> Coded<Record> {
        Ok(match self.byte()? {
            0 => Record::Touched {
                processes: self.list(PAYLOAD_MAX, |r| Ok((r.small()?, r.process()?)))?,
                touches: self.list(PAYLOAD_MAX, Reader::touch)?,
            },
            1 => Record::OpenAt {
                id: CheckpointId(self.uint()?),
                open: self.list(PAYLOAD_MAX, |r| {
                    Ok((r.bytes(PATH_BYTES_MAX)?.to_vec(), r.process()?))
                })?,
                more: self.uint()?,
            },
            _ => return Err(CodecError::Unknown),
        })
    }
}
