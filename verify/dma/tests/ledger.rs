//! The ledger of what a unit still has (`crates/shootdown-dma/tests/ledger.rs`), with mutants on.
#![cfg(not(loom))]

extern crate shootdown_dma_woven as shootdown_dma;

#[path = "support/missed.rs"]
mod support;

use shootdown_dma_woven::mutant::Mutant;
use support::is_missed;

include!(concat!(env!("OUT_DIR"), "/ledger.rs"));

#[test]
fn every_step_of_a_domain_is_missed() {
    is_missed(Mutant::LastPieceAlone, pieces_that_are_unmapped_on_several_cpus_go_back_together);
    is_missed(Mutant::IdleOwingSkipped, what_an_idle_cpu_owes_is_settled_by_timers);
    is_missed(
        Mutant::PromotedWrongDomain,
        a_domain_that_is_forgotten_for_two_ranges_is_the_right_one,
    );
    is_missed(Mutant::RoomLeaks, what_an_idle_cpu_owes_is_settled_by_timers);
    is_missed(Mutant::DeferredRoomLeaks, a_table_that_goes_beside_one_that_stays_is_told);
}
