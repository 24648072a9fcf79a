//! The interface of the library to a machine-wide allocator of tags.
//!
//! A port whose tags mean the same on every CPU
//! ([`TagScope::System`](crate::facts::TagScope::System)) has one [`Generations`] for its spaces
//! and returns it from [`Platform::tags`](crate::Platform::tags). The port chooses for how many
//! words and CPUs it has room; this trait hides that choice from the rest of the library. Other
//! ports name [`NoTags`].

use core::convert::Infallible;

use crate::base::ids::{CpuId, Tag};
use crate::base::sealed::Sealed;
use crate::tags::generations::{Activated, CpuTags, Generations, SpaceTag, TagsError};

/// A machine-wide allocator of versioned tags: [`Generations`] of some size, or [`NoTags`]. Two
/// spaces that get one tag use each other's entries, so no other crate implements it:
///
/// ```compile_fail
/// # use shootdown::tags::generations::{Activated, CpuTags, SpaceTag, TagsError};
/// # use shootdown::tags::versioned::Versioned;
/// # use shootdown::{CpuId, Tag};
/// struct OneForAll;
/// impl Versioned for OneForAll {
///     const EXIST: bool = true;
///     unsafe fn activate<C: CpuTags + ?Sized>(
///         &self, _: CpuId, _: &SpaceTag, _: &C, _: impl FnMut(), _: impl FnOnce(),
///     ) -> Activated {
///         Activated { tag: Tag(1), flush: false, rolled_over: false }
///     }
///     fn tag_of(&self, _: &SpaceTag) -> Option<Tag> { Some(Tag(1)) }
///     unsafe fn pin<C: CpuTags + ?Sized>(
///         &self, _: &SpaceTag, _: &C, _: impl FnMut(),
///     ) -> Result<Tag, TagsError> {
///         Ok(Tag(1))
///     }
///     unsafe fn unpin(&self, _: &SpaceTag, _: impl FnMut()) {}
///     fn serves(&self, _: u8, _: bool, _: CpuId) -> bool { true }
/// }
/// ```
pub trait Versioned: Sealed + Send + Sync + 'static {
    /// Are there such tags? If not, a kernel compiles no code for them.
    const EXIST: bool;

    /// See [`Generations::activate_fresh`].
    ///
    /// # Safety
    /// As [`Generations::activate_fresh`].
    unsafe fn activate<C: CpuTags + ?Sized>(
        &self,
        cpu: CpuId,
        space: &SpaceTag,
        cpus: &C,
        wait: impl FnMut(),
        fresh: impl FnOnce(),
    ) -> Activated;

    /// See [`Generations::tag_of`].
    fn tag_of(&self, space: &SpaceTag) -> Option<Tag>;

    /// See [`Generations::pin`].
    ///
    /// # Safety
    /// As [`Generations::pin`].
    ///
    /// # Errors
    /// [`TagsError::NoPinLeft`].
    unsafe fn pin<C: CpuTags + ?Sized>(
        &self,
        space: &SpaceTag,
        cpus: &C,
        wait: impl FnMut(),
    ) -> Result<Tag, TagsError>;

    /// See [`Generations::unpin`].
    ///
    /// # Safety
    /// As [`Generations::unpin`].
    unsafe fn unpin(&self, space: &SpaceTag, wait: impl FnMut());

    /// Was it made for tags of `bits` bits, in pairs or not, and for this CPU?
    fn serves(&self, bits: u8, pairs: bool, cpu: CpuId) -> bool;
}

impl<const WORDS: usize, const CPUS: usize> Sealed for Generations<WORDS, CPUS> {}

impl<const WORDS: usize, const CPUS: usize> Versioned for Generations<WORDS, CPUS> {
    const EXIST: bool = true;

    unsafe fn activate<C: CpuTags + ?Sized>(
        &self,
        cpu: CpuId,
        space: &SpaceTag,
        cpus: &C,
        wait: impl FnMut(),
        fresh: impl FnOnce(),
    ) -> Activated {
        // SAFETY: this function's contract.
        unsafe { self.activate_fresh(cpu, space, cpus, wait, fresh) }
    }

    fn tag_of(&self, space: &SpaceTag) -> Option<Tag> {
        Self::tag_of(self, space)
    }

    unsafe fn pin<C: CpuTags + ?Sized>(
        &self,
        space: &SpaceTag,
        cpus: &C,
        wait: impl FnMut(),
    ) -> Result<Tag, TagsError> {
        // SAFETY: this function's contract.
        unsafe { Self::pin(self, space, cpus, wait) }
    }

    unsafe fn unpin(&self, space: &SpaceTag, wait: impl FnMut()) {
        // SAFETY: this function's contract.
        unsafe { Self::unpin(self, space, wait) };
    }

    fn serves(&self, bits: u8, pairs: bool, cpu: CpuId) -> bool {
        Self::serves(self, bits, pairs, cpu)
    }
}

/// The allocator type of ports without machine-wide tags. It has no value.
#[derive(Clone, Copy, Debug)]
pub struct NoTags(Infallible);

impl Sealed for NoTags {}

impl Versioned for NoTags {
    const EXIST: bool = false;

    unsafe fn activate<C: CpuTags + ?Sized>(
        &self,
        _: CpuId,
        _: &SpaceTag,
        _: &C,
        _: impl FnMut(),
        _: impl FnOnce(),
    ) -> Activated {
        match self.0 {}
    }

    fn tag_of(&self, _: &SpaceTag) -> Option<Tag> {
        match self.0 {}
    }

    unsafe fn pin<C: CpuTags + ?Sized>(
        &self,
        _: &SpaceTag,
        _: &C,
        _: impl FnMut(),
    ) -> Result<Tag, TagsError> {
        match self.0 {}
    }

    unsafe fn unpin(&self, _: &SpaceTag, _: impl FnMut()) {
        match self.0 {}
    }

    fn serves(&self, _: u8, _: bool, _: CpuId) -> bool {
        match self.0 {}
    }
}
