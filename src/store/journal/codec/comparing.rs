//! The record of a comparison with a baseline as bytes, and back: `u8 0` it is over; `1`, `2`, `3`
//! where what differs goes (no epoch of its own; one that is to come; one that is there),
//! `uint segment, uint offset, int left_ns`.

use super::{Coded, Reader, Writer};
use crate::store::Address;
use crate::store::error::CodecError;
use crate::store::record::{Apart, Comparing};

impl Writer<'_> {
    pub(super) fn comparing(&mut self, comparing: Option<&Comparing>) -> u16 {
        if let Some(Comparing {
            baseline,
            left_ns,
            apart,
        }) = comparing
        {
            self.byte(match apart {
                Apart::No => 1,
                Apart::Unclosed => 2,
                Apart::Closed => 3,
            });
            self.uints([baseline.segment.into(), baseline.offset.into()]);
            self.int(*left_ns);
        } else {
            self.byte(0);
        }
        21
    }
}

impl Reader<'_> {
    pub(super) fn comparing(&mut self) -> Coded<Option<Comparing>> {
        let apart = match self.byte()? {
            0 => return Ok(None),
            1 => Apart::No,
            2 => Apart::Unclosed,
            3 => Apart::Closed,
            _ => return Err(CodecError::Unknown),
        };
        let baseline = Address {
            segment: self.small()?,
            offset: self.small()?,
        };
        Ok(Some(Comparing {
            baseline,
            left_ns: self.int()?,
            apart,
        }))
    }
}
