//! VMCSs, and which of them are active on a CPU.
//!
//! # The problem
//! A VMCS that was made active by VMPTRLD may stay in the CPU's caches until VMCLEAR. The code that
//! takes VMX away from the CPU (`cpu.rs`) has to clear each such VMCS first; otherwise the CPU may
//! write to its memory later, when another kernel owns it. That code comes by NMI, between any two
//! instructions of the code that loads and clears VMCSs.
//!
//! # The protocol
//! Each CPU has a [`LoadedList`]: a chain of the VMCSs that may be active on it. A VMCS is linked
//! before its VMPTRLD and unlinked after its VMCLEAR. Only the CPU itself changes its list, with
//! interrupts off; an NMI on the CPU only reads it.
//!
//! # Invariants
//! - L1: At every instruction the chain from the head is whole: a VMCS points at the rest before
//!   the head points at it, and its predecessor points past it before its own pointer changes.
//! - L2: A VMCS that may be active is on the list of the CPU where it is active. (One that is on
//!   the list may be inactive: VMCLEAR of it does no harm.)
//! - L3: A VMCS is on one list at most: it names the list that it is on.
//!
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | \[P1\] store of the next pointer, then of the head | Release | P3 | L1: an NMI that reads the head reads the pointer too |
//! | \[P2\] link, then VMPTRLD; VMCLEAR, then unlink | program order, kept by `asm!` without `nomem` | P3 | L2 |
//! | \[P3\] loads of the chain by an NMI of the same CPU | Acquire | P1 | |
//! | \[P4\] compare-exchange of the list's name from null in `load` | Acquire | P5 | L3: one of two CPUs that load at once wins; it sees what the CPU before has stored |
//! | \[P5\] store of null to the list's name, the last of `unlink` | Release | P4 | the pointer is null before another CPU links |

use core::fmt;
use core::marker::PhantomPinned;
use core::pin::Pin;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::instruction::{vmclear, vmptrld};
use super::operand::RegionAddress;
use crate::failure::Failure;
use crate::teardown;

/// A VMCS: its region, and what software must remember about it because the CPU does not report it.
#[derive(Debug)]
pub struct Vmcs {
    region: RegionAddress,
    /// The list that it is on; null: none (L3).
    on: AtomicPtr<LoadedList>,
    next: AtomicPtr<Vmcs>,
    /// VMLAUNCH has succeeded since the last VMCLEAR.
    launched: AtomicBool,
    /// How often virtualization had been taken away when this VMCS was loaded: a later emergency
    /// has cleared the VMCS.
    epoch: AtomicU32,
    /// The value of HOST_RSP; 0 if neither HOST_RSP nor HOST_RIP was written yet.
    host_rsp: AtomicU64,
    _pinned: PhantomPinned,
}

/// The VMCSs that may be active on one CPU.
#[derive(Debug)]
pub struct LoadedList {
    head: AtomicPtr<Vmcs>,
}

/// Why a VMCS was not loaded or cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// It is active on another CPU: clear it there first.
    Elsewhere,
    /// VMPTRLD or VMCLEAR failed.
    Failed(Failure),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere => {
                f.write_str("the VMCS is active on another CPU; clear it there first")
            }
            Self::Failed(failure) => failure.fmt(f),
        }
    }
}

impl core::error::Error for LoadError {}

impl Default for LoadedList {
    fn default() -> Self {
        Self::new()
    }
}

impl LoadedList {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Is nothing on it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire).is_null()
    }

    /// The regions of all that is on it, the last that was loaded first.
    ///
    /// # Safety
    /// As long as the iterator is used, the caller runs on the list's CPU, with interrupts off or
    /// in an NMI.
    pub unsafe fn each(&self) -> impl Iterator<Item = RegionAddress> {
        let mut at = self.head.load(Ordering::Acquire); // [P3]
        core::iter::from_fn(move || {
            // SAFETY: what is on a list stays in place (the contract of `Vmcs::load`), and the
            // chain is whole (L1).
            let vmcs = unsafe { at.as_ref() }?;
            at = vmcs.next.load(Ordering::Acquire); // [P3]
            Some(vmcs.region)
        })
    }

    /// Puts a VMCS on the list that names the list already.
    fn link(&self, vmcs: &Vmcs) {
        vmcs.next.store(self.head.load(Ordering::Relaxed), Ordering::Release); // [P1]
        self.head.store(ptr::from_ref(vmcs).cast_mut(), Ordering::Release); // [P1]
    }

    /// # Safety
    /// The caller runs on the list's CPU, with interrupts off; `vmcs` is on the list.
    unsafe fn unlink(&self, vmcs: &Vmcs) {
        let this = ptr::from_ref(vmcs).cast_mut();
        let rest = vmcs.next.load(Ordering::Relaxed);
        let mut from = &self.head;
        loop {
            let at = from.load(Ordering::Relaxed);
            if at == this {
                from.store(rest, Ordering::Release); // [P1]: the predecessor first (L1)
                break;
            }
            // SAFETY: `vmcs` is on the list, so the chain does not end before it; what is on it
            // stays in place.
            from = unsafe { &(*at).next };
        }
        vmcs.next.store(ptr::null_mut(), Ordering::Relaxed);
        vmcs.on.store(ptr::null_mut(), Ordering::Release); // [P5]
    }
}

impl Vmcs {
    /// The VMCS in this region, whose first four bytes hold the CPU's revision.
    #[must_use]
    pub const fn new(region: RegionAddress) -> Self {
        Self {
            region,
            on: AtomicPtr::new(ptr::null_mut()),
            next: AtomicPtr::new(ptr::null_mut()),
            launched: AtomicBool::new(false),
            epoch: AtomicU32::new(0),
            host_rsp: AtomicU64::new(0),
            _pinned: PhantomPinned,
        }
    }

    /// Its region.
    #[must_use]
    pub const fn region(&self) -> RegionAddress {
        self.region
    }

    /// Is it active on the CPU with this list?
    #[must_use]
    pub fn is_loaded_on(&self, list: &LoadedList) -> bool {
        ptr::eq(self.on.load(Ordering::Relaxed), list)
    }

    /// Has it been launched since it was cleared last?
    #[must_use]
    pub fn is_launched(&self) -> bool {
        self.launched.load(Ordering::Relaxed)
    }

    pub(super) fn set_launched(&self) {
        self.launched.store(true, Ordering::Relaxed);
    }

    /// What HOST_RSP holds, for the entry.
    pub(super) fn host_rsp(&self) -> *mut u64 {
        self.host_rsp.as_ptr()
    }

    /// Makes it active and current on this CPU. The first time, after a [clear](Self::clear), and
    /// after an emergency that was called off, its launch state is clear.
    ///
    /// # Errors
    /// [`LoadError::Elsewhere`]; [`LoadError::Failed`], and then it is on no list that it was not
    /// on before.
    ///
    /// # Safety
    /// 1. VMX is on on this CPU, `list` is this CPU's, interrupts are off, and the contract of the
    ///    [instructions](super::vmptrld) holds.
    /// 2. It and its region stay in place until [`clear`](Self::clear) has returned `Ok`. So does
    ///    the list.
    pub unsafe fn load(self: Pin<&Self>, list: &LoadedList) -> Result<(), LoadError> {
        let own = ptr::from_ref(list).cast_mut();
        // [P4]
        let linked = match self.on.compare_exchange(
            ptr::null_mut(),
            own,
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            Ok(_) => true,
            Err(on) if ptr::eq(on, list) => false,
            Err(_) => return Err(LoadError::Elsewhere),
        };
        if linked {
            list.link(self.get_ref()); // [P2]
        }
        let epoch = teardown::epoch();
        let fresh = linked || self.epoch.load(Ordering::Relaxed) != epoch;
        // SAFETY: the contract above. What was on no list is cleared first: a region that was never
        // active has no launch state otherwise (SDM vol. 3C, 25.11.3). What an emergency
        // has cleared may be cleared again.
        let done = unsafe {
            if fresh { vmclear(self.region) } else { Ok(()) }.and_then(|()| vmptrld(self.region))
        };
        if fresh {
            self.epoch.store(epoch, Ordering::Relaxed);
            self.launched.store(false, Ordering::Relaxed);
            // HOST_RSP and HOST_RIP are written at the next entry, which may be by another
            // function.
            self.host_rsp.store(0, Ordering::Relaxed);
        }
        done.map_err(|failure| {
            if linked {
                // SAFETY: it was linked above, on this CPU.
                unsafe { list.unlink(self.get_ref()) };
            }
            LoadError::Failed(failure)
        })
    }

    /// Writes it back to its memory and makes it inactive, so that another CPU can load it.
    ///
    /// While virtualization is taken away it counts as cleared: the emergency did it.
    ///
    /// # Errors
    /// [`LoadError::Elsewhere`], also where it is on no list; [`LoadError::Failed`], and then it is
    /// still on the list.
    ///
    /// # Safety
    /// As the first of [`load`](Self::load).
    pub unsafe fn clear(self: Pin<&Self>, list: &LoadedList) -> Result<(), LoadError> {
        if !self.is_loaded_on(list) {
            return Err(LoadError::Elsewhere);
        }
        // SAFETY: the contract above; it is this CPU's.
        match unsafe { vmclear(self.region) } {
            Ok(()) | Err(Failure::Gone) => {}
            Err(failure) => return Err(LoadError::Failed(failure)),
        }
        self.launched.store(false, Ordering::Relaxed);
        // SAFETY: it is on this CPU's list. [P2]
        unsafe { list.unlink(self.get_ref()) };
        Ok(())
    }
}

impl Drop for Vmcs {
    fn drop(&mut self) {
        assert!(self.on.get_mut().is_null(), "a VMCS was dropped while it is active on a CPU");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmx::Capabilities;
    use std::vec::Vec;

    fn vmcs(page: u64) -> Vmcs {
        let capabilities = Capabilities::gather(|_| 0);
        Vmcs::new(RegionAddress::new(page << 12, 40, &capabilities).unwrap())
    }

    /// As `load` does it.
    fn link(list: &LoadedList, one: &Vmcs) {
        one.on.store(ptr::from_ref(list).cast_mut(), Ordering::Relaxed);
        list.link(one);
    }

    fn pages(list: &LoadedList) -> Vec<u64> {
        // SAFETY: the test is the only one that knows the list.
        unsafe { list.each() }.map(|region| region.get() >> 12).collect()
    }

    #[test]
    fn any_of_several_can_go() {
        for gone in 1..=3 {
            let (list, all) = (LoadedList::new(), [vmcs(1), vmcs(2), vmcs(3)]);
            all.iter().for_each(|one| link(&list, one));
            assert_eq!(pages(&list), [3, 2, 1]);
            // SAFETY: it was linked above.
            unsafe { list.unlink(&all[gone - 1]) };
            let left: Vec<u64> =
                [3, 2, 1].into_iter().filter(|page| *page != gone as u64).collect();
            assert_eq!(pages(&list), left);
            for one in all.iter().filter(|one| one.is_loaded_on(&list)) {
                // SAFETY: it is on the list.
                unsafe { list.unlink(one) };
            }
            assert!(list.is_empty());
        }
    }

    /// What an NMI between any two instructions of `link` and `unlink` finds: single steps stand in
    /// for NMIs.
    #[cfg(target_os = "linux")]
    #[test]
    fn an_nmi_finds_a_whole_chain_at_every_instruction() {
        use core::arch::asm;
        use core::sync::atomic::AtomicU32;

        static LIST: LoadedList = LoadedList::new();
        /// Steps, and those at which the chain lacked one of the two that stay, or had more than
        /// all three.
        static STEPS: AtomicU32 = AtomicU32::new(0);
        static BROKEN: AtomicU32 = AtomicU32::new(0);

        extern "C" fn step(_: i32) {
            STEPS.fetch_add(1, Ordering::Relaxed);
            let (mut stay, mut length) = (0, 0);
            // SAFETY: the handler interrupted the only thread that changes the list.
            for region in unsafe { LIST.each() }.take(9) {
                length += 1;
                stay += u32::from(region.get() >> 12 <= 2);
            }
            BROKEN.fetch_add(u32::from(stay != 2 || length > 3), Ordering::Relaxed);
        }

        let (a, b, c) = (vmcs(1), vmcs(2), vmcs(3));
        link(&LIST, &a);
        // In the middle, and at the head.
        for first in [true, false] {
            if first {
                link(&LIST, &b);
            }
            // SAFETY: the handler only reads the list and counts; the trap flag is cleared again at
            // the end.
            unsafe {
                let handler: extern "C" fn(i32) = step;
                libc::signal(libc::SIGTRAP, handler as usize);
                asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
                if !first {
                    LIST.unlink(&b);
                }
                link(&LIST, &c);
                if !first {
                    link(&LIST, &b);
                }
                LIST.unlink(&c);
                asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq");
                libc::signal(libc::SIGTRAP, libc::SIG_DFL);
            }
            assert!(STEPS.load(Ordering::Relaxed) > 20, "nothing was stepped through");
            if first {
                assert_eq!(BROKEN.swap(0, Ordering::Relaxed), 0);
            }
        }
        // In the second round the one in the middle went away itself: the check sees that.
        assert!(BROKEN.load(Ordering::Relaxed) > 0);
        for one in [&a, &b] {
            // SAFETY: they are on the list.
            unsafe { LIST.unlink(one) };
        }
    }

    #[test]
    #[should_panic(expected = "dropped while it is active")]
    fn an_active_one_is_not_dropped_in_silence() {
        let list = LoadedList::new();
        let one = vmcs(1);
        link(&list, &one);
        drop(one);
    }
}
