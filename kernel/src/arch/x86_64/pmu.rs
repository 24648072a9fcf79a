//! TLB misses: walks of the tables that loads of this CPU had to wait for, by its performance
//! counters.
//!
//! | CPUs | event | select, mask |
//! |---|---|---|
//! | Intel, Haswell to Rocket Lake | `DTLB_LOAD_MISSES.WALK_COMPLETED` | 0x08, 0x0e |
//! | Intel, from Golden Cove on | the same | 0x12, 0x0e |
//! | AMD, Zen | `ls_l1_d_tlb_miss.all_l2_miss` (PMCx045) | 0x45, 0xf0 |
//!
//! (Intel's event lists, perfmon-events.intel.com; AMD's Processor Programming References of
//! families 17h to 1Ah.) The counters are those of architectural performance monitoring (SDM 3B,
//! 20.2) and of AMD's core extensions (APM 2, 13.2).
//!
//! What CPUID announces need not count: emulators and hypervisors accept the registers and leave
//! them at zero. So retired instructions are counted first, on the same counter, and where those
//! stand still there is no PMU.

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicU32, Ordering};

use x86_64::registers::model_specific::Msr;

/// What is counted: the select and the unit mask.
struct Event(u8, u8);

/// Retired instructions, under the same number on Intel's CPUs and on AMD's.
const RETIRED: Event = Event(0xc0, 0);

/// The registers of one counter.
struct Counter {
    select: u32,
    count: u32,
    /// Where all counters are enabled once more: bit 0 is this one.
    enable_all: Option<u32>,
}

/// Of architectural performance monitoring: IA32_PERFEVTSEL0, IA32_PMC0, IA32_PERF_GLOBAL_CTRL.
const INTEL: Counter = Counter { select: 0x186, count: 0xc1, enable_all: Some(0x38f) };

/// AMD's: PERF_CTL0, PERF_CTR0, PerfCntrGlobalCtl.
const AMD: Counter =
    Counter { select: 0xc001_0200, count: 0xc001_0201, enable_all: Some(0xc000_0301) };

/// The register that counts; 0 while none does.
static COUNTING: AtomicU32 = AtomicU32::new(0);

/// Family and model, as the manuals have them.
fn family_and_model() -> (u32, u32) {
    let eax = __cpuid(1).eax;
    let (family, model) = (eax >> 8 & 0xf, eax >> 4 & 0xf);
    match family {
        6 => (6, model | eax >> 12 & 0xf0),
        15 => (15 + (eax >> 20 & 0xff), model | eax >> 12 & 0xf0),
        _ => (family, model),
    }
}

/// Is this a small core of a CPU that has two kinds of them?
fn is_small_core() -> bool {
    const HYBRID: u32 = 1 << 15;
    const ATOM: u32 = 0x20;
    __cpuid(0).eax >= 0x1a && __cpuid(7).edx & HYBRID != 0 && __cpuid(0x1a).eax >> 24 == ATOM
}

fn intel() -> Result<(Counter, Event, &'static str), &'static str> {
    let (version, counters) = match __cpuid(0).eax {
        0..0xa => (0, 0),
        _ => (__cpuid(0xa).eax & 0xff, __cpuid(0xa).eax >> 8 & 0xff),
    };
    if version == 0 || counters == 0 {
        return Err("CPUID leaf 0xA announces no counters");
    }
    let event = match family_and_model() {
        _ if is_small_core() => return Err("no event is known for this kind of core"),
        // Haswell, Broadwell, Skylake and its kin, Ice Lake, Tiger Lake, Rocket Lake.
        (
            6,
            0x3c | 0x3f | 0x45 | 0x46 | 0x3d | 0x47 | 0x4f | 0x56 | 0x4e | 0x5e | 0x55 | 0x8e
            | 0x9e | 0xa5 | 0xa6 | 0x7d | 0x7e | 0x6a | 0x6c | 0x8c | 0x8d | 0xa7,
        ) => Event(0x08, 0x0e),
        // Alder Lake, Raptor Lake, Meteor Lake, Sapphire, Emerald and Granite Rapids.
        (6, 0x97 | 0x9a | 0xb7 | 0xba | 0xbf | 0xaa | 0xac | 0x8f | 0xcf | 0xad | 0xae) => {
            Event(0x12, 0x0e)
        }
        _ => return Err("no event is known for this model"),
    };
    let enable_all = INTEL.enable_all.filter(|_| version >= 2);
    Ok((Counter { enable_all, ..INTEL }, event, "DTLB_LOAD_MISSES.WALK_COMPLETED"))
}

fn amd() -> Result<(Counter, Event, &'static str), &'static str> {
    const EXTENDED_COUNTERS: u32 = 1 << 23;
    let last = __cpuid(0x8000_0000).eax;
    if last < 0x8000_0001 || __cpuid(0x8000_0001).ecx & EXTENDED_COUNTERS == 0 {
        return Err("CPUID announces no core performance counters");
    }
    // Families 17h, 19h, 1Ah: Zen to Zen 5.
    if !matches!(family_and_model().0, 0x17 | 0x19 | 0x1a) {
        return Err("no event is known for this family");
    }
    let second_version = last >= 0x8000_0022 && __cpuid(0x8000_0022).eax & 1 != 0;
    let enable_all = AMD.enable_all.filter(|_| second_version);
    Ok((Counter { enable_all, ..AMD }, Event(0x45, 0xf0), "ls_l1_d_tlb_miss.all_l2_miss"))
}

impl Counter {
    /// Counts the event from now on, at every privilege level.
    ///
    /// # Safety
    /// CPUID announces the counter.
    unsafe fn count(&self, event: &Event) {
        const USER: u64 = 1 << 16;
        const KERNEL: u64 = 1 << 17;
        const ENABLE: u64 = 1 << 22;
        let chosen = u64::from(event.1) << 8 | u64::from(event.0) | USER | KERNEL | ENABLE;
        // SAFETY: the caller's promise; counting changes nothing but the counter, whose overflow
        // raises no interrupt.
        unsafe {
            Msr::new(self.select).write(0);
            Msr::new(self.count).write(0);
            Msr::new(self.select).write(chosen);
            if let Some(all) = self.enable_all {
                let mut all = Msr::new(all);
                let others = all.read();
                all.write(others | 1);
            }
        }
        COUNTING.store(self.count, Ordering::Relaxed);
    }
}

/// This CPU counts its TLB misses from now on; says what exactly, or why it can't.
///
/// # Errors
/// Why there is nothing to count with.
pub fn start() -> Result<&'static str, &'static str> {
    const TURNS: u64 = 1000;
    COUNTING.store(0, Ordering::Relaxed);
    let vendor = __cpuid(0);
    let (counter, event, name) = match (vendor.ebx, vendor.edx, vendor.ecx) {
        (0x756e_6547, 0x4965_6e69, 0x6c65_746e) => intel()?, // GenuineIntel
        (0x6874_7541, 0x6974_6e65, 0x444d_4163) => amd()?,   // AuthenticAMD
        _ => return Err("no event is known for this vendor"),
    };
    // SAFETY: `intel` and `amd` answer only where CPUID announces the counter.
    unsafe { counter.count(&RETIRED) };
    let before = count();
    (0..TURNS).for_each(|turn| {
        core::hint::black_box(turn);
    });
    if count() - before < TURNS {
        COUNTING.store(0, Ordering::Relaxed);
        return Err("counters are announced and stand still");
    }
    // SAFETY: as above.
    unsafe { counter.count(&event) };
    Ok(name)
}

/// Did [`start`] succeed?
#[must_use]
pub fn is_counting() -> bool {
    COUNTING.load(Ordering::Relaxed) != 0
}

/// Misses so far; 0 where [`start`] did not succeed.
#[must_use]
pub fn count() -> u64 {
    match COUNTING.load(Ordering::Relaxed) {
        0 => 0,
        // SAFETY: `start` found the counter.
        register => unsafe { Msr::new(register).read() },
    }
}
