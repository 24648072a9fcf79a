//! The layout of the library's objects: names of their parts for timelines, and which lines only
//! one CPU uses. It is for machines that trace accesses, and is not part of ordinary builds.

use core::mem::{offset_of, size_of};

use crate::port::platform::Platform;
use crate::state::calls::{Descriptor, Mailbox, TREES};
use crate::state::cpu::{Ages, Isolated, PerCpu, Private, Rare, Shared};
use crate::state::residency::Residency;
use crate::state::space::AddressSpace;
use crate::state::system::System;
use crate::tags::generations::{CpuTag, SpaceTag};

/// A part of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Offset from the start of the object.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// Its name.
    pub name: &'static str,
    /// Only the CPU that owns the object uses the part, in whole lines.
    pub own: bool,
}

/// The name of the part that holds addresses of code and of stacks, which belong to the host.
pub const FUNCTION: &str = "call, function and data";

const fn part(offset: usize, len: usize, name: &'static str) -> Part {
    Part { offset, len, name, own: false }
}

/// The parts of a [`PerCpu`]. With the lazy flag on a line of its own, only the CPU itself uses the
/// private line.
#[must_use]
pub fn per_cpu<P: Platform>() -> [Part; 16] {
    let private = offset_of!(PerCpu<P>, private);
    let shared = offset_of!(PerCpu<P>, shared);
    let rare = offset_of!(PerCpu<P>, rare);
    let mailbox = offset_of!(PerCpu<P>, mailbox);
    let call = offset_of!(PerCpu<P>, call);
    [
        Part {
            own: P::policy().split_lazy_line,
            ..part(private, size_of::<Private<P>>(), "private line")
        },
        part(private + offset_of!(Private<P>, order), 8, "slot order and lazy flag"),
        Part { own: true, ..part(rare, size_of::<Rare>(), "handler's line") },
        part(shared + offset_of!(Shared<P>, loaded), 8, "loaded space"),
        part(shared + offset_of!(Shared<P>, acked), 8, "acknowledged generation"),
        part(
            shared + offset_of!(Shared<P>, generations),
            size_of::<P::Slots>(),
            "generation of a slot",
        ),
        part(offset_of!(PerCpu<P>, tag), size_of::<CpuTag>(), "versioned tag"),
        part(offset_of!(PerCpu<P>, ages), size_of::<Ages<P>>(), "ages"),
        part(offset_of!(PerCpu<P>, isolated), size_of::<Isolated>(), "side of the border"),
        part(mailbox, size_of::<Mailbox<P>>(), "mailbox"),
        part(mailbox + Mailbox::<P>::DEFERRED, 1, "mailbox, deferred flush"),
        part(mailbox + Mailbox::<P>::SUMMARY, 8, "mailbox, summary"),
        part(mailbox + offset_of!(Mailbox<P>, acked_trees), 8 * TREES, "acknowledged tree"),
        part(call, size_of::<Descriptor<P>>(), FUNCTION),
        part(call + Descriptor::<P>::BUSY, 1, "call, busy"),
        part(call + Descriptor::<P>::PENDING, size_of::<P::Mask>(), "call, CPUs pending"),
    ]
}

/// The parts of an [`AddressSpace`].
#[must_use]
pub fn space<P: Platform>() -> [Part; 9] {
    [
        part(AddressSpace::<P>::GENERATION, 8, "generation"),
        part(AddressSpace::<P>::PENDING, 8, "pending tables"),
        part(AddressSpace::<P>::TAG, size_of::<SpaceTag>(), "versioned tag of the space"),
        part(AddressSpace::<P>::AGES, 8, "age"),
        part(AddressSpace::<P>::SHARED_TAG, 4, "tag of the space for all CPUs"),
        part(offset_of!(AddressSpace<P>, log), size_of_val_of_log::<P>(), "range log"),
        part(offset_of!(AddressSpace<P>, residency), size_of::<Residency<P::Mask>>(), "CPU set"),
        part(
            AddressSpace::<P>::PENDING_FLUSHES,
            64,
            "open gathers, pending and completed generation",
        ),
        part(AddressSpace::<P>::COLD, 64, "retired flag and counts"),
    ]
}

const fn size_of_val_of_log<P: Platform>() -> usize {
    offset_of!(AddressSpace<P>, residency) - offset_of!(AddressSpace<P>, log)
}

/// The parts of a [`System`].
#[must_use]
pub fn system<P: Platform>() -> [Part; 7] {
    [
        part(System::<P>::ONLINE, size_of::<P::Mask>(), "online CPUs"),
        part(offset_of!(System<P>, active_trees), 8, "trees in flight"),
        part(
            offset_of!(System<P>, trees),
            size_of::<System<P>>() - offset_of!(System<P>, trees),
            "tree call",
        ),
        part(offset_of!(System<P>, tickets), 8, "tree tickets"),
        part(System::<P>::LAST_ID, 8, "last id"),
        part(System::<P>::FAILED, 8, "failed flushes of everything"),
        part(System::<P>::COMPLETED, 8, "completed flushes of everything"),
    ]
}
