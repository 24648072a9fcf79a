//! What runs in the guests: programs of a few instructions, each with VMCALL and with VMMCALL.
//!
//! | program | what it does |
//! |---|---|
//! | `hello` (16, 32, 64 bits) | prints a line byte by byte, and ends |
//! | `control` | reads CR4 and tells it; clears MCE, sets TSD, takes both back, telling CR4 each time; tells EFER where it is asked to |
//! | `registers` | turns every bit of its registers over, but R15 gets CR2 and CR2 gets RCX, and calls |
//! | `undefined` | executes UD2; its own handler of #UD tells [`HEARD`] |
//! | `quiet` | clears MCE and waits until its handler of machine checks has run, which tells [`HEARD`] |
//! | `call` | one hypercall after the other, with number [`HEARD`] and the count in RBX |

use core::arch::global_asm;

use shootdown_arch::x86_64::Vendor;

use super::{Mode, Start};
use crate::arch::features_of_cpu;

/// The number of a hypercall by which a guest says that it has heard of an exception, or tells a
/// value.
pub const HEARD: u64 = 0x100;

macro_rules! guests {
    ($vendor:literal, $call:literal) => {
        global_asm!(concat!(
            ".pushsection .text.guests_",
            $vendor,
            ", \"ax\"\n",
            // `lodsb` is the same byte in all three modes; only the address of the text differs.
            ".code16\n",
            ".balign 16\n",
            "guest_",
            $vendor,
            "_hello16:\n",
            "cld\n.byte 0xbe\n.short 7f - guest_",
            $vendor,
            "_hello16\n",
            "4: lodsb\n",
            $call,
            "\ntest al, al\njne 4b\nhlt\n",
            "7: .asciz \"16 bits\\n\"\n",
            ".code32\n",
            ".balign 16\n",
            "guest_",
            $vendor,
            "_hello32:\n",
            "cld\n.byte 0xbe\n.long 7f - guest_",
            $vendor,
            "_hello32\n",
            "4: lodsb\n",
            $call,
            "\ntest al, al\njne 4b\nhlt\n",
            "7: .asciz \"32 bits\\n\"\n",
            ".code64\n",
            ".balign 16\n",
            "guest_",
            $vendor,
            "_hello64:\n",
            "cld\nlea rsi, [rip + 7f]\n",
            "4: lodsb\n",
            $call,
            "\ntest al, al\njne 4b\nhlt\n",
            "7: .asciz \"64 bits\\n\"\n",
            ".balign 16\n",
            "guest_",
            $vendor,
            "_control:\n",
            "mov rbx, cr4\nmov eax, 0x100\n",
            $call,
            "\n",
            "mov rcx, cr4\nand rcx, ~0x40\nmov cr4, rcx\n",
            "mov rbx, cr4\nmov eax, 0x100\n",
            $call,
            "\n",
            "or rcx, 4\nmov cr4, rcx\n",
            "mov rbx, cr4\nmov eax, 0x100\n",
            $call,
            "\n",
            "and rcx, ~4\nor rcx, 0x40\nmov cr4, rcx\n",
            "mov rbx, cr4\nmov eax, 0x100\n",
            $call,
            "\n",
            "xor eax, eax\n",
            $call,
            "\nhlt\n",
            ".balign 16\n",
            "guest_",
            $vendor,
            "_efer:\n",
            "mov ecx, 0xc0000080\nrdmsr\nmov ebx, eax\nmov eax, 0x100\n",
            $call,
            "\n",
            "rdmsr\nor eax, 1\nwrmsr\nrdmsr\nmov ebx, eax\nmov eax, 0x100\n",
            $call,
            "\n",
            "xor eax, eax\n",
            $call,
            "\nhlt\n",
            ".balign 16\n",
            "guest_",
            $vendor,
            "_registers:\n",
            "mov r15, cr2\n",
            "not rax\nnot rcx\nnot rdx\nnot rbx\nnot rbp\nnot rsi\nnot rdi\n",
            "not r8\nnot r9\nnot r10\nnot r11\nnot r12\nnot r13\nnot r14\n",
            "mov cr2, rcx\n",
            $call,
            "\nhlt\n",
            ".balign 16\n",
            "guest_",
            $vendor,
            "_undefined:\n",
            "ud2\nhlt\n",
            ".balign 16\n",
            "guest_",
            $vendor,
            "_quiet:\n",
            // With interrupts on: Bochs lets one end the guest only then.
            "sti\nmov rcx, cr4\nand rcx, ~0x40\nmov cr4, rcx\nxor r15d, r15d\n",
            "mov ebx, 1\nmov eax, 0x101\n",
            $call,
            "\n",
            "4: pause\ntest r15, r15\nje 4b\n",
            "xor eax, eax\n",
            $call,
            "\nhlt\n",
            // The guest's handler of machine checks, and of #UD.
            ".balign 16\n",
            "guest_",
            $vendor,
            "_heard:\n",
            "inc r15\nmov eax, 0x100\n",
            $call,
            "\niretq\n",
            ".balign 16\n",
            "guest_",
            $vendor,
            "_call:\n",
            "xor ebx, ebx\n",
            "4: inc rbx\npause\nmov eax, 0x100\n",
            $call,
            "\njmp 4b\n",
            ".popsection\n",
        ));
    };
}

guests!("vmx", "vmcall");
guests!("svm", "vmmcall");

/// A program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    Hello(Mode),
    Control,
    Efer,
    Registers,
    Undefined,
    Quiet,
    Call,
}

macro_rules! address {
    ($name:literal) => {{
        unsafe extern "C" {
            #[link_name = concat!("guest_vmx_", $name)]
            static VMX: u8;
            #[link_name = concat!("guest_svm_", $name)]
            static SVM: u8;
        }
        // Only the addresses of the symbols mean something.
        if is_svm() { (&raw const SVM) as u64 } else { (&raw const VMX) as u64 }
    }};
}

fn is_svm() -> bool {
    features_of_cpu().vendor == Vendor::Amd
}

/// A stack, and the table of interrupts, which has the guest's handler for two of them.
#[repr(C, align(16))]
struct Room {
    gates: [[u64; 2]; 32],
    stack: [u8; 4096],
}

static mut ROOM: Room = Room { gates: [[0; 2]; 32], stack: [0; 4096] };

/// The program before its first instruction.
pub fn start(program: Program) -> Start {
    let (mode, code) = match program {
        Program::Hello(Mode::Real) => (Mode::Real, address!("hello16")),
        Program::Hello(Mode::Protected) => (Mode::Protected, address!("hello32")),
        Program::Hello(Mode::Long) => (Mode::Long, address!("hello64")),
        Program::Control => (Mode::Long, address!("control")),
        Program::Efer => (Mode::Long, address!("efer")),
        Program::Registers => (Mode::Long, address!("registers")),
        Program::Undefined => (Mode::Long, address!("undefined")),
        Program::Quiet => (Mode::Long, address!("quiet")),
        Program::Call => (Mode::Long, address!("call")),
    };
    const HANDLED: [usize; 2] = [6, 18];
    let handler = address!("heard");
    // An interrupt gate of 64 bits, through the kernel's code segment.
    let low = handler & 0xffff | 0x08 << 16 | 0x8e00 << 32 | (handler >> 16 & 0xffff) << 48;
    let room = &raw mut ROOM;
    // SAFETY: one guest runs at a time, on the CPU that calls this.
    unsafe {
        HANDLED.into_iter().for_each(|vector| (*room).gates[vector] = [low, handler >> 32]);
        let stack = (&raw const (*room).stack) as u64 + 4096;
        Start { mode, code, stack, interrupts: (&raw const (*room).gates) as u64 }
    }
}
