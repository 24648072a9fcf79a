//! Where address spaces and devices come from.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use shootdown_vfio::user::Backend;
use shootdown_vfio::user::dry::Dry;

/// What a device reaches at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// This memory of the hypervisor's process.
    Memory(u64),
    /// Nothing: it faults.
    Nothing,
    /// Nobody can say without asking the device.
    Unknown,
}

/// The hypervisor's half: devices that are passed on, and address spaces for them.
pub trait Platform {
    type Backend: Backend;

    /// A new address space of the kernel's.
    fn space(&mut self) -> io::Result<Self::Backend>;

    /// Has a device use the address space from now on, or none.
    fn connect(&mut self, endpoint: u32, space: Option<&Self::Backend>) -> io::Result<()>;

    /// What a device reaches.
    fn reaches(&self, endpoint: u32, at: u64) -> Reach;

    /// Has the kernel refuse so many unmappings. False: it can't be had to.
    fn refuse_unmappings(&self, count: u64) -> bool;
}

/// Devices that do nothing, and a kernel that maps nothing.
#[derive(Default)]
pub struct DryPlatform {
    all: Vec<Arc<Dry>>,
    connected: BTreeMap<u32, Arc<Dry>>,
}

impl Platform for DryPlatform {
    type Backend = Arc<Dry>;

    fn space(&mut self) -> io::Result<Arc<Dry>> {
        self.all.push(Arc::default());
        Ok(self.all.last().cloned().unwrap_or_default())
    }

    fn connect(&mut self, endpoint: u32, space: Option<&Arc<Dry>>) -> io::Result<()> {
        match space {
            Some(space) => self.connected.insert(endpoint, Arc::clone(space)),
            None => self.connected.remove(&endpoint),
        };
        Ok(())
    }

    fn reaches(&self, endpoint: u32, at: u64) -> Reach {
        let found = self.connected.get(&endpoint).and_then(|space| space.reaches(at));
        found.map_or(Reach::Nothing, |(memory, _)| Reach::Memory(memory))
    }

    fn refuse_unmappings(&self, count: u64) -> bool {
        self.all.iter().for_each(|space| space.refuse_unmappings(count));
        true
    }
}
