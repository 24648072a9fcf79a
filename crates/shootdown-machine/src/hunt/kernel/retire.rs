//! The end of a space that nobody runs, and its successor.

use std::ptr::NonNull;

use super::cpu::{Cpu, Used};
use super::{KernelMutant, Port};
use crate::hostile::TableId;
use crate::hunt::hw;

impl<P: Port> Cpu<P> {
    pub fn retire(&self, number: u8) {
        if number >= self.k.config.spaces || !self.k.can_be_reborn(number) {
            return;
        }
        let Some(space) = self.k.kill(number) else { return };
        if !self.breaks(KernelMutant::RetireWithoutAsking)
            && let Err(error) = space.retire(&self.pin)
        {
            hw::note(|| format!("can't retire the space: {error}"));
            hw::witness("retire-refused");
            self.k.revive(number);
            return;
        }
        self.redeem_last(Used { room: self.k.room(number), space });
        let old = space.root();
        hw::given_back(NonNull::from(space).cast(), size_of_val(space));
        self.tear_down(old);
        let root = self.tables.new_root(self.k.kernel_root);
        let word = self.tables.walk_or_make(root, 0, 0).expect("a new root has no large pages");
        let frame = hw::new_frame();
        self.tables.make(word, crate::hostile::Descriptor::user_rw(frame));
        self.k.reborn(number, root);
        hw::witness("space-reborn");
    }

    /// Frees the user half of a tree that nobody uses.
    fn tear_down(&self, root: TableId) {
        let entries = self.tables.entries();
        let step = u32::from(entries);
        for base in (0..self.tables.kernel_page(0)).step_by(usize::from(entries)) {
            if let Some(word) = self.tables.walk(root, base, 0) {
                for page in base..base + step {
                    let index = (page % step) as u8;
                    let leaf = hw::read_entry(crate::hostile::Word::new(word.table, index));
                    if leaf.present() {
                        hw::free_frame(leaf.frame());
                    }
                }
                hw::free_table(word.table);
            }
        }
        hw::free_table(root);
    }
}
