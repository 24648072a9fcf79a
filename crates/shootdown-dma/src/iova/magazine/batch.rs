//! Batches: several operations under one exclusion.

use super::super::{AllocError, Allocate, FreeError, Want};
use super::class::{Class, first_of};
use super::inner::NotSupplied;
use super::round::Magazine;
use super::{Magazines, Pairs};
use crate::addr::IovaRange;

impl<A: Allocate> Magazines<A> {
    /// Lends the magazines of `cpu` to `f`, for several operations under one exclusion: for a list
    /// of buffers that is mapped, or for many buffers that are unmapped after an interrupt.
    /// Meanwhile other requests with the number of this CPU go to the inner allocator, as `f`'s do
    /// if another context uses the magazines.
    ///
    /// ```
    /// # use shootdown_dma::iova::magazine::{Config, Magazines};
    /// # use shootdown_dma::iova::{Allocate, Space, Tree, Want};
    /// # let magazines = Magazines::new(Tree::new(&Space::below(1 << 20))?, &Config::for_cpus(4))?;
    /// let page = Want::pages(1).expect("not zero");
    /// let buffers = magazines.batch(2, |batch| [(); 16].map(|()| batch.alloc(&page)));
    /// magazines.batch(2, |batch| buffers.into_iter().flatten().try_for_each(|b| batch.free(b)))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn batch<R>(&self, cpu: usize, f: impl FnOnce(&mut Batch<'_, A>) -> R) -> R {
        let mut work = Some(f);
        let done = self.cpus.enter_own(cpu, |pairs| {
            work.take().map(|f| f(&mut Batch { outer: self, cpu, pairs: Some(pairs) }))
        });
        match (done.flatten(), work) {
            (Some(done), _) => done,
            (None, Some(f)) => f(&mut Batch { outer: self, cpu, pairs: None }),
            (None, None) => unreachable!("the work was done, or is still there"),
        }
    }
}

/// The magazines of a CPU, lent for several operations ([`Magazines::batch`]).
pub struct Batch<'a, A> {
    outer: &'a Magazines<A>,
    cpu: usize,
    /// `None`: another context uses them.
    pairs: Option<&'a mut Pairs>,
}

impl<A: Allocate> Batch<'_, A> {
    /// As [`Allocate::alloc`].
    ///
    /// # Errors
    /// See [`AllocError`].
    #[inline]
    pub fn alloc(&mut self, want: &Want) -> Result<IovaRange, AllocError> {
        want.check()?;
        let Some(class) = Class::of(want.pages) else { return self.uncached(want) };
        let (outer, cpu) = (self.outer, self.cpu);
        let range = class.request(want, |highest| {
            let pairs = self.pairs.as_mut()?;
            if let Some(block) = pairs[class.0].top(highest) {
                return Some(block);
            }
            let (block, surplus) = outer.get(pairs, class, highest);
            if surplus.is_some() {
                outer.tidy(cpu, class, surplus);
            }
            block
        });
        match range {
            Ok(range) => Ok(range),
            Err(block) => first_of(self.supplied(class, &block)?, want.pages),
        }
    }

    /// As [`Allocate::free`].
    ///
    /// # Errors
    /// See [`FreeError`].
    #[inline]
    pub fn free(&mut self, range: IovaRange) -> Result<(), FreeError> {
        let (outer, cpu) = (self.outer, self.cpu);
        let Some(class) = Class::of(range.pages()) else { return outer.inner.free(cpu, range) };
        let (block, mut fresh) = (class.block(range)?, None);
        if let Some(pairs) = &mut self.pairs {
            if !outer.check && pairs[class.0].put(range.first(), class.most()) {
                return Ok(());
            }
            loop {
                let outcome = outer.put(pairs, class, range.first(), &mut fresh)?;
                match outer.settle(cpu, class, outcome, &mut fresh) {
                    Some(true) => return Ok(()),
                    Some(false) => break,
                    None => {}
                }
            }
        }
        outer.inner.free(cpu, block)
    }

    #[cold]
    fn supplied(&mut self, class: Class, want: &Want) -> Result<IovaRange, AllocError> {
        let (outer, cpu) = (self.outer, self.cpu);
        if let Some(pairs) = &mut self.pairs {
            let (pair, mut fresh) = (&mut pairs[class.0], None);
            loop {
                match outer.supply(cpu, class, want, pair, &mut fresh) {
                    Ok(block) => return Ok(block),
                    Err(NotSupplied::NeedsMagazine) => fresh = Magazine::new(),
                    Err(NotSupplied::NotSo) => break,
                }
                if fresh.is_none() {
                    break;
                }
            }
        }
        self.uncached(want)
    }

    #[cold]
    fn uncached(&mut self, want: &Want) -> Result<IovaRange, AllocError> {
        match (self.outer.inner.alloc(self.cpu, want), &mut self.pairs) {
            // The lent magazines are emptied here; those of other CPUs below.
            (Err(AllocError::Exhausted), Some(pairs)) => {
                self.outer.empty_pairs(self.cpu, pairs);
                self.outer.uncached(self.cpu, want)
            }
            (Err(AllocError::Exhausted), None) => self.outer.uncached(self.cpu, want),
            (outcome, _) => outcome,
        }
    }
}
