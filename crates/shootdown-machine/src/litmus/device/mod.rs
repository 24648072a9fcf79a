//! Devices behind an IOMMU, as actors of a test.
//!
//! # The model
//! A device does the accesses of its program through an IOMMU, which walks the same tables as CPUs
//! do, from a root of the device's own. Whatever it may have cached it has, as in hunts: each
//! translation and each path that was reachable at some time since a command that covers it took
//! effect, and, with `absence`, that there was nothing. A device with a cache of its own has
//! whatever its IOMMU could have answered since the device was told to forget. So what a run
//! depends on is the order of steps alone.
//!
//! # The rules
//! | step | waits for |
//! |---|---|
//! | a command | its place in the queue: a CPU's store to the queue's tail, behind that CPU's earlier stores as far as its barriers say |
//! | a command takes effect | waits before it that are fences; on x86-64 also, if it is for a device, all commands before it |
//! | a wait stores | all commands before it, and accesses translated by what they removed; waits before it that are fences |
//! | translating, on a device | earlier accesses of the device are translated, and what it waits for has come |
//! | performing | earlier accesses are performed; writes wait for earlier writes only (they are posted) |
//!
//! A store to a table is seen by walkers when it leaves the store buffer; where they do not look
//! into CPUs' caches (`incoherent`), what the word was before may be read as well until the line is
//! written back.

mod caches;
mod queue;
mod step;

use std::collections::{BTreeMap, BTreeSet};

use super::machine::State;
use super::program::Instruction;
use super::value::Value;
pub(super) use caches::Leaf;
use caches::Walk;
use queue::Queued;

/// Registers and faults of device `n` are those of actor `FIRST + n` in conditions.
pub(super) const FIRST: usize = super::parse::MAX_PROGRAMS;
/// Most devices of a test.
pub(super) const MOST: usize = 2;
/// The longest program of one.
pub(super) const MAX_CODE: usize = 8;

/// What the IOMMU of a test is like.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Iommu {
    /// It may remember that nothing was mapped.
    pub absence: bool,
    /// It does not look into CPUs' caches.
    pub incoherent: bool,
}

/// A device of a test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Device {
    /// Where walks for it begin: a table's number. It is also what its translations are tagged
    /// with.
    pub root: u8,
    /// It has a cache of its own.
    pub caches: bool,
    pub code: Vec<Instruction>,
}

/// A command for the IOMMU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Command {
    /// Forget a page. `leaf`: paths may stay; `drain`: what waits for it waits for accesses that
    /// use it.
    Page { page: u8, root: u8, leaf: bool, drain: bool },
    /// Forget all of a root's.
    Domain { root: u8 },
    /// A device is to forget a page.
    Device { device: u8, page: u8 },
    /// Store a value when all that went before is done. `fence`: what follows begins then.
    Wait { var: u8, value: Value, fence: bool, drain: bool },
}

/// How far an access of a device has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Access {
    Waiting,
    /// Translated, by the device's own cache or not.
    Held {
        word: u8,
        own: bool,
    },
    Done(Value),
    Faulted,
}

impl Access {
    const fn finished(self) -> bool {
        matches!(self, Self::Done(_) | Self::Faulted)
    }
}

/// A device in a state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct DeviceState {
    pub accesses: Vec<Access>,
    cache: BTreeSet<Leaf>,
}

/// The IOMMU in a state, and the devices behind it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Io {
    queue: Vec<Queued>,
    walks: BTreeSet<Walk>,
    leaves: BTreeSet<Leaf>,
    /// Pages, by root, of which it may remember that there was nothing.
    absent: BTreeSet<(u8, u32)>,
    /// What walkers may read as well, by word.
    stale: BTreeMap<u8, BTreeSet<Value>>,
    pub devices: Vec<DeviceState>,
    /// A broken machine has let a command pass by.
    forgot: bool,
}

impl Io {
    /// Nothing was done yet.
    pub fn new(devices: &[Device]) -> Self {
        let idle = |device: &Device| DeviceState {
            accesses: vec![Access::Waiting; device.code.len()],
            cache: BTreeSet::new(),
        };
        Self { devices: devices.iter().map(idle).collect(), ..Self::default() }
    }
}

/// Has every device done all of its program?
pub(super) fn ended(state: &State) -> bool {
    state.io.devices.iter().all(|device| device.accesses.iter().all(|access| access.finished()))
}
