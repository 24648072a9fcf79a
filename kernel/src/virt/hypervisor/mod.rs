//! A hypervisor, as small as one can be that keeps its host whole: one CPU, one guest at a time,
//! hypercalls.
//!
//! It is what the cases run their guests with, and the example of `shootdown-virt`. Read
//! [`vmx`](self) or `svm` from top to bottom: what an entry needs, the check of the host's bits
//! before each entry, the loop over exits. The guests (`guests.rs`) run in real mode, in protected
//! mode and in 64-bit mode, and reach memory at the addresses that the host has it at: nested
//! tables map the first four GiB to themselves.
//!
//! | hypercall: RAX | means |
//! |---|---|
//! | 0 | the guest ends |
//! | 1 to 255 | the console prints this byte |
//! | more | the guest tells RBX |

pub mod guests;
pub mod svm;
pub mod vmx;

use shootdown_virt::host_bits::GuestControl;
use shootdown_virt::vmx::GuestRegisters;

use crate::memory;

/// In which mode a guest begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// 16 bits: real mode, with all segments at the guest's code.
    Real,
    /// 32 bits: protected mode without paging; DS and CS at the guest's code.
    Protected,
    /// 64 bits, on the tables that the kernel booted with.
    Long,
}

impl Mode {
    /// The control registers that it begins with.
    pub fn control(self) -> GuestControl {
        const ET_NE: u64 = 0x30;
        match self {
            Self::Real => GuestControl { cr0: ET_NE, ..GuestControl::RESET },
            Self::Protected => GuestControl { cr0: ET_NE | 1, ..GuestControl::RESET },
            Self::Long => GuestControl {
                cr0: 0x8000_0000 | ET_NE | 1,
                cr3: crate::arch::paging::kernel_root(),
                cr4: 0x20,
                efer: 0x500,
                code64: true,
            },
        }
    }
}

/// A guest before its first instruction.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Its mode.
    pub mode: Mode,
    /// Where its code is; in 16 and 32 bits the base of its segments, too.
    pub code: u64,
    /// The end of its stack (64 bits).
    pub stack: u64,
    /// Its table of interrupts (64 bits).
    pub interrupts: u64,
}

/// Why the hypervisor's loop has something to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// A hypercall.
    Call,
    /// An interrupt or an NMI of the host's.
    Interrupt,
    /// A machine check, of which the host's handler has heard.
    MachineCheck,
    /// Anything else, by the CPU's number for it: the guest can't go on.
    Other(u64),
}

/// A machine, by either vendor's instructions.
pub trait Machine {
    /// Why the guest could not be entered.
    type Error: core::fmt::Debug;

    /// Runs the guest until it needs something. Accesses to control registers are seen to.
    ///
    /// # Errors
    /// The guest did not run.
    fn enter(&mut self) -> Result<Exit, Self::Error>;

    /// Its registers, RAX among them.
    fn registers(&mut self) -> &mut GuestRegisters;
}

/// Runs a guest until it ends; `told` hears of RAX and RBX of each hypercall, and says whether to
/// go on.
///
/// # Errors
/// Why the guest could not be entered, or the exit that nobody handles.
pub fn run<M: Machine>(
    machine: &mut M,
    mut told: impl FnMut(u64, u64) -> bool,
) -> Result<Exit, M::Error> {
    loop {
        let exit = machine.enter()?;
        match exit {
            Exit::Call => {
                let GuestRegisters { rax, rbx, .. } = *machine.registers();
                if rax == 0 || !told(rax, rbx) {
                    return Ok(exit);
                }
            }
            Exit::Interrupt => {
                // It is taken here, by the host's handler.
                crate::arch::interrupts::on();
                core::hint::spin_loop();
                crate::arch::interrupts::off();
                if crate::port::is_late() {
                    return Ok(exit);
                }
            }
            Exit::MachineCheck => {}
            Exit::Other(_) => return Ok(exit),
        }
    }
}

/// A frame of zeros.
pub fn frame() -> u64 {
    let frame = memory::allocate().expect("the suite begins with all frames");
    memory::fill(frame, 0);
    frame
}

/// Nested tables that map the first four GiB to themselves, by leaves of 2 MiB, which every CPU
/// has: the frames, the root first. Entries that name a table have the bits `table`, leaves have
/// `leaf`.
pub fn identity(table: u64, leaf: u64) -> [u64; 6] {
    let frames: [u64; 6] = core::array::from_fn(|_| frame());
    let store = |frame: u64, index: u64, entry: u64| {
        // SAFETY: the frames were allocated above, and no CPU walks them yet.
        unsafe { memory::at(frame + index * 8).cast::<u64>().write(entry) };
    };
    let [root, gibs, directories @ ..] = frames;
    store(root, 0, gibs | table);
    for (gib, directory) in (0..).zip(directories) {
        store(gibs, gib, directory | table);
        (0..512).for_each(|page| store(directory, page, gib << 30 | page << 21 | leaf));
    }
    frames
}
