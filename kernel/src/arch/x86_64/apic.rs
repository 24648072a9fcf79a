//! The local interrupt controller: xAPIC, or x2APIC where CPUID has it (SDM 3A, chapter 10).

use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

use super::traps::SPURIOUS;

const BASE: u32 = 0x1b;
const BASE_X2APIC: u64 = 1 << 10;
const BASE_ENABLE: u64 = 1 << 11;
/// Where the registers of an xAPIC are, unless somebody moved them: the kernel does not.
const MMIO: u64 = 0xfee0_0000;
/// The first MSR of an x2APIC; its registers are sixteen times as dense.
const MSR: u32 = 0x800;

const ID: u32 = 0x20;
const EOI: u32 = 0xb0;
const SPURIOUS_VECTOR: u32 = 0xf0;
const TIMER: u32 = 0x320;
const TIMER_COUNT: u32 = 0x380;
const TIMER_DIVIDE: u32 = 0x3e0;
const ICR_LOW: u32 = 0x300;
const ICR_HIGH: u32 = 0x310;

const SOFTWARE_ENABLE: u32 = 1 << 8;
const PENDING: u32 = 1 << 12;

/// The interrupt command that begins the start of another CPU: INIT, asserted.
pub const INIT: u32 = 0xc500;
/// The command that raises a non-maskable interrupt.
pub const NON_MASKABLE: u32 = 0x400;
/// The one that names the page where it begins.
pub const STARTUP: u32 = 0x600;

static X2: AtomicBool = AtomicBool::new(false);

/// Is it an x2APIC?
pub fn is_x2() -> bool {
    X2.load(Ordering::Relaxed)
}

/// Can an interrupt be sent to the CPU with this id? An xAPIC's commands have eight bits for it,
/// and 255 is all.
pub fn can_name(id: u32) -> bool {
    is_x2() || id < 0xff
}

fn read(register: u32) -> u32 {
    if is_x2() {
        // SAFETY: the register exists in x2APIC mode, which `init` turned on.
        unsafe { Msr::new(MSR + (register >> 4)).read() as u32 }
    } else {
        // SAFETY: the registers are mapped to themselves, uncached by the memory type of that
        // range.
        unsafe { ((MMIO + u64::from(register)) as *const u32).read_volatile() }
    }
}

fn write(register: u32, value: u32) {
    if is_x2() {
        // SAFETY: as in `read`; the kernel owns the controller.
        unsafe { Msr::new(MSR + (register >> 4)).write(u64::from(value)) };
    } else {
        // SAFETY: as in `read`; the kernel owns the controller.
        unsafe { ((MMIO + u64::from(register)) as *mut u32).write_volatile(value) };
    }
}

/// On the boot CPU: decides the mode, and silences the old controllers, whose interrupts nobody
/// handles.
pub fn decide() {
    const X2APIC: u32 = 1 << 21;
    X2.store(core::arch::x86_64::__cpuid(1).ecx & X2APIC != 0, Ordering::Relaxed);
    for port in [0x21, 0xa1] {
        // SAFETY: masks all inputs of an 8259; without one, nothing is there.
        unsafe { Port::<u8>::new(port).write(0xff) };
    }
}

/// Turns this CPU's controller on; returns its id.
pub fn init() -> u32 {
    let mut base = Msr::new(BASE);
    // SAFETY: the modes are entered in the order that the manual asks for (10.12.5), and only where
    // CPUID has them.
    unsafe {
        let on = base.read() | BASE_ENABLE;
        base.write(on);
        if is_x2() {
            base.write(on | BASE_X2APIC);
        }
    }
    write(SPURIOUS_VECTOR, SOFTWARE_ENABLE | u32::from(SPURIOUS));
    let id = read(ID);
    if is_x2() { id } else { id >> 24 }
}

/// The interrupt that is being handled is handled.
pub fn end() {
    write(EOI, 0);
}

/// Raises `vector` on this CPU once, when so many cycles of its bus have passed.
pub fn after(cycles: u32, vector: u8) {
    const BY_ONE: u32 = 0b1011;
    write(TIMER_DIVIDE, BY_ONE);
    write(TIMER, u32::from(vector));
    write(TIMER_COUNT, cycles);
}

/// Calls that off.
pub fn never() {
    const MASKED: u32 = 1 << 16;
    write(TIMER_COUNT, 0);
    write(TIMER, MASKED);
}

/// Sends `command` (a vector, or one of the constants above) to the CPU with this id.
pub fn send(id: u32, command: u32) {
    if is_x2() {
        // ORDERING: a write of an x2APIC's MSR does not wait for earlier stores (10.12.3), and what
        // was stored before a kick must be seen by who is kicked.
        // SAFETY: fences have no precondition on x86-64.
        unsafe { core::arch::asm!("mfence", "lfence", options(nostack, preserves_flags)) };
        // SAFETY: as in `write`.
        unsafe { Msr::new(MSR + (ICR_LOW >> 4)).write(u64::from(id) << 32 | u64::from(command)) };
    } else {
        // An interrupt in between would use the same two registers.
        x86_64::instructions::interrupts::without_interrupts(|| {
            write(ICR_HIGH, id << 24);
            write(ICR_LOW, command);
            while read(ICR_LOW) & PENDING != 0 {
                core::hint::spin_loop();
            }
        });
    }
}
