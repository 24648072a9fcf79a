//! The memory that the CPUs of a hunt share, and the locations in it.

use std::alloc::Layout;
use std::ptr::NonNull;

use shootdown::layout::FUNCTION;

use super::memory::Location;

const SIZE: usize = 1 << 19;
const ALIGN: usize = 128;
/// Bytes of the smallest part that can be one CPU's own: a line.
const OWN: usize = 64;

/// A block of this size and alignment.
#[repr(C, align(128))]
#[derive(Clone)]
struct Line([u8; ALIGN]);

/// A region that is used from the bottom and emptied before each run: what is placed in it is at
/// the same offset in every run, and has the same location numbers.
pub(super) struct Arena {
    memory: Box<[Line]>,
    top: usize,
    /// Location of each byte address in use; 0 for none.
    locations: Vec<Location>,
    touched: Vec<u32>,
    names: Vec<(usize, usize, String)>,
    /// Parts that one CPU has for itself.
    own: Vec<bool>,
    /// Parts that are given back one day, and whether they were.
    mortal: Vec<Option<bool>>,
}

impl Arena {
    pub fn new() -> Self {
        Self {
            memory: vec![Line([0; ALIGN]); SIZE / ALIGN].into_boxed_slice(),
            top: 0,
            locations: vec![0; SIZE],
            touched: Vec::new(),
            names: Vec::new(),
            own: vec![false; SIZE / OWN],
            mortal: vec![None; SIZE / OWN],
        }
    }

    pub fn reset(&mut self) {
        self.top = 0;
        for offset in self.touched.drain(..) {
            self.locations[offset as usize] = 0;
        }
        self.names.clear();
        self.own.fill(false);
        self.mortal.fill(None);
    }

    /// Is the address one that only one CPU uses?
    #[inline]
    pub fn is_own(&self, offset: usize) -> bool {
        self.own[offset / OWN]
    }

    /// A part of the region, in units of a line, that only one CPU uses.
    pub fn set_own(&mut self, addr: usize, len: usize) {
        if let Some(offset) = self.offset(addr) {
            self.own[offset / OWN..(offset + len).div_ceil(OWN)].fill(true);
        }
    }

    /// Is the address part of something that is given back one day?
    #[inline]
    pub fn is_mortal(&self, offset: usize) -> bool {
        self.mortal[offset / OWN].is_some()
    }

    /// Was it?
    #[inline]
    pub fn is_gone(&self, offset: usize) -> bool {
        self.mortal[offset / OWN] == Some(true)
    }

    /// A part of the region, in units of a line, will be given back; `gone`: it is now.
    pub fn set_mortal(&mut self, addr: usize, len: usize, gone: bool) {
        if let Some(offset) = self.offset(addr) {
            self.mortal[offset / OWN..(offset + len).div_ceil(OWN)].fill(Some(gone));
        }
    }

    /// Room for a value.
    ///
    /// # Panics
    /// When the region is full, or the alignment is larger than a line pair.
    pub fn alloc(&mut self, layout: Layout) -> NonNull<u8> {
        assert!(layout.align() <= ALIGN, "nothing shared is aligned to more than {ALIGN}");
        let size = layout.size().next_multiple_of(ALIGN);
        assert!(self.top + size <= SIZE, "the hunt's shared memory is full ({SIZE} bytes)");
        let at = NonNull::from(&mut self.memory[self.top / ALIGN..]).cast::<u8>();
        self.top += size;
        at
    }

    /// Where an address is in the region; `None` when it is not shared memory.
    #[inline]
    pub fn offset(&self, addr: usize) -> Option<usize> {
        let offset = addr.wrapping_sub(self.memory.as_ptr() as usize);
        (offset < self.top).then_some(offset)
    }

    /// The location at an offset; 0 when it has none yet.
    #[inline]
    pub fn location(&self, offset: usize) -> Location {
        self.locations[offset]
    }

    /// Gives an offset a location.
    pub fn set_location(&mut self, offset: usize, location: Location) {
        self.locations[offset] = location;
        #[allow(clippy::cast_possible_truncation)] // below SIZE
        self.touched.push(offset as u32);
    }

    /// Names a part of the region, for people.
    pub fn name(&mut self, addr: usize, len: usize, name: String) {
        if let Some(offset) = self.offset(addr) {
            self.names.push((offset, len, name));
        }
    }

    /// The name of an address: the innermost that was given.
    pub fn name_of(&self, addr: usize) -> String {
        let Some(offset) = self.offset(addr) else { return "private memory".to_owned() };
        self.names
            .iter()
            .filter(|(start, len, _)| (*start..start + len).contains(&offset))
            .min_by_key(|(_, len, _)| *len)
            .map_or_else(|| format!("word {offset:#x}"), |(_, _, name)| name.clone())
    }

    /// A value of the word at this address, for people. The host's addresses differ from run to
    /// run.
    pub fn value_of(&self, addr: usize, value: u64) -> String {
        #[allow(clippy::cast_possible_truncation)] // an address of this host
        let at = value as usize;
        if self.offset(at).is_some() {
            return format!("(address of {})", self.name_of(at));
        }
        if value > 1 && self.name_of(addr).ends_with(FUNCTION) {
            return "(an address)".to_owned();
        }
        format!("{value:#x}")
    }
}
