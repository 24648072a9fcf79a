//! Somebody who finds an entry changed relies on it, while the flush of whoever changed it is under
//! way.

use shootdown::Platform;
use shootdown::mutant::Mutant::*;
use shootdown_machine::hunt::hw;

use crate::check::mutants::kit::{enter, meet, table, tree, user};
use crate::check::mutants::port::{self, Rig};
use crate::check::mutants::scene::Scene;

/// CPU 0 frees a table of a space that CPU 1 runs with interrupts off, and begins the flush. CPU 1
/// finds the table gone, and calls `complete_pending`.
fn freed_and_begun(cpu: u8) {
    port::come_online();
    let pin = Rig::pin();
    if cpu == 0 {
        meet(2);
        let (change, _) = tree(0).unhook_table(0);
        let ticket = tree(0).space.begin_flush(&pin, table(0)).expect("kicks work");
        meet(4);
        ticket.wait(&pin).map_err(|(e, _)| e).expect("CPU 0 may wait");
        hw::revoked(&[change]);
        return;
    }
    enter(0);
    user();
    hw::set_irqs(false);
    meet(2);
    meet(4);
    tree(0).space.complete_pending(&pin).expect("nobody else runs the space");
    hw::revoked(&[hw::latest(tree(0).top(0))]);
    user();
    hw::set_irqs(true);
    user();
}

pub static SCENES: &[Scene] = &[Scene::new(
    "pending-freed",
    "a CPU flushes for a freed table whose flush another has begun",
    2,
    freed_and_begun,
)
.kills(&[PendingTrustsLeaves])];
