//! What this host tells about itself: the facts of a header, and the interrupt counts of a trailer.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use super::model::Header;

/// A header with everything but the command and who observed it.
#[must_use]
pub fn header() -> Header {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Header {
        kernel: kernel.trim().to_owned(),
        cpu_model: model
            .map_or(String::new(), |m| m.trim_start_matches([' ', '\t', ':']).to_owned()),
        cpus: u16::try_from(cpuinfo.lines().filter(|l| l.starts_with("processor")).count())
            .unwrap_or(u16::MAX),
        page_size: page_size().unwrap_or(4096),
        hypervisor: hypervisor(),
        started_unix: started.as_secs(),
        ..Header::default()
    }
}

/// How often each CPU was interrupted for a TLB flush since it booted; `None` where the kernel does
/// not tell.
#[must_use]
pub fn tlb_interrupts() -> Option<Vec<u64>> {
    let text = fs::read_to_string("/proc/interrupts").ok()?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("TLB:"))?;
    Some(line.split_whitespace().map_while(|word| word.parse().ok()).collect())
}

/// From the auxiliary vector, which is pairs of words.
fn page_size() -> Option<u32> {
    const AT_PAGESZ: u64 = 6;
    let words = fs::read("/proc/self/auxv").ok()?;
    let mut words =
        words.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().expect("eight bytes")));
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        if key == AT_PAGESZ {
            return u32::try_from(value).ok();
        }
    }
    None
}

#[cfg(target_arch = "x86_64")]
fn hypervisor() -> String {
    use std::arch::x86_64::__cpuid;
    const HYPERVISOR_PRESENT: u32 = 1 << 31;
    const HYPERVISOR_LEAF: u32 = 0x4000_0000;
    if __cpuid(1).ecx & HYPERVISOR_PRESENT == 0 {
        return String::new();
    }
    let leaf = __cpuid(HYPERVISOR_LEAF);
    let name: Vec<u8> =
        [leaf.ebx, leaf.ecx, leaf.edx].into_iter().flat_map(u32::to_le_bytes).collect();
    String::from_utf8_lossy(&name).trim_end_matches('\0').trim().to_owned()
}

#[cfg(not(target_arch = "x86_64"))]
fn hypervisor() -> String {
    String::new()
}
