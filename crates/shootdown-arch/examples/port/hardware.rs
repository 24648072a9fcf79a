//! The hardware's half of the seam. The README shows what is below the line.

// ---
use std::sync::OnceLock; // your kernel's own "set once at boot" cell

use shootdown_arch::x86_64::{Boot, Features, Leaves, Options, Port, RootFrame, X86Regime};

static PORT: OnceLock<Port> = OnceLock::new();
static KERNEL_ROOT: OnceLock<RootFrame> = OnceLock::new();

/// On the boot CPU, before the others start. Every CPU then sets CR4.PCIDE if and only if
/// `port.tags()`: see `Cr4::with_pcide`.
pub fn decide(kernel_root: RootFrame) {
    let features = Features::decode(&Leaves::of_this_cpu());
    let options = Options {
        // Repaired by the microcode you have? Then say `false`.
        page_spares_globals: features.may_spare_globals(),
        ..Options::DEFAULT
    };
    PORT.set(Port::new(&features, options)).expect("decided once");
    KERNEL_ROOT.set(kernel_root).expect("decided once");
}

pub struct Hardware;

// SAFETY: `decide` ran before the first call; all CPUs are alike and set up as it says.
unsafe impl Boot for Hardware {
    fn port() -> &'static Port {
        PORT.get().expect("decided at boot")
    }
    fn kernel_root() -> RootFrame {
        *KERNEL_ROOT.get().expect("decided at boot")
    }
}

/// Name this as `Platform::Regime`.
pub type Regime = X86Regime<Hardware>;
