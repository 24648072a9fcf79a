//! A bare-metal image that holds the library against real instructions.
//!
//! The kernel has no processes and no devices: it brings up CPUs, builds page tables, implements the library's seam
//! (`port`), and runs cases in which a translation changes while CPUs hold it. Each case runs twice: once without the
//! invalidation, where the stale entry must show (or the machine can't tell), and once through the library, where it
//! must not.
//!
//! | where | what |
//! |---|---|
//! | `arch` | what differs between architectures, behind one set of names |
//! | `boot`, `cmdline`, `console`, `verdict` | the way in, the way out, and what is printed between |
//! | `memory`, `paging` | frames, and tables made of them |
//! | `port` | the library's seam: the second full implementer of it |
//! | `suite` | the cases |
#![no_std]
#![no_main]

mod arch;
mod boot;
mod cmdline;
mod console;
mod memory;
mod verdict;

use boot::BootInfo;
use cmdline::Options;
use verdict::Verdict;

/// CPUs that the kernel can run on: one word of the library's sets.
pub const MAX_CPUS: u32 = 64;

/// Where the boot CPU comes from `arch`, interrupts off.
pub fn kmain(info: &BootInfo) -> ! {
    say!("shootdown: {} image, loaded by {}", arch::NAME, info.loader);
    let options = Options::parse(info.command_line, |word| {
        say!("command line: '{word}' means nothing here and is ignored");
    });
    memory::init(info);
    let frame = memory::allocate().expect("there is memory");
    // SAFETY: the frame is this function's.
    let held = unsafe {
        let word = memory::at(frame).cast::<u64>();
        word.write_volatile(options.seed);
        word.read_volatile() == options.seed
    };
    memory::free(frame);
    if held { Verdict::Pass } else { Verdict::Fail }.end()
}

/// Where every other CPU comes from `arch`, interrupts off.
pub fn ap_main() -> ! {
    loop {
        arch::interrupts::wait();
    }
}

#[panic_handler]
fn panic(why: &core::panic::PanicInfo<'_>) -> ! {
    arch::interrupts::off();
    console::print_regardless(format_args!("\n{why}\nverdict: {}\n", Verdict::Crashed));
    arch::exit(Verdict::Crashed.code())
}
