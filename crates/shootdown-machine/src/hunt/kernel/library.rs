//! The library's own objects in the memory that hunted CPUs share.

use std::ptr::NonNull;

use shootdown::layout::{self, Part};
use shootdown::{CpuId, PerCpu, Platform, System};

use crate::hunt::{MAX_CPUS, hw};

/// A [`System`] and one [`PerCpu`] for each CPU, in shared memory: what a hunted port's
/// [`Platform::system`] and [`Platform::slot`] return.
#[derive(Debug)]
pub struct Library<P: Platform> {
    system: NonNull<System<P>>,
    slots: [Option<NonNull<PerCpu<P>>>; MAX_CPUS],
}

impl<P: Platform> Clone for Library<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Library<P> {}

impl<P: Platform> Library<P> {
    /// Places them; while a world boots, and when [`Platform::policy`] can be asked already.
    ///
    /// # Panics
    /// When no hunt is booting.
    #[must_use]
    pub fn place(cpus: u8) -> Self {
        let system = hw::place(System::<P>::new());
        name_parts(system, "system", &layout::system::<P>());
        let mut slots = [None; MAX_CPUS];
        for (cpu, slot) in (0u32..u32::from(cpus)).zip(&mut slots) {
            let placed = hw::place(PerCpu::<P>::new());
            name_parts(placed, &CpuId(cpu).to_string(), &layout::per_cpu::<P>());
            *slot = Some(placed);
        }
        Self { system, slots }
    }

    /// For [`Platform::system`].
    #[must_use]
    pub fn system(&self) -> &'static System<P> {
        // SAFETY: placed in the hunt's shared memory, which keeps it for the whole run; references
        // are used only by code that the run executes.
        unsafe { self.system.as_ref() }
    }

    /// For [`Platform::slot`], by the machine's number of the CPU.
    #[must_use]
    pub fn slot(&self, cpu: CpuId) -> Option<&'static PerCpu<P>> {
        let slot = (*self.slots.get(cpu.index())?)?;
        // SAFETY: as in `system`.
        Some(unsafe { slot.as_ref() })
    }
}

/// Names the parts of a placed object, and says which of them are one CPU's own.
pub(super) fn name_parts<T>(at: NonNull<T>, whose: &str, parts: &[Part]) {
    for part in parts {
        // SAFETY: the part lies inside of the object.
        let start = unsafe { at.cast::<u8>().add(part.offset) };
        hw::name(start, part.len, || format!("{whose}: {}", part.name));
        if part.own {
            hw::own(start, part.len);
        }
    }
}
