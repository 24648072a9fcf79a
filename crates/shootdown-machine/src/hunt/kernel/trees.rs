//! Operations on whole tables and large pages.

use shootdown::Request;
use shootdown::gather::Gather;
use shootdown::sync::Ordering;

use super::cpu::{Changes, Cpu, Item, Items, Used, put};
use super::tables::range;
use super::{KernelMutant, Port};
use crate::hostile::{Descriptor, TableId, Word};
use crate::hunt::hw;

impl<P: Port> Cpu<P> {
    fn entries(&self) -> u32 {
        u32::from(self.tables.entries())
    }

    /// Pages of a table.
    #[allow(clippy::cast_possible_truncation)] // few entries
    fn words(&self, table: TableId) -> impl Iterator<Item = Word> + use<P> {
        (0..self.tables.entries()).map(move |index| Word::new(table, index))
    }

    pub(super) fn move_table(&self, used: Used<'_, P>, from: u32, to: u8) {
        let locked = !self.breaks(KernelMutant::MoveTableUnlocked);
        if locked {
            self.lock(used);
        }
        self.move_table_locked(used, from, u32::from(to));
        if locked {
            used.room.lock.unlock();
        }
    }

    fn move_table_locked(&self, used: Used<'_, P>, from: u32, to: u32) {
        let root = used.root();
        let words = (self.tables.walk(root, from, 1), self.tables.walk(root, to, 1));
        let (Some(source), Some(target)) = words else { return };
        let old = hw::read_entry(source);
        let is_table = old.present() && !old.has(Descriptor::LEAF);
        if source == target || !is_table || hw::read_entry(target).present() {
            return;
        }
        if !self.make_way(used, self.tables.table_base(to), self.entries()) {
            return;
        }
        let (_, change) = hw::swap_entry(source, Descriptor::ABSENT);
        if self.flush(used, self.tables.table_base(from), self.entries(), true) {
            hw::revoked(&[change]);
            hw::witness("table-moved");
            self.tables.make(target, old);
        }
    }

    pub(super) fn free_table(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.tables.walk(used.root(), page, 1) else {
            return used.room.lock.unlock();
        };
        let old = hw::read_entry(word);
        if !old.present() || old.has(Descriptor::LEAF) {
            return used.room.lock.unlock();
        }
        let table = old.next();
        let mut changes = Changes::default();
        let mut items = Items::default();
        let (_, change) = hw::swap_entry(word, Descriptor::ABSENT);
        put(&mut changes, change);
        for leaf in self.words(table) {
            let entry = hw::read_entry(leaf);
            if entry.present() {
                let (entry, change) = hw::swap_entry(leaf, Descriptor::ABSENT);
                put(&mut changes, change);
                put(&mut items, Item::Frame(entry.frame()));
            }
        }
        let base = self.tables.table_base(page);
        let freed_tables = !self.breaks(KernelMutant::FreeTableAsLeaf);
        if self.breaks(KernelMutant::FreeTableBeforeFlush) {
            hw::free_table(table);
        } else {
            put(&mut items, Item::Table(table));
        }
        if self.flush_with_tables(used, base, freed_tables) {
            hw::revoked(changes.as_slice());
            self.free_after_walkers(items);
            used.room.lock.unlock();
        } else {
            used.room.lock.unlock();
            self.flush_again(used, items, &changes);
        }
    }

    /// The flush for a table's span, through a gather as kernels do it.
    fn flush_with_tables(&self, used: Used<'_, P>, base: u32, freed_tables: bool) -> bool {
        let range = range(base, self.entries());
        let mut gather = Gather::<P, shootdown::gather::Array<(), 1>>::new(used.space);
        let put =
            if freed_tables { gather.table_freed(range, ()) } else { gather.unmapped(range, ()) };
        assert!(put.is_ok(), "there is room for one");
        let done = gather.finish(&self.pin).is_ok();
        self.seen();
        done
    }

    pub(super) fn split(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.tables.walk(used.root(), page, 1) else {
            return used.room.lock.unlock();
        };
        let old = hw::read_entry(word);
        if !old.present() || !old.has(Descriptor::LEAF) {
            return used.room.lock.unlock();
        }
        let table = hw::new_table();
        for (offset, leaf) in (0..).zip(self.words(table)) {
            let frame = crate::hostile::Frame(old.frame().0 + offset);
            self.tables.make(leaf, old.to_frame(frame));
        }
        let base = self.tables.table_base(page);
        let hasty = self.breaks(KernelMutant::SplitWithoutBreak);
        let between = if hasty { Descriptor::table(table) } else { Descriptor::ABSENT };
        let (_, change) = hw::swap_entry(word, between);
        if self.flush(used, base, self.entries(), false) {
            hw::revoked(&[change]);
            hw::witness("large-page-split");
            if !hasty {
                self.tables.make(word, Descriptor::table(table));
            }
        }
        used.room.lock.unlock();
    }

    pub(super) fn merge(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.tables.walk(used.root(), page, 1) else {
            return used.room.lock.unlock();
        };
        let old = hw::read_entry(word);
        if !old.present() || old.has(Descriptor::LEAF) {
            return used.room.lock.unlock();
        }
        let table = old.next();
        let first = hw::read_entry(Word::new(table, 0));
        let fits = |(offset, leaf): (u32, Word)| {
            let frame = crate::hostile::Frame(first.frame().0 + offset);
            hw::read_entry(leaf) == first.to_frame(frame)
        };
        if !first.present() || !(0..).zip(self.words(table)).all(fits) {
            return used.room.lock.unlock();
        }
        let base = self.tables.table_base(page);
        let hasty = self.breaks(KernelMutant::MergeWithoutFlush);
        let between = if hasty { first } else { Descriptor::ABSENT };
        let (_, change) = hw::swap_entry(word, between);
        let mut changes = Changes::default();
        let mut items = Items::default();
        put(&mut changes, change);
        put(&mut items, Item::Table(table));
        if self.flush_with_tables(used, base, true) {
            hw::revoked(changes.as_slice());
            hw::witness("pages-merged");
            if !hasty {
                self.tables.make(word, first);
            }
            self.free_after_walkers(items);
            used.room.lock.unlock();
        } else {
            used.room.lock.unlock();
            self.flush_again(used, items, &changes);
        }
    }

    /// The second table belongs to all spaces together.
    pub(super) fn unshare(&self, used: Used<'_, P>) {
        self.lock(used);
        let base = self.entries();
        let word = self.tables.walk(used.root(), base, 1);
        let Some(word) = word.filter(|_| self.k.config.shared) else {
            return used.room.lock.unlock();
        };
        let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
        if !old.present() {
            return used.room.lock.unlock();
        }
        let request = Request { freed_tables: true, ..Request::pages(range(base, self.entries())) };
        let flushed = self.breaks(KernelMutant::UnshareWithoutFlush)
            || used.space.flush(&self.pin, request).is_ok();
        if flushed {
            hw::revoked(&[change]);
            // ORDERING: AcqRel: all others' flushes are over when the last one sees that it is the
            // last
            if self.k.sharers.fetch_sub(1, Ordering::AcqRel) == 1 {
                hw::witness("shared-table-freed");
                for leaf in self.words(old.next()) {
                    hw::free_frame(hw::read_entry(leaf).frame());
                }
                hw::free_table(old.next());
            }
        }
        used.room.lock.unlock();
    }
}
