//! Units that read rings: VT-d, SMMUv3 and AMD-Vi, as their manuals describe the queue, and as
//! hostile as those allow.
//!
//! Commands are read in order and executed whenever the unit likes, until a wait or a barrier says
//! that they are. Devices fill their caches from the unit's. A slot can be refused, and a device
//! can fail to answer. The readers here are written from the manuals, not from the encoders.
#![allow(dead_code)] // each test uses its part

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use shootdown_dma_woven::invalidate::queue::Port;
use shootdown_dma_woven::{DeviceId, PhysAddr};

pub const STATUS_AT: u64 = 0x8000;
const EVERYWHERE: (u64, u64) = (0, u64::MAX);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Vtd,
    /// SYNCs store, or are only consumed.
    Smmu(bool),
    Amd,
}

/// What a slot says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Domain (`None`: all), pages.
    Own(Option<u64>, (u64, u64)),
    Device(u64, (u64, u64)),
    Config,
    Barrier,
    /// Stores these bits at this address.
    Store(u64, u64, u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The slot is refused, so many times (in whatever form).
    Refuse(u32),
    /// The device that the slot tells does not answer, so many times.
    Silent(u32),
}

#[derive(Debug, Default)]
pub struct State {
    pub iotlb: BTreeSet<(u64, u64)>,
    pub atc: BTreeSet<(u64, u64)>,
    running: Vec<Action>,
    pub head: u64,
    pub tail: u64,
    /// Positions read so far; faults are planned by it.
    pub read: u64,
    pub plan: Option<(u64, Fault)>,
    /// Devices that never answer.
    pub dead: BTreeSet<u64>,
    pub refused: bool,
    pub waiting_for_devices: bool,
    pub timed_out: bool,
    /// AMD: devices that have not answered, as the event log tells them.
    pub events: Vec<u64>,
    cons_error: u64,
    gerror: u32,
    gerrorn: u32,
    fsts: u32,
    pub faults: u32,
    /// The erratum: the first of two equal commands may leave everything as it is.
    pub survives: bool,
    spared: Vec<Action>,
    random: u64,
}

pub struct Hardware {
    pub kind: Kind,
    ring: Vec<AtomicU64>,
    status: AtomicU64,
    pub state: Mutex<State>,
}

impl Hardware {
    pub fn new(kind: Kind, slots: u64, start: u64, seed: u64) -> Self {
        let at = start & (2 * slots - 1);
        let state =
            State { head: at, tail: at, random: seed.wrapping_mul(2) | 1, ..State::default() };
        Self {
            kind,
            ring: (0..slots * 2).map(|_| AtomicU64::new(0)).collect(),
            status: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    fn slots(&self) -> u64 {
        self.ring.len() as u64 / 2
    }

    fn slot(&self, position: u64) -> [u64; 2] {
        let at = (position % self.slots()) as usize * 2;
        [0, 1].map(|w| self.ring[at + w].load(Ordering::Acquire))
    }

    /// A device of the domain keeps what the IOMMU has.
    pub fn refill(&self, device: u64, domain: u64) {
        let mut state = self.state.lock().unwrap();
        let pages: Vec<u64> = state.iotlb.iter().filter(|e| e.0 == domain).map(|e| e.1).collect();
        state.atc.extend(pages.into_iter().map(|page| (device, page)));
    }

    /// Is nothing left to read?
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.head == state.tail
    }

    /// Reads a slot, or executes what it has read.
    pub fn step(&self) {
        let mut state = self.state.lock().unwrap();
        let state = &mut *state;
        if !state.running.is_empty() && state.draw(2) == 0 {
            let n = state.draw(state.running.len() as u64) as usize;
            let action = state.running.swap_remove(n);
            return state.apply(action);
        }
        if state.refused || state.timed_out {
            return;
        }
        if state.head == state.tail {
            // Nothing is left that could wait for the device.
            if self.kind == Kind::Vtd && state.waiting_for_devices {
                self.time_out(state);
            }
            return;
        }
        let slot = self.slot(state.head);
        let action = self.decode(slot);
        let planned = state.plan.filter(|plan| state.read >= plan.0);
        match planned {
            Some((at, Fault::Refuse(times))) => {
                state.plan = (times > 1).then_some((at, Fault::Refuse(times - 1)));
                state.refused = true;
                state.faults += 1;
                return self.raise(state, 1, 1 << 4);
            }
            Some((at, Fault::Silent(times))) if matches!(action, Action::Device(..)) => {
                state.plan = (times > 1).then_some((at, Fault::Silent(times - 1)));
                return self.lose(state, action);
            }
            _ => {}
        }
        if matches!(action, Action::Device(device, _) if state.dead.contains(&device)) {
            return self.lose(state, action);
        }
        match action {
            Action::Barrier | Action::Store(..) if !state.running.is_empty() => {}
            // VT-d reads on behind a wait that is no fence. All of them are aborted.
            Action::Store(..) if state.waiting_for_devices && self.kind == Kind::Vtd => {
                self.read_on(state);
            }
            Action::Barrier | Action::Store(..) if state.waiting_for_devices => {
                self.time_out(state);
                if self.kind == Kind::Vtd {
                    self.read_on(state);
                }
            }
            Action::Store(at, data, bits) => {
                assert_eq!(at & !4, STATUS_AT, "a wait stores somewhere else");
                if bits == 64 {
                    self.status.store(data, Ordering::Release);
                } else if at == STATUS_AT {
                    self.status.store(data & 0xffff_ffff, Ordering::Release);
                }
                self.read_on(state);
            }
            Action::Barrier | Action::Config => self.read_on(state),
            action => {
                state.running.push(action);
                self.read_on(state);
            }
        }
    }

    /// A device does not answer what it is told.
    fn lose(&self, state: &mut State, action: Action) {
        let Action::Device(device, _) = action else { unreachable!() };
        state.faults += 1;
        match self.kind {
            Kind::Vtd if state.draw(2) == 0 => self.time_out(state),
            Kind::Vtd | Kind::Smmu(_) => state.waiting_for_devices = true,
            Kind::Amd => state.events.push(device),
        }
        self.read_on(state);
    }

    fn time_out(&self, state: &mut State) {
        state.waiting_for_devices = false;
        state.timed_out = true;
        self.raise(state, 3, 1 << 6);
    }

    fn read_on(&self, state: &mut State) {
        state.head = (state.head + 1) & (2 * self.slots() - 1);
        state.read += 1;
    }

    fn raise(&self, state: &mut State, cons: u64, fsts: u32) {
        match self.kind {
            Kind::Smmu(_) => {
                state.cons_error = cons;
                state.gerror ^= 1;
            }
            _ => state.fsts |= fsts,
        }
    }

    fn decode(&self, [low, high]: [u64; 2]) -> Action {
        match self.kind {
            Kind::Vtd => vtd(low, high),
            Kind::Smmu(_) => smmu(low, high),
            Kind::Amd => amd(low, high),
        }
    }
}

/// The pages of an address that says its size by its lowest zero (PCIe ATS).
fn sized(address: u64) -> (u64, u64) {
    let page = address >> 12;
    if address & 1 == 0 {
        return (page, page);
    }
    let order = page.trailing_ones() + 1;
    if order >= 52 {
        return EVERYWHERE;
    }
    (page >> order << order, (page >> order << order) + (1 << order) - 1)
}

fn vtd(low: u64, high: u64) -> Action {
    match (low & 0xf, (low >> 4) & 3) {
        (1, _) => Action::Config,
        (2, 1) => Action::Own(None, EVERYWHERE),
        (2, 2) => Action::Own(Some((low >> 16) & 0xffff), EVERYWHERE),
        (2, 3) => {
            let pages = 1 << (high & 0x3f);
            assert_eq!((high >> 12) % pages, 0, "not aligned");
            Action::Own(Some((low >> 16) & 0xffff), (high >> 12, (high >> 12) + pages - 1))
        }
        (3, _) => Action::Device((low >> 32) & 0xffff, sized(high)),
        (5, _) => {
            assert_eq!(low & 0x30, 0x20, "stores, and does not interrupt");
            if high & 4 != 0 { Action::Barrier } else { Action::Store(high, low >> 32, 32) }
        }
        _ => panic!("what is {low:#x} {high:#x}?"),
    }
}

fn smmu(low: u64, high: u64) -> Action {
    match low & 0xff {
        0x03..=0x06 => Action::Config,
        0x11 => Action::Own(Some(low >> 48), EVERYWHERE),
        0x12 => {
            let pages = match (high >> 10) & 3 {
                0 => 1,
                _ => (((low >> 12) & 31) + 1) << ((low >> 20) & 31),
            };
            Action::Own(Some(low >> 48), (high >> 12, (high >> 12) + pages - 1))
        }
        0x30 => Action::Own(None, EVERYWHERE),
        0x40 => {
            let pages = match high & 0x3f {
                52.. => EVERYWHERE,
                size => (high >> 12, (high >> 12) + (1 << size) - 1),
            };
            Action::Device(low >> 32, pages)
        }
        0x46 if low & 0x3000 == 0x1000 => Action::Store(high, low >> 32, 32),
        0x46 => Action::Barrier,
        _ => panic!("what is {low:#x} {high:#x}?"),
    }
}

fn amd(low: u64, high: u64) -> Action {
    match low >> 60 {
        1 if low & 1 != 0 => Action::Store(low & 0x000f_ffff_ffff_fff8, high, 64),
        1 => Action::Barrier,
        2 => Action::Config,
        3 => Action::Own(Some((low >> 32) & 0xffff), sized(high & !2)),
        4 => Action::Device(low & 0xffff, sized(high)),
        8 => Action::Own(None, EVERYWHERE),
        _ => panic!("what is {low:#x} {high:#x}?"),
    }
}

impl State {
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % below
    }

    fn apply(&mut self, action: Action) {
        if self.survives && matches!(action, Action::Own(..)) {
            match self.spared.iter().position(|spared| *spared == action) {
                Some(n) => drop(self.spared.swap_remove(n)),
                None if self.draw(2) == 0 => return self.spared.push(action),
                None => {}
            }
        }
        match action {
            Action::Own(domain, (first, last)) => self
                .iotlb
                .retain(|e| domain.is_some_and(|d| d != e.0) || !(first..=last).contains(&e.1)),
            Action::Device(device, (first, last)) => {
                self.atc.retain(|e| e.0 != device || !(first..=last).contains(&e.1));
            }
            _ => {}
        }
    }
}

// SAFETY: the registers are those of the kind; the ring is written by the queue alone; the status
// word is stored (Release) after what came before was executed; a mutex orders everything, so there
// is nothing to publish.
unsafe impl Port for Hardware {
    fn read32(&self, offset: usize) -> u32 {
        let state = self.state.lock().unwrap();
        match (self.kind, offset) {
            (Kind::Vtd, 0x34) => state.fsts,
            (Kind::Smmu(_), 0x60) => state.gerror,
            (Kind::Smmu(_), 0x64) => state.gerrorn,
            (Kind::Smmu(_), 0x9c) => (state.head | state.cons_error << 24) as u32,
            _ => panic!("read32 {offset:#x}"),
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.state.lock().unwrap();
        match (self.kind, offset) {
            (Kind::Vtd, 0x34) => {
                state.fsts &= !value;
                state.timed_out &= value & 1 << 6 == 0;
                state.refused &= value & 1 << 4 == 0;
            }
            (Kind::Smmu(_), 0x64) => {
                state.gerrorn = value;
                assert_eq!(state.gerror, value, "acknowledges what is not there");
                (state.refused, state.timed_out, state.cons_error) = (false, false, 0);
            }
            (Kind::Smmu(_), 0x98) => state.tail = u64::from(value),
            _ => panic!("write32 {offset:#x}"),
        }
    }

    fn read64(&self, offset: usize) -> u64 {
        let state = self.state.lock().unwrap();
        let slot = (state.head & (self.slots() - 1)) << 4;
        match (self.kind, offset) {
            (Kind::Vtd, 0x80) | (Kind::Amd, 0x2000) => slot,
            (Kind::Vtd, 0xb0) => 0,
            (Kind::Amd, 0x2020) => u64::from(!state.refused) << 4,
            (Kind::Amd, 0x18) => 1 << 12,
            _ => panic!("read64 {offset:#x}"),
        }
    }

    fn write64(&self, offset: usize, value: u64) {
        let mut state = self.state.lock().unwrap();
        match (self.kind, offset) {
            (Kind::Vtd, 0x88) | (Kind::Amd, 0x2008) => {
                // The register has no round; the tail is ahead of the head by less than one.
                let ahead = (value >> 4).wrapping_sub(state.head) & (self.slots() - 1);
                state.tail = (state.head + ahead) & (2 * self.slots() - 1);
            }
            (Kind::Amd, 0x18) => state.refused &= value & 1 << 12 == 0,
            _ => panic!("write64 {offset:#x}"),
        }
    }

    fn ring(&self) -> &[AtomicU64] {
        &self.ring
    }

    fn status(&self) -> &AtomicU64 {
        &self.status
    }

    fn status_address(&self) -> PhysAddr {
        PhysAddr(STATUS_AT)
    }

    fn publish(&self) {}

    fn drain_events(&self, timed_out: &mut dyn FnMut(DeviceId)) {
        let events = std::mem::take(&mut self.state.lock().unwrap().events);
        events.into_iter().for_each(|device| timed_out(DeviceId(device as u32)));
    }
}
