//! Units in software: registers that do what the manuals say when they are written, and memory that
//! says what is still allocated.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use shootdown_dma::PhysAddr;
use shootdown_iommu::{Bus, Memory};

/// Memory: a physical address is that of the process.
#[derive(Default)]
pub struct Pool {
    /// What is allocated.
    pub live: Mutex<BTreeMap<u64, usize>>,
    /// So many allocations succeed; `None`: all.
    pub limit: Option<usize>,
    /// It says that nothing is to be written back.
    pub coherent: bool,
}

impl Pool {
    /// Pages that are allocated.
    pub fn pages(&self) -> usize {
        self.live.lock().unwrap().values().sum()
    }
}

fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages * 4096, pages * 4096).unwrap()
}

// SAFETY: zeroed, aligned to their size, nobody else's until they are freed.
unsafe impl Memory for Pool {
    fn allocate(&self, pages: usize) -> Option<PhysAddr> {
        assert!(pages.is_power_of_two());
        let mut live = self.live.lock().unwrap();
        if self.limit.is_some_and(|limit| live.len() >= limit) {
            return None;
        }
        // SAFETY: the size is not 0.
        let at = unsafe { alloc_zeroed(layout(pages)) } as u64;
        live.insert(at, pages);
        Some(PhysAddr(at))
    }

    unsafe fn free(&self, first: PhysAddr, pages: usize) {
        assert_eq!(self.live.lock().unwrap().remove(&first.0), Some(pages));
        // SAFETY: allocated above.
        unsafe { dealloc(first.0 as *mut u8, layout(pages)) };
    }

    unsafe fn words(&self, first: PhysAddr, count: usize) -> &[AtomicU64] {
        // SAFETY: as the caller promises.
        unsafe { words(first.0, count) }
    }

    fn is_coherent(&self) -> bool {
        self.coherent
    }
}

/// Words at an address of the process.
///
/// # Safety
/// They are there, and stay.
pub unsafe fn words<'a>(at: u64, count: usize) -> &'a [AtomicU64] {
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(at as *const AtomicU64, count) }
}

/// A word of memory, as a unit reads it.
pub fn load(at: u64) -> u64 {
    // SAFETY: models read what they were told of, which is allocated as long as they are on.
    unsafe { words(at, 1)[0].load(Ordering::SeqCst) }
}

/// A word of memory, as a unit writes it.
pub fn store(at: u64, value: u64) {
    // SAFETY: as above.
    unsafe { words(at, 1)[0].store(value, Ordering::SeqCst) }
}

/// Bytes of registers.
const WINDOW: usize = 0x1_1000;

/// The values of registers.
pub struct File(Vec<u32>);

impl File {
    pub fn get32(&self, offset: usize) -> u32 {
        self.0[offset / 4]
    }

    pub fn get64(&self, offset: usize) -> u64 {
        u64::from(self.0[offset / 4]) | u64::from(self.0[offset / 4 + 1]) << 32
    }

    pub fn set32(&mut self, offset: usize, value: u32) {
        self.0[offset / 4] = value;
    }

    pub fn set64(&mut self, offset: usize, value: u64) {
        self.set32(offset, value as u32);
        self.set32(offset + 4, (value >> 32) as u32);
    }
}

/// What a unit does when a register is written.
pub trait Unit: Send {
    /// The register has another value, which it may store, or not.
    fn write(&mut self, file: &mut File, offset: usize, value: u64, width: usize);

    /// What devices reach.
    fn reach(&self, file: &File) -> Reach;
}

/// What devices reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// All of memory.
    All,
    /// What a kernel before has given them.
    Before,
    /// What this one has, or nothing.
    Now,
}

/// What a model has.
pub struct Inner<U> {
    pub file: File,
    pub unit: U,
    /// What devices have reached, each time that it has changed.
    pub history: Vec<Reach>,
}

/// A unit.
pub struct Model<U>(Mutex<Inner<U>>);

impl<U: Unit> Model<U> {
    pub fn new(unit: U, set: impl FnOnce(&mut File)) -> &'static Self {
        let mut file = File(vec![0; WINDOW / 4]);
        set(&mut file);
        let history = vec![unit.reach(&file)];
        Box::leak(Box::new(Self(Mutex::new(Inner { file, unit, history }))))
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut Inner<U>) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }

    pub fn history(&self) -> Vec<Reach> {
        self.with(|inner| inner.history.clone())
    }

    fn write(&self, offset: usize, value: u64, width: usize) {
        self.with(|Inner { file, unit, history }| {
            unit.write(file, offset, value, width);
            let reach = unit.reach(file);
            if history.last() != Some(&reach) {
                history.push(reach);
            }
        });
    }
}

// SAFETY: a model's registers, and what it writes to memory it writes before it returns.
unsafe impl<U: Unit> Bus for Model<U> {
    fn read32(&self, offset: usize) -> u32 {
        self.with(|inner| inner.file.get32(offset))
    }

    fn write32(&self, offset: usize, value: u32) {
        self.write(offset, value.into(), 4);
    }

    fn read64(&self, offset: usize) -> u64 {
        self.with(|inner| inner.file.get64(offset))
    }

    fn write64(&self, offset: usize, value: u64) {
        self.write(offset, value, 8);
    }

    fn barrier(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    fn relax(&self, turn: u32) -> bool {
        turn < 20
    }
}
