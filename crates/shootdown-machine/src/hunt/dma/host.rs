//! The kernel's half of domains: references, pages for tables, units. What they keep is in
//! [`Kernel`] and the machine.

use std::marker::PhantomData;

use shootdown_dma::domain::Host;
use shootdown_dma::invalidate::{Command, QueueError, Ticket, Unit};
use shootdown_dma::sync::AtomicU64;
use shootdown_dma::table::memory::Table;
use shootdown_dma::table::{Format, TableMemory};
use shootdown_dma::{DeviceId, IovaRange, PhysAddr};

use super::decode;
use super::mistake::Mistake;
use super::sources::Addresses;
use super::world::Kernel;
use crate::hunt::{hw, io};

/// Tables, at most.
pub(super) const TABLES: usize = 8;

/// Tables of 64 KiB, at most.
const LARGEST: usize = TABLES / 2;

/// Pages of tables, at most.
const PAGES: usize = LARGEST * 16;

/// A word that the kernel keeps with each page of tables, by its number.
pub(super) type Sides = [AtomicU64; PAGES];

/// Places the tables of a world.
pub(super) fn place_tables(granule: u32) -> Vec<PhysAddr> {
    let pages = match granule {
        12 => io::tables::<TABLES>().to_vec(),
        14 => io::tables::<{ TABLES * 4 }>().to_vec(),
        _ => io::tables::<PAGES>().to_vec(),
    };
    pages.into_iter().step_by(1 << (granule - 12)).collect()
}

/// What a page led to before it was a table, if somebody reads it as one.
const SOMEBODYS: PhysAddr = PhysAddr(0x6000_0000);

/// As a [thing](hw::thing).
const FREE_TABLES: u32 = 1;

/// The kernel, to a domain with tables of this format.
pub(super) struct Devices<F>(PhantomData<fn() -> F>);

impl<F> Devices<F> {
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

// SAFETY: a frame is recycled when its owner has freed it and it is not held (`frames.rs`).
unsafe impl<F: Format> Host for Devices<F> {
    type Addresses = Addresses;
    type Format = F;
    type Tables = Pages;
    type Unit = Wire;
    type Pin = usize;

    fn pin(&self) -> usize {
        hw::this_cpu().index()
    }

    fn relax(&self) -> bool {
        io::relax();
        true
    }

    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        if !Kernel::here().config.errs(Mistake::HoldsNothing) {
            Kernel::here().frames.hold(first, pages);
        }
        true
    }

    fn release(&self, first: PhysAddr, pages: u64) {
        if !Kernel::here().config.errs(Mistake::HoldsNothing) {
            Kernel::here().frames.release(first, pages);
        }
    }
}

/// Pages for tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages;

/// The pages of a table.
fn chunks(table: PhysAddr, pages: usize) -> impl Iterator<Item = PhysAddr> {
    (0..pages as u64).map(move |n| PhysAddr(table.0 + n * 4096))
}

// SAFETY: pages of the machine, cleared when they are taken; who is given one has it until it is
// freed. Its word is the library's, who leaves it at 0.
unsafe impl TableMemory for Pages {
    /// A side table: it is as large as others here, though it need not be.
    fn allocate(&self) -> Option<PhysAddr> {
        let table = self.allocate_many(1);
        if table.is_some() {
            hw::witness("uses-spilled");
        }
        table
    }

    fn allocate_many(&self, pages: usize) -> Option<PhysAddr> {
        let kernel = Kernel::here();
        hw::thing(FREE_TABLES);
        let kept = usize::from(kernel.maker.get().is_some_and(|cpu| cpu != hw::this_cpu()));
        let free = kernel.free.get();
        let Some(left) = free.checked_sub(1).filter(|left| *left >= kept) else {
            hw::saw(0);
            hw::witness("no-table-left");
            return None;
        };
        kernel.free.set(left);
        let table = kernel.tables[left].get();
        hw::saw(table.0);
        let before = decode::leaf_by_chance(kernel.config.format, SOMEBODYS);
        chunks(table, pages).for_each(|page| io::table_is_taken(page, before));
        Some(table)
    }

    unsafe fn free(&self, page: PhysAddr) {
        // SAFETY: as the caller promises.
        unsafe { self.free_many(page, 1) }
    }

    unsafe fn free_many(&self, first: PhysAddr, pages: usize) {
        chunks(first, pages).for_each(io::table_is_free);
        hw::thing(FREE_TABLES);
        hw::witness("io-table-freed");
        let kernel = Kernel::here();
        let free = kernel.free.get();
        kernel.tables[free].set(first);
        kernel.free.set(free + 1);
    }

    unsafe fn side(&self, page: PhysAddr) -> Option<&AtomicU64> {
        let kernel = Kernel::here();
        kernel.config.side.then(|| &kernel.sides[io::table_number(page)])
    }

    unsafe fn table(&self, page: PhysAddr) -> &Table {
        io::table(page)
    }

    fn is_coherent(&self) -> bool {
        Kernel::here().config.coherent
    }

    fn write_back(&self, entries: &[AtomicU64]) {
        if !Kernel::here().config.errs(Mistake::NotWrittenBack) {
            io::write_back(entries);
        }
    }
}

/// A unit, by its number: told at once, without a queue in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire(pub usize);

/// What a port that makes a mistake makes of a command.
fn mistaken(command: Command) -> Command {
    let config = &Kernel::here().config;
    match command {
        Command::Pages { domain, range, leaf_only } => {
            let first = IovaRange::new(range.first(), 1).expect("a page");
            let range = if config.errs(Mistake::FirstPageOnly) { first } else { range };
            let leaf_only = leaf_only || config.errs(Mistake::HintAlways);
            Command::Pages { domain, range, leaf_only }
        }
        other => other,
    }
}

// SAFETY: `io::completed` returns a ticket when all commands up to it have taken effect, the
// devices' after the IOMMU's.
unsafe impl Unit for Wire {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        let mut commands: Vec<Command> = commands.iter().copied().map(mistaken).collect();
        // Within a submission the library leaves the order to the port.
        let config = &Kernel::here().config;
        let first = config.errs(Mistake::DevicesFirst);
        commands.sort_by_key(|c| c.is_for_device() != first);
        if config.survives && !config.errs(Mistake::ToldOnce) {
            // What survives one command is told twice, before devices are.
            let again: Vec<Command> =
                commands.iter().copied().filter(|c| !c.is_for_device()).collect();
            commands.splice(0..0, again);
        }
        io::submit(self.0, &commands)
    }

    fn granule(&self) -> u32 {
        Kernel::here().config.format.granule()
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        if Kernel::here().config.errs(Mistake::QueuedIsComplete) {
            return Ok(io::submitted(self.0));
        }
        if Kernel::here().config.errs(Mistake::NotDrained)
            && let Some(ticket) = io::carried_out(self.0)
        {
            return Ok(ticket);
        }
        io::completed(self.0)
    }

    fn answers(&self, device: DeviceId) -> bool {
        Kernel::here().config.faults == 0 || io::answers(device)
    }
}
