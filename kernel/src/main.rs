//! A bare-metal image that holds the library against real instructions.
//!
//! The kernel has no processes and no devices: it brings up CPUs, builds page tables, implements
//! the library's seam (`port`), and runs cases in which a translation changes while CPUs hold it.
//! Each case runs twice: once without the invalidation, where the stale entry must show (or the
//! machine can't tell), and once through the library, where it must not.
//!
//! | where | what |
//! |---|---|
//! | `arch` | what differs between architectures, behind one set of names |
//! | `boot`, `cmdline`, `console`, `verdict` | the way in, the way out, and what is printed between |
//! | `memory`, `paging` | frames, and tables made of them |
//! | `port` | the library's seam: the second full implementer of it |
//! | `crash` | bad ends, on demand |
//! | `work` | the other CPUs: functions to run there |
//! | `suite` | the cases |
//! | `bench` | the costs |
//! | `dma`, `heap` | the cases with a device behind an IOMMU, and the heap that the DMA library needs |
//! | `virt` | the cases of virtual machines, and a small hypervisor |
#![no_std]
#![no_main]

extern crate alloc;

mod arch;
mod bench;
mod boot;
mod cmdline;
mod console;
mod crash;
mod dma;
mod heap;
mod memory;
mod paging;
mod port;
mod suite;
mod verdict;
#[cfg(target_arch = "x86_64")]
mod virt;
mod work;

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
    arch::init(info, options.tags);
    let (name, policy) = options.policy;
    port::choose(policy);
    suite::prepare();
    let cpus = arch::start_cpus(options.cpus.min(MAX_CPUS));
    if !come_online() || !work::assemble(cpus) {
        say!("cpus: not all of them take work");
        Verdict::Crashed.end();
    }
    if let Some(sabotage) = options.sabotage {
        say!("sabotage: invalidations are left out: {sabotage:?}; cases must fail");
        port::sabotage(sabotage, cpus);
    }
    arch::interrupts::on();
    let features = arch::features();
    say!(
        "machine: {cpus} CPUs, tags {}, broadcast {}, policy {name}, seed {}",
        if features.tags { "yes" } else { "no" },
        if features.broadcast { "yes" } else { "no" },
        options.seed
    );
    if let Some(way) = options.crash {
        crash::run(way, cpus);
    }
    match options.suite {
        cmdline::Suite::Cpu => suite::run(&options, cpus),
        cmdline::Suite::Dma => dma::run(&options, cpus),
        #[cfg(target_arch = "x86_64")]
        cmdline::Suite::Virt => virt::run(&options),
        #[cfg(not(target_arch = "x86_64"))]
        cmdline::Suite::Virt => {
            say!("virt: the instructions of virtual machines are tried on x86-64 only");
            Verdict::NotObservable
        }
        cmdline::Suite::Bench => {
            bench::run(cpus);
            Verdict::Pass
        }
    }
    .end()
}

/// This CPU takes part in the library's protocols from now on.
fn come_online() -> bool {
    match port::quietly(shootdown::online) {
        Ok(()) => true,
        Err(error) => {
            say!("{}: {error}", arch::cpu());
            false
        }
    }
}

/// Where every other CPU comes from `arch`, interrupts off.
pub fn ap_main() -> ! {
    if come_online() {
        work::serve()
    }
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
