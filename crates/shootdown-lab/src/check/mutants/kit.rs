//! What scenes are made of: spaces with tables, and what a kernel does with them.

use std::cell::Cell;
use std::ptr::NonNull;

use shootdown::accessed::Aged;
use shootdown::facts::SplitTables;
use shootdown::sync::{AtomicU64, Ordering};
use shootdown::{
    AddressSpace, FlushError, Platform, Regime, Request, RetireError, Stride, VaRange, enter_lazy,
    flush_kernel, leave, offline, return_to_user, switch_to,
};
use shootdown_machine::hostile::{Descriptor, Frame, TableId, Word};
use shootdown_machine::hunt::hw;
use shootdown_machine::oracle::Invariant;

use super::port::{self, Rig, Rules};

/// Spaces of a scene.
pub const SPACES: usize = 4;
/// The page of the kernel.
const KERNEL_PAGE: u32 = 12;

/// A space and its tables: pages 0 to 3 under the first leaf table, 4 to 7 under the second.
pub struct Tree {
    /// The library's part.
    pub space: &'static AddressSpace<Rig>,
    root: TableId,
    /// With split tables: the root that user mode runs on.
    user: TableId,
    leaves: [TableId; 2],
}

/// What a scene's CPUs share.
pub struct Kit {
    trees: [Tree; SPACES],
    kernel_leaf: TableId,
    met: AtomicU64,
    /// For the scene's own use, traced.
    pub flags: [AtomicU64; 8],
    /// For the scene's own use, invisible to the adversary.
    pub cells: [Cell<u64>; 8],
    /// CPUs that are gone take no interrupts.
    pub gone: [Cell<bool>; 8],
}

thread_local! {
    static KIT: Cell<Option<NonNull<Kit>>> = const { Cell::new(None) };
}

/// The kit of this run.
pub fn kit() -> &'static Kit {
    let kit = KIT.get().expect("booted");
    // SAFETY: placed for the length of this run; the next run's `boot` replaces the reference
    // first.
    unsafe { kit.as_ref() }
}

fn place<T>(value: T) -> &'static T {
    // SAFETY: stays for the length of the run, which is as long as anything uses it.
    unsafe { hw::place(value).as_ref() }
}

fn map(table: TableId, index: u8, to: Descriptor) {
    let _ = hw::write_entry(Word::new(table, index), to);
}

/// Builds the kernel's tables, the port and three spaces with two pages under each leaf table.
pub fn boot(cpus: u8, rules: Rules) {
    let architecture = rules.architecture;
    hw::setup(hw::Setup { tables: 24, frames: 32, architecture, ..hw::Setup::default() });
    let split = rules.facts.split_tables != SplitTables::No;
    let (kernel, kernel_leaf) = (hw::new_table(), hw::new_table());
    let page = Descriptor::kernel_rw(hw::new_frame());
    let page = if split { page.without(Descriptor::GLOBAL) } else { page };
    map(kernel_leaf, 0, page);
    map(kernel, 3, Descriptor::table(kernel_leaf));
    port::boot(cpus, rules, kernel);
    let trees = std::array::from_fn(|_| {
        let (root, leaves) = (hw::new_table(), [hw::new_table(), hw::new_table()]);
        let user = if split { hw::new_table() } else { root };
        for (i, leaf) in (0..).zip(leaves) {
            for entry in 0..2 {
                map(leaf, entry, Descriptor::user_rw(hw::new_frame()));
            }
            map(root, i, Descriptor::table(leaf));
            if split {
                map(user, i, Descriptor::table(leaf));
            }
        }
        if split {
            map(user, 3, Descriptor::table(kernel_leaf));
        }
        map(root, 3, Descriptor::table(kernel_leaf));
        Tree { space: place(AddressSpace::new(root)), root, user, leaves }
    });
    let kit = hw::place(Kit {
        trees,
        kernel_leaf,
        met: AtomicU64::new(0),
        flags: [const { AtomicU64::new(0) }; 8],
        cells: [const { Cell::new(0) }; 8],
        gone: [const { Cell::new(false) }; 8],
    });
    KIT.set(Some(kit));
    hw::publish();
}

/// One of the scene's spaces.
pub fn tree(i: usize) -> &'static Tree {
    &kit().trees[i]
}

/// Waits until this many CPUs have come to as many meetings: they then know of each other what they
/// did.
pub fn meet(cpus: u64) {
    kit().met.fetch_add(1, Ordering::AcqRel);
    while kit().met.load(Ordering::Acquire) < cpus {
        hw::relax();
        if hw::irqs_are_on() {
            port::catch_up();
        }
    }
}

/// Says that something has happened. Who hears of it need not hear of anything else.
pub fn tell(flag: usize) {
    kit().flags[flag].store(1, Ordering::Relaxed);
}

/// Waits until someone has [`tell`]ed.
pub fn hear(flag: usize) {
    while kit().flags[flag].load(Ordering::Relaxed) == 0 {
        hw::relax();
    }
}

/// Switches to a space.
pub fn enter(i: usize) {
    hw::without_irqs(|| enter_now(i));
}

/// As [`enter`], without turning interrupts off: what comes is a non-maskable one.
pub fn enter_now(i: usize) {
    // SAFETY: a hunt's spaces live as long as the run. An interrupt that comes calls nothing but
    // the answer to a kick, which may come at any time.
    unsafe { switch_to(&Rig::pin(), tree(i).space) };
}

/// Runs a kernel thread from now on.
pub fn lazy() {
    // SAFETY: interrupts are off, in a task, which runs no user code before it switches.
    hw::without_irqs(|| unsafe { enter_lazy::<Rig>(&Rig::pin()) });
}

/// Leaves the loaded space.
pub fn deep_idle() {
    hw::without_irqs(leave_now);
}

/// As [`deep_idle`], without turning interrupts off: what comes is a non-maskable one.
pub fn leave_now() {
    // SAFETY: in a task. What comes calls nothing but the answer to a kick.
    unsafe { leave::<Rig>(&Rig::pin()) };
}

/// Goes offline, for good.
pub fn go_offline() {
    hw::set_irqs(false);
    // SAFETY: interrupts are off, in a task, and stay off; the program does nothing of the library
    // after.
    unsafe { offline::<Rig>(&Rig::pin()) };
    kit().gone[hw::this_cpu().index()].set(true);
}

/// Runs user code of the loaded space.
pub fn user() {
    port::catch_up();
    if Rig::facts().split_tables == SplitTables::No {
        if port::has_shared_tags() {
            hw::without_irqs(same_tag);
        }
        hw::user_code();
        port::note_use();
        return;
    }
    hw::without_irqs(|| {
        let Some((root, tag)) = hw::loaded() else { return };
        // SAFETY: interrupts are off, and the user half is loaded next, as it says.
        let entry = unsafe { return_to_user::<Rig>(&Rig::pin()) };
        let user = kit().trees.iter().find(|t| t.root == root).map_or(root, |t| t.user);
        hw::load_root(user, entry.tag, entry.keep);
        hw::user_code();
        hw::kernel_code();
        hw::load_root(root, tag, tag.0 != 0);
    });
}

/// The library knows under which tag the space is loaded.
fn same_tag() {
    if let Some((_, tag)) = hw::loaded()
        && Rig::slot(port::number(hw::this_cpu().index())).is_some()
    {
        // SAFETY: the tables are not split.
        let known = unsafe { return_to_user::<Rig>(&Rig::pin()) }.tag;
        if known != tag {
            let what = format!("user code runs under {tag:?}, and is taken to run under {known:?}");
            hw::violation(Invariant::TagReuse, what);
        }
    }
}

/// The request for one page.
pub fn page(page: u32) -> Request {
    Request::pages(pages(page, 1))
}

fn pages(first: u32, count: u64) -> VaRange {
    VaRange::new(u64::from(first) << 12, count, Stride::Page4K).expect("a small range")
}

impl Tree {
    /// The entry of a page.
    pub fn word(&self, page: u32) -> Word {
        #[allow(clippy::cast_possible_truncation)] // a page of eight
        Word::new(self.leaves[(page / 4) as usize], (page % 4) as u8)
    }

    /// The root's entry of a leaf table.
    pub fn top(&self, leaf: u8) -> Word {
        Word::new(self.root, leaf)
    }

    /// Takes a page out of the tables, and no more.
    pub fn take(&self, page: u32) -> hw::Change {
        hw::write_entry(self.word(page), Descriptor::ABSENT)
    }

    /// Takes a page out of the tables, flushes by `flush`, and gives the frame back if that went
    /// well.
    pub fn unmap_by<E>(&self, page: u32, flush: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let frame: Frame = hw::read_entry(self.word(page)).frame();
        let change = hw::write_entry(self.word(page), Descriptor::ABSENT);
        flush()?;
        hw::revoked(&[change]);
        hw::free_frame(frame);
        Ok(())
    }

    /// Unmaps a page.
    pub fn unmap(&self, at: u32) -> Result<(), FlushError> {
        self.unmap_by(at, || self.space.flush(&Rig::pin(), page(at)).map(drop))
    }

    /// Unhooks a leaf table with its pages, flushes by `flush`, and frees the table if that went
    /// well.
    pub fn free_table_by<E>(
        &self,
        i: u8,
        flush: impl FnOnce(Request) -> Result<(), E>,
    ) -> Result<(), E> {
        let change = hw::write_entry(Word::new(self.root, i), Descriptor::ABSENT);
        flush(table(i))?;
        hw::revoked(&[change]);
        hw::free_table(self.leaves[usize::from(i)]);
        Ok(())
    }

    /// Unhooks a leaf table and frees it.
    pub fn free_table(&self, i: u8) -> Result<(), FlushError> {
        self.free_table_by(i, |request| self.space.flush(&Rig::pin(), request).map(drop))
    }

    /// Unhooks a leaf table; what is returned frees it.
    pub fn unhook_table(&self, i: u8) -> (hw::Change, TableId) {
        let change = hw::write_entry(Word::new(self.root, i), Descriptor::ABSENT);
        (change, self.leaves[usize::from(i)])
    }

    /// Frees all tables of a retired space.
    pub fn free_all(&self) {
        hw::free_table(self.root);
        self.leaves.into_iter().for_each(hw::free_table);
    }
}

/// The flag that counts changes that the library was told of and that each CPU sees to by itself.
const TOLD: usize = 7;

impl Tree {
    /// Clears the accessed bit of a page, and tells the library.
    pub fn age(&self, at: u32) {
        let Some((_, change)) = hw::age_entry(self.word(at)) else { return };
        let aged = self.space.accessed_cleared(&Rig::pin(), pages(at, 1));
        if aged == Ok(Aged::Pending) {
            told(change, Invariant::AccessedBound);
        }
    }
}

/// The library was told of a change that each CPU sees to by itself.
pub fn told(change: hw::Change, promise: Invariant) {
    kit().flags[TOLD].fetch_add(1, Ordering::AcqRel);
    hw::deferred(change, promise);
}

/// A switch, a tick or a way in, after which no entry is used that the CPU was to see to before.
pub fn honours(switch: impl FnOnce()) {
    hw::without_irqs(|| {
        let told = kit().flags[TOLD].load(Ordering::Acquire);
        switch();
        hw::check_deferred(told as usize, None);
    });
}

/// The request for a freed leaf table: its two mapped pages.
pub fn table(i: u8) -> Request {
    Request { freed_tables: true, ..Request::pages(pages(u32::from(i) * 4, 2)) }
}

/// Unmaps the kernel's page.
pub fn unmap_kernel() -> Result<(), FlushError> {
    unmap_kernel_by(|range| flush_kernel::<Rig>(&Rig::pin(), range))
}

/// Unmaps the kernel's page, and flushes by `flush`.
pub fn unmap_kernel_by(
    flush: impl FnOnce(VaRange) -> Result<(), FlushError>,
) -> Result<(), FlushError> {
    let change = hw::write_entry(Word::new(kit().kernel_leaf, 0), Descriptor::ABSENT);
    flush(pages(KERNEL_PAGE, 1))?;
    hw::revoked(&[change]);
    Ok(())
}

/// Ends a space and frees its tables.
pub fn retire(i: usize) -> Result<(), RetireError> {
    tree(i).space.retire(&Rig::pin())?;
    tree(i).free_all();
    Ok(())
}
