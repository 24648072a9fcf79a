//! A barrier that one CPU makes another pass.

use std::sync::atomic::Ordering;

use shootdown::CpuId;

use super::machine::{step, with};
use super::memory::FENCES;

/// Makes a CPU pass a full memory barrier, and passes one: what it has stored is seen here from now
/// on, and what was stored here is seen there. (An interrupt whose handler is a fence, and that is
/// waited for; `membarrier`.)
pub fn on_cpu(cpu: CpuId) {
    step(FENCES, true, true);
    with(|h| {
        if h.running && cpu.index() < h.cpus.len() {
            #[allow(clippy::cast_possible_truncation)] // at most MAX_CPUS
            let (here, there) = (h.current, cpu.index() as u8);
            h.drain(here);
            h.drain(there);
            for each in [here, there, here] {
                h.memory.fence(each, Ordering::SeqCst);
            }
            h.witness("barrier-on-another");
        }
        h.saw(0xba44 ^ (cpu.index() as u64) << 16);
        h.works(|work| work.interrupts += 1);
        h.note(|| format!("makes {cpu} pass a barrier"));
    });
}
