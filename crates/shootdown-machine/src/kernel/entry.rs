//! The border between user mode and the kernel.

use shootdown::facts::SplitTables;

use super::port::load;
use super::state::with;
use crate::engine::{self, Mode, Vector};

/// Enters the kernel: under split tables, the kernel half is loaded (its price is part of the
/// entry's).
pub(crate) fn enter() {
    engine::mode(Mode::Kernel);
    load_kernel_half();
}

/// Leaves the kernel for user mode.
pub(crate) fn exit() {
    let was = engine::irqs(false);
    load_user_half();
    engine::mode(Mode::User);
    engine::irqs(was);
}

/// What interrupts do.
pub(crate) fn on_interrupt(vector: Vector, interrupted: Mode) {
    if interrupted == Mode::User {
        load_kernel_half();
    }
    if vector == Vector::Kick {
        let (library, cost) = with(|s| (s.library, s.costs.kick_handler));
        engine::charge(cost);
        library.on_kick();
    }
    if interrupted == Mode::User {
        load_user_half();
    }
}

fn load_kernel_half() {
    with(|s| {
        if s.facts.split_tables == SplitTables::No {
            return;
        }
        let cpu = s.executing() as usize;
        if let Some((root, tag)) = s.cpus[cpu].loaded {
            let keep = s.facts.tag_bits != 0;
            // Never a violation: with `keep`, the tag is the one that this root was loaded under.
            let loaded = s.mmus.of(cpu).load(&s.memory, root, tag, keep);
            debug_assert!(loaded.is_ok());
        }
    });
}

/// Loads the user half as the library says, on the way out.
fn load_user_half() {
    let (library, split, loaded) = with(|s| {
        let cpu = s.executing() as usize;
        (s.library, s.facts.split_tables != SplitTables::No, s.cpus[cpu].loaded)
    });
    let Some((root, _)) = loaded.filter(|_| split) else { return };
    let entry = library.return_to_user();
    if entry.keep {
        // The price of a load that keeps is part of the exit's.
        with(|s| {
            let cpu = s.executing() as usize;
            s.mmus.of(cpu).load(&s.memory, root, entry.tag, true)
        })
        .unwrap_or_else(|violation| engine::fail(&violation));
    } else {
        load(root, entry.tag, false);
    }
}
