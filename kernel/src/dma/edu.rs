//! QEMU's `edu`, a device for teaching: it copies between memory and a page of its own
//! (docs/specs/edu.txt).
//!
//! | offset | register |
//! |---|---|
//! | 0x80 | DMA: from |
//! | 0x88 | DMA: to |
//! | 0x90 | DMA: bytes |
//! | 0x98 | DMA: 1 starts and is set while it runs; 2 means from the device to memory |
//!
//! Its page is at 0x40000 in DMA registers, and nowhere else. A copy takes 100 ms of the machine's
//! time, whatever its length. By default it drives 28 address bits, which is less than `virt` has
//! memory at; `dma_mask=0xffffffffff` gives it 40.

use super::pci::Function;
use crate::arch;
use crate::arch::pci::WINDOW;
use crate::memory;

const VENDOR: u16 = 0x1234;
const DEVICE: u16 = 0x11e8;

const FROM: u64 = 0x80;
const TO: u64 = 0x88;
const BYTES: u64 = 0x90;
const COMMAND: u64 = 0x98;

const START: u64 = 1;
const TO_MEMORY: u64 = 2;

/// The device's own page, as DMA registers name it.
const OWN: u64 = 0x4_0000;
const OWN_BYTES: u64 = 4096;

/// Milliseconds that a copy takes, and some.
const COPY: u32 = 101;

/// The device.
pub struct Edu {
    registers: u64,
    function: Function,
}

impl Edu {
    /// The first one.
    #[must_use]
    pub fn find() -> Option<Self> {
        let function = Function::find(VENDOR, DEVICE)?;
        Some(Self { registers: function.enable(WINDOW)?, function })
    }

    /// Which function it is: what an IOMMU knows it by.
    #[must_use]
    pub const fn function(&self) -> Function {
        self.function
    }

    fn register(&self, offset: u64) -> *mut u64 {
        (arch::PHYSICAL_BASE + self.registers + offset) as *mut u64
    }

    fn write(&self, offset: u64, value: u64) {
        // SAFETY: a register of the device, mapped as device memory.
        unsafe { self.register(offset).write_volatile(value) }
    }

    fn copy(&self, from: u64, to: u64, bytes: u64, direction: u64) {
        self.write(FROM, from);
        self.write(TO, to);
        self.write(BYTES, bytes);
        arch::barrier_for_devices();
        self.write(COMMAND, START | direction);
        // SAFETY: a register of the device; reading has no effect.
        while unsafe { self.register(COMMAND).read_volatile() } & START != 0 {
            arch::sleep_ms(COPY);
        }
    }

    /// The device reads `bytes` from memory into its page, at `offset`.
    pub fn read(&self, memory: u64, offset: u64, bytes: u64) {
        assert!(offset + bytes <= OWN_BYTES);
        self.copy(memory, OWN + offset, bytes, 0);
    }

    /// The device writes `bytes` of its page, from `offset` on, to memory.
    pub fn write_to(&self, memory: u64, offset: u64, bytes: u64) {
        assert!(offset + bytes <= OWN_BYTES);
        self.copy(OWN + offset, memory, bytes, TO_MEMORY);
    }

    /// Can it copy from memory to memory, by way of its page, without anything between?
    #[must_use]
    pub fn copies_untranslated(&self) -> bool {
        let (Some(from), Some(to)) = (memory::allocate(), memory::allocate()) else { return false };
        memory::fill(from, 0x0123_4567_89ab_cdef);
        memory::fill(to, 0);
        self.read(from, 0, 64);
        self.write_to(to, 0, 64);
        // SAFETY: the frame is this function's; the device has ended its copy.
        let seen = unsafe { memory::at(to).cast::<u64>().read_volatile() };
        memory::free(from);
        memory::free(to);
        seen == 0x0123_4567_89ab_cdef
    }
}
