//! The hardware's half of the library's seam: `shootdown-arch`, given this kernel's tables.

use shootdown_arch::x86_64::{
    Boot, Features as Cpuid, Leaves, Options, Port, RootFrame, X86Regime, read_cr3, read_cr4,
    write_cr4,
};
use spin::Once;

use crate::arch::Features;

unsafe extern "C" {
    static boot_root: u8;
}

/// What the CPU can do, and which of it is used.
struct Decided {
    cpuid: Cpuid,
    port: Port,
    features: Features,
    root: RootFrame,
}

static DECIDED: Once<Decided> = Once::new();

fn decided() -> &'static Decided {
    DECIDED.get().expect("the boot CPU decides before anything asks")
}

/// On the boot CPU, before the others start.
pub fn decide(tags: bool) {
    DECIDED.call_once(|| {
        let cpuid = Cpuid::decode(&Leaves::of_this_cpu());
        let options =
            Options { tags, page_spares_globals: cpuid.may_spare_globals(), ..Options::DEFAULT };
        let port = Port::new(&cpuid, options);
        let root = (&raw const boot_root) as u64;
        let root =
            RootFrame::new(root, cpuid.physical_bits).expect("the linker aligned the boot tables");
        let features = Features {
            tags: port.tags(),
            broadcast: cpuid.invlpgb.is_some(),
            sets_accessed_dirty: true,
        };
        Decided { cpuid, port, features, root }
    });
}

/// On every CPU: turns on what was decided.
///
/// # Panics
/// When this CPU is another kind than the first one.
pub fn enter() {
    let own = Cpuid::decode(&Leaves::of_this_cpu());
    assert!(own == decided().cpuid, "this CPU has not what the first one has: {own:?}");
    if decided().port.tags() {
        // SAFETY: the CPU has PCIDs (the port says so), CR3 names PCID 0 since boot, and no handler
        // of this kernel touches CR4.
        unsafe {
            let on = read_cr4().with_pcide(read_cr3());
            write_cr4(on.expect("global pages are on, and PCID 0 is loaded, since boot"));
        }
    }
}

/// What CPUID says.
pub fn features_of_cpu() -> &'static Cpuid {
    &decided().cpuid
}

/// What the suite may ask for.
#[must_use]
pub fn features() -> &'static Features {
    &decided().features
}

/// The CPU's own root, which maps nothing of any space.
pub fn kernel_root() -> RootFrame {
    decided().root
}

/// This kernel's tables.
pub struct Hardware;

// SAFETY: 1. `decide` ran before the first call, and `enter` on every CPU, which refuses one that
// is not like the first.
// 2. The boot tables map all that the kernel uses, are static, and map no space. 3. No handler
//    changes CR3 or CR4.
// 4. Masking is never turned on. 5. The boot tables' leaves are global, and so are those of
//    `paging::KERNEL` where a case
// does not say otherwise, and then it flushes them as what they are.
unsafe impl Boot for Hardware {
    fn port() -> &'static Port {
        &decided().port
    }

    fn kernel_root() -> RootFrame {
        decided().root
    }
}

/// The regime.
pub type Regime = X86Regime<Hardware>;

/// Tags are each CPU's own.
pub type Tags = shootdown::NoTags;

/// No allocator of machine-wide tags.
#[must_use]
pub fn tags() -> Option<&'static Tags> {
    None
}
