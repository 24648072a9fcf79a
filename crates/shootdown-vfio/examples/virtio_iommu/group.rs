//! Devices of VFIO's.

use std::io;

use shootdown_vfio::user::linux::VfioType1;

use crate::model::platform::{Platform, Reach};

/// A group of VFIO's, which is in its container as long as that is open: the guest may have one
/// domain with mappings at a time.
pub struct Group(pub u32);

impl Platform for Group {
    type Backend = VfioType1;

    fn space(&mut self) -> io::Result<Self::Backend> {
        Self::Backend::open(self.0)
    }

    fn connect(&mut self, _: u32, _: Option<&Self::Backend>) -> io::Result<()> {
        Ok(())
    }

    fn reaches(&self, _: u32, _: u64) -> Reach {
        Reach::Unknown
    }

    fn refuse_unmappings(&self, _: u64) -> bool {
        false
    }
}
