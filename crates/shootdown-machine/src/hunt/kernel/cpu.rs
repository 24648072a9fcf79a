//! A CPU of the model kernel: its program, the border to user mode, its interrupt, and how it
//! flushes.

use shootdown::cpu_set::Bits;
use shootdown::facts::SplitTables;
use shootdown::gather::{Array, Gather, Keep};
use shootdown::regime::Regime;
use shootdown::{AddressSpace, CpuId, IrqsOff, Pinned, Request, Served, call_on, isolated};

use super::state::{Kernel, Mine, Room};
use super::tables::{Tables, range};
use super::{At, KernelMutant, Op, Port};
use crate::hostile::{Frame, TableId};
use crate::hunt::hw::{self, Change};
use crate::oracle::Invariant;

/// What a flush sets free.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    Frame(Frame),
    Table(TableId),
}

/// What an operation has unhooked.
pub(super) type Items = Array<Item, 16>;
/// What it has changed.
pub(super) type Changes = Array<Change, 24>;

/// A space that an operation uses, locked or not.
pub(super) struct Used<'k, P: Port> {
    pub room: &'k Room<P>,
    pub space: &'static AddressSpace<P>,
}

impl<P: Port> Clone for Used<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Port> Copy for Used<'_, P> {}

impl<P: Port> Used<'_, P> {
    pub fn root(&self) -> TableId {
        self.space.root()
    }
}

/// The executing CPU.
pub(super) struct Cpu<P: Port> {
    pub k: &'static Kernel<P>,
    pub pin: P::Pin,
    pub id: CpuId,
    pub mine: &'static Mine<P>,
    pub tables: Tables,
}

impl<P: Port> Cpu<P> {
    pub fn here() -> Self {
        let (k, pin) = (Kernel::<P>::get(), P::pin());
        let id = pin.cpu();
        Self { k, pin, id, mine: k.mine(id), tables: Tables::of(&k.config, P::Regime::publish) }
    }

    pub fn run(&self, ops: &[Op]) {
        for op in ops {
            hw::note(|| format!("begins {op}"));
            self.execute(*op);
        }
    }

    fn execute(&self, op: Op) {
        if self.mine.offline.get() && !matches!(op, Op::Online) {
            return;
        }
        match op {
            Op::Switch(space) => self.switch(space),
            Op::Lazy => self.lazy(),
            Op::Leave => self.leave(),
            Op::User => self.user(),
            Op::Copy => self.copy(),
            Op::Kernel => hw::kernel_code(),
            Op::Poll => self.poll(),
            Op::Call => self.call(),
            Op::Offline => self.offline(),
            Op::Online if self.mine.offline.get() => self.come_online(),
            Op::Online => {}
            Op::KernelPage(page) => self.kernel_page(page),
            Op::KernelTable => self.kernel_table(),
            Op::Retire(space) => self.retire(space),
            Op::Unshare(space) => self.in_space(space, |used| self.unshare(used)),
            Op::Peek(space) => self.in_space(space, |used| self.peek(used)),
            Op::Write(at) => self.write(at),
            Op::Move(from, to) => self.at(from, |used, page| self.move_page(used, page, to.page)),
            Op::MoveTable(from, to) => {
                self.at(from, |used, page| self.move_table(used, page, to.page));
            }
            Op::UnmapMany(at, count) => {
                self.at(at, |used, page| self.unmap_many(used, page, count));
            }
            Op::Map(at) => self.at(at, |used, page| self.map(used, page)),
            Op::Unmap(at) => self.at(at, |used, page| self.unmap(used, page)),
            Op::Discard(at) => self.at(at, |used, page| self.discard(used, page)),
            Op::UnmapAtomic(at) => self.at(at, |used, page| self.unmap_atomic(used, page)),
            Op::Defer(at) => self.at(at, |used, page| self.defer(used, page)),
            Op::Protect(at) => self.at(at, |used, page| self.protect(used, page)),
            Op::Grant(at) => self.at(at, |used, page| self.grant(used, page)),
            Op::Replace(at) => self.at(at, |used, page| self.replace(used, page)),
            Op::FreeTable(at) => self.at(at, |used, page| self.free_table(used, page)),
            Op::Split(at) => self.at(at, |used, page| self.split(used, page)),
            Op::Merge(at) => self.at(at, |used, page| self.merge(used, page)),
            Op::Walk(at) => self.at(at, |used, page| self.walk(used, page)),
            Op::Hint(at) => self.at(at, |used, page| self.hint(used, page)),
            Op::Migrate(at) => self.at(at, |used, page| self.migrate(used, page)),
            Op::Track(at) => self.at(at, |used, page| self.track(used, page)),
            Op::Cow(at) => self.at(at, |used, page| self.cow(used, page)),
            Op::Zap(at) => self.at(at, |used, page| self.zap(used, page)),
            Op::Clean(at) => self.at(at, |used, page| self.clean(used, page)),
            Op::Munmap(at) => self.at(at, |used, page| self.munmap(used, page)),
            Op::Driver(at) => self.at(at, |used, page| self.driver(used, page)),
            Op::Reclaim(one, other) => self.at(one, |first, page| {
                self.at(other, |second, at| self.reclaim([(first, page), (second, at)]));
            }),
            Op::Ticket(at) => self.at(at, |used, page| self.ticket(used, page)),
            Op::Begin(at) => self.at(at, |used, page| self.begin(used, page, false)),
            Op::Abandon(at) => self.at(at, |used, page| self.begin(used, page, true)),
            Op::FreeTableAfter(at) => {
                self.at(at, |used, page| self.free_table_after(used, page));
            }
            Op::ReclaimTight(one, other) => self.at(one, |first, page| {
                self.at(other, |second, at| self.reclaim_tight([(first, page), (second, at)]));
            }),
            Op::PinTag(space) => self.in_space(space, |used| self.pin_tag(used)),
            Op::UnpinTag(space) => self.in_space(space, |used| self.unpin_tag(used)),
            Op::Age(at) => self.at(at, |used, page| self.age(used, page)),
            Op::LazyUnmap(at) => self.at(at, |used, page| self.lazy_unmap(used, page)),
            Op::Redeem(space) => self.in_space(space, |used| self.redeem(used)),
            Op::Expire(space) => self.in_space(space, |used| self.expire(used)),
            Op::Tick => self.tick(),
        }
    }

    pub fn breaks(&self, mutant: KernelMutant) -> bool {
        self.k.breaks(mutant)
    }

    /// Uses a space for one operation, if it lives.
    pub fn in_space(&self, number: u8, f: impl FnOnce(Used<'_, P>)) {
        if let Some(space) = self.k.take(number) {
            f(Used { room: self.k.room(number), space });
            self.k.put(number);
        }
    }

    fn at(&self, at: At, f: impl FnOnce(Used<'_, P>, u32)) {
        // The last entry of a root is the kernel's.
        if u32::from(at.page) < self.tables.kernel_page(0) {
            self.in_space(at.space, |used| f(used, u32::from(at.page)));
        }
    }

    pub fn lock(&self, used: Used<'_, P>) {
        used.room.lock.lock(self.k, &self.pin);
    }

    // ------------------------------------------------------------ flushing

    /// Says which ways this CPU has taken where tags, or some of them, are machine-wide.
    pub fn seen(&self) {
        if self.k.config.wide == 0 && self.k.config.invlpgb == 0 {
            return;
        }
        let stats = P::slot(self.id).expect("this CPU has a slot").stats();
        let ways = [
            (stats.invalidations_none, "invalidation-none"),
            (stats.invalidations_local, "invalidation-local"),
            (stats.invalidations_broadcast, "invalidation-broadcast"),
            (stats.stale_tag_flushes, "stale-tag-flushed"),
            (stats.rollovers, "rollover"),
            (stats.trims, "trimmed"),
        ];
        ways.iter().filter(|(times, _)| *times != 0).for_each(|(_, way)| hw::witness(way));
    }

    /// Flushes and frees. What a flush that failed leaves pending comes back; nothing of it is
    /// free.
    #[allow(clippy::result_large_err)] // no allocation: a run that is abandoned would leak it
    pub fn finish(&self, gather: Gather<'_, P, Items>, changes: &Changes) -> Result<(), Items> {
        let kept = match gather.finish(&self.pin) {
            Ok(kept) => kept,
            Err((error, kept)) => {
                hw::witness("flush-refused");
                hw::note(|| format!("the flush fails: {error}"));
                if !self.breaks(KernelMutant::IgnoresFlushError) {
                    return Err(kept);
                }
                kept
            }
        };
        hw::revoked(changes.as_slice());
        self.seen();
        self.free(kept);
        Ok(())
    }

    /// As [`Self::finish`]; flushes again if need be.
    pub fn finish_or_repeat(
        &self,
        used: Used<'_, P>,
        gather: Gather<'_, P, Items>,
        changes: &Changes,
    ) {
        if let Err(items) = self.finish(gather, changes) {
            self.flush_again(used, items, changes);
        }
    }

    /// As [`Self::finish`], with the lock held, which is free afterwards; flushes again if need be.
    pub fn finish_and_unlock(
        &self,
        used: Used<'_, P>,
        gather: Gather<'_, P, Items>,
        changes: &Changes,
    ) {
        let done = self.finish(gather, changes);
        used.room.lock.unlock();
        if let Err(items) = done {
            self.flush_again(used, items, changes);
        }
    }

    /// A flush has failed, and is pending: tries again, now and then for good. What can't be
    /// flushed is never free again.
    pub fn flush_again(&self, used: Used<'_, P>, items: Items, changes: &Changes) {
        for _ in 0..2 {
            if used.space.flush(&self.pin, Request::space()).is_ok() {
                hw::witness("flush-repeated");
                hw::revoked(changes.as_slice());
                self.free_after_walkers(items);
                return;
            }
        }
        hw::witness("quarantined");
    }

    /// Flushes pages of a space. Says whether it worked.
    pub fn flush(&self, used: Used<'_, P>, first: u32, count: u32, freed_tables: bool) -> bool {
        let request = Request { freed_tables, ..Request::pages(range(first, count)) };
        used.space.flush(&self.pin, request).is_ok()
    }

    /// With the lock held: someone may have changed this page and not have flushed it yet. Nobody
    /// may trust that what the tables say is all that CPUs can do. Says whether it is so now.
    pub fn see_to_pending(&self, used: Used<'_, P>) -> bool {
        if used.space.is_pending() {
            hw::witness("pending-flush-seen");
        }
        used.space.complete_pending(&self.pin).is_ok()
    }

    pub fn free(&self, items: Items) {
        for item in items {
            match item {
                Item::Frame(frame) => hw::free_frame(frame),
                Item::Table(table) => {
                    hw::witness("table-page-freed");
                    hw::free_table(table);
                }
            }
        }
    }

    // ------------------------------------------------------------ programs

    fn switch(&self, to: u8) {
        let Some(space) = self.k.take(to) else { return };
        let with_irqs = self.breaks(KernelMutant::SwitchWithInterrupts);
        let before = if with_irqs { true } else { hw::set_irqs(false) };
        self.begin_aging();
        // SAFETY: (1) interrupts are off (a mutant aside, which the hunt must find); (2, 3) the
        // space is alive as long as it is used, and retired before its tables go; (4)
        // programs are not handlers; (5) offline CPUs run nothing.
        let switched = unsafe { shootdown::switch_to(&self.pin, space) };
        hw::note(|| format!("has switched: {switched:?}"));
        hw::witness(match switched {
            shootdown::Switched::Same => "switch-same",
            shootdown::Switched::CaughtUp => "lazy-caught-up",
            shootdown::Switched::Kept => "switch-kept",
            shootdown::Switched::Replayed => "switch-replayed",
            _ => "switch-flushed",
        });
        self.seen();
        self.check_aging();
        let left = self.mine.current.replace(Some((to, space)));
        P::task(Some(space));
        hw::set_irqs(before);
        if let Some((left, _)) = left {
            self.k.put(left);
        }
    }

    /// Runs no program any more.
    fn stop_program(&self) {
        P::task(None);
        if let Some((space, _)) = self.mine.current.take() {
            self.k.put(space);
        }
    }

    fn lazy(&self) {
        let before = hw::set_irqs(false);
        // SAFETY: interrupts are off, in a task, and the program ends here.
        unsafe { shootdown::enter_lazy::<P>(&self.pin) };
        hw::set_irqs(before);
        self.stop_program();
    }

    fn leave(&self) {
        let before = hw::set_irqs(false);
        // SAFETY: interrupts are off, in a task.
        unsafe { shootdown::leave::<P>(&self.pin) };
        hw::set_irqs(before);
        self.stop_program();
    }

    /// Interrupts are off: where they are not, a switch breaks with
    /// [`KernelMutant::SwitchWithInterrupts`] on purpose.
    pub(super) fn irqs_off(&self) -> IrqsOff<'_, P> {
        // SAFETY: called in handlers, and where interrupts were turned off.
        unsafe { IrqsOff::assume(&self.pin) }
    }

    fn is_split(&self) -> bool {
        P::Regime::facts().split_tables != SplitTables::No
    }

    fn user(&self) {
        if self.mine.current.get().is_none() {
            return;
        }
        if !self.is_split() {
            // SAFETY: the tables are not split.
            let _ = unsafe { shootdown::return_to_user::<P>(&self.pin) };
            if self.k.config.isolated {
                self.user_quietly();
            } else {
                hw::user_code();
            }
            return;
        }
        let before = hw::set_irqs(false);
        self.enter_user();
        hw::set_irqs(before);
        hw::user_code();
        hw::set_irqs(false);
        self.leave_user();
        hw::set_irqs(before);
    }

    /// User code runs, which is interrupted for its own space only.
    fn user_quietly(&self) {
        let before = hw::set_irqs(false);
        // SAFETY: interrupts are off until user code runs, and every way in calls `from_user`
        // first.
        unsafe { isolated::to_user::<P>(&self.pin) };
        self.mine.isolated.set(true);
        hw::set_irqs(before);
        hw::user_code();
        hw::set_irqs(false);
        self.mine.isolated.set(false);
        self.back_from_isolated();
        hw::set_irqs(before);
    }

    /// The way in. Interrupts are off.
    fn back_from_isolated(&self) {
        self.begin_aging();
        if isolated::from_user(self.irqs_off()) {
            hw::witness("isolated-caught-up");
        }
        self.check_way_in();
        hw::kernel_code();
    }

    /// Loads the user half. Interrupts are off.
    fn enter_user(&self) {
        let kernel_half = hw::loaded();
        // SAFETY: interrupts are off, and the user half is loaded next, as it says.
        let entry = unsafe { shootdown::return_to_user::<P>(&self.pin) };
        if let Some((root, _)) = kernel_half {
            hw::load_root(root, entry.tag, entry.keep);
            if !entry.keep {
                if self.k.config.defects {
                    hw::load_root(root, entry.tag, false);
                }
                hw::witness("user-half-flushed");
            }
            self.check_aging();
        }
        self.mine.user_mode.set(kernel_half);
    }

    /// Loads the kernel half again. Interrupts are off.
    fn leave_user(&self) {
        if let Some((root, tag)) = self.mine.user_mode.take() {
            hw::load_root(root, tag, P::Regime::facts().tag_bits != 0);
        }
    }

    fn copy(&self) {
        if self.mine.current.get().is_some() {
            hw::user_code();
        }
    }

    fn call(&self) {
        let online = P::system().online();
        let before = self.k.cpus.each_ref().map(|m| m.calls.get());
        let called = call_on::<P, _>(&self.pin, &online, &|cpu| {
            let calls = &Kernel::<P>::get().mine(cpu).calls;
            calls.set(calls.get() + 1);
        });
        if called.is_err() || self.k.traits.hotplug {
            return;
        }
        hw::witness("call-returned");
        for cpu in online.iter() {
            if self.k.mine(cpu).calls.get() == before[P::place_of(cpu)] {
                let details = format!("{cpu} has not run the function of a call that has returned");
                hw::violation(Invariant::CallCompletes, details);
            }
        }
    }

    fn offline(&self) {
        // Until it is off, its walker reads the kernel's tables, and no flush reaches it any more.
        self.k.kernel_lock.lock(self.k, &self.pin);
        hw::set_irqs(false);
        // SAFETY: interrupts are off, in a task. This CPU stops, and does nothing until it comes
        // online.
        unsafe { shootdown::offline::<P>(&self.pin) };
        hw::halt();
        self.k.kernel_lock.unlock();
        self.stop_program();
        self.mine.offline.set(true);
        hw::witness("went-offline");
    }

    pub fn come_online(&self) {
        let before = hw::set_irqs(false);
        match shootdown::online(self.irqs_off()) {
            Ok(()) if self.mine.offline.replace(false) => {
                hw::witness("came-back-online");
                hw::set_irqs(true);
            }
            Ok(()) => {
                hw::set_irqs(before);
            }
            Err(error) => hw::violation(Invariant::ErrorsTotal, format!("online fails: {error}")),
        }
    }

    /// Frees what a flush has set free, when no walk without a lock is under way any more that
    /// began before. If that can't be found out, it is never free again.
    pub fn free_after_walkers(&self, items: Items) {
        if self.k.traits.walks && !self.breaks(KernelMutant::FreeTableWithoutSync) {
            let mut all = P::system().online();
            all.remove(self.id);
            if call_on::<P, _>(&self.pin, &all, &|_| {}).is_err() {
                hw::witness("quarantined");
                return;
            }
        }
        self.free(items);
    }

    fn poll(&self) {
        let _ = shootdown::poll::<P>(&self.pin);
    }

    fn peek(&self, used: Used<'_, P>) {
        let before = hw::set_irqs(false);
        self.lock(used);
        used.room.lock.unlock();
        hw::set_irqs(before);
    }

    /// Lockless walk, as "fast" lookups of user pages do it: what keeps the tables is that
    /// interrupts are off.
    fn walk(&self, used: Used<'_, P>, page: u32) {
        let before = hw::set_irqs(false);
        self.walk_begins();
        if let Some(word) = self.tables.walk(used.root(), page, 0) {
            hw::software_reads(word.table);
            let _ = hw::read_entry(word);
            hw::software_reads(word.table);
            hw::witness("lockless-walk");
        }
        self.walk_ends();
        hw::set_irqs(before);
    }
}

/// The handler of the interrupt.
pub(super) fn interrupt<P: Port>(id: CpuId) {
    let cpu = Cpu::<P>::here();
    let was_user = cpu.mine.user_mode.get().is_some();
    if was_user {
        cpu.leave_user();
    }
    let was_isolated = cpu.mine.isolated.get();
    if was_isolated {
        cpu.back_from_isolated();
    }
    match P::interrupt(cpu.irqs_off()) {
        Served::Done => {}
        Served::Again if cpu.breaks(KernelMutant::SwitchWithInterrupts) => {}
        Served::Again => {
            let details = format!("a maskable kick is not answered on {id}");
            hw::violation(Invariant::Progress, details);
        }
    }
    if was_user {
        hw::witness("interrupted-user-code");
        cpu.enter_user();
    }
    if was_isolated {
        // SAFETY: interrupts are off until the interrupted user code goes on.
        unsafe { isolated::to_user::<P>(&cpu.pin) };
    }
}

/// Puts an item into a gather that has room for all that one operation unhooks.
pub(super) fn put<T: Keep>(into: &mut T, item: T::Item) {
    assert!(into.push(item).is_ok(), "an operation unhooks less than there is room for");
}
