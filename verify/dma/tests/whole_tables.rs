//! What an unmapping tells of the tables that it took out
//! (`crates/shootdown-dma/tests/whole_tables.rs`), with mutants on.
#![cfg(not(loom))]

extern crate shootdown_dma_woven as shootdown_dma;

#[path = "support/missed.rs"]
mod support;

use shootdown_dma_woven::mutant::Mutant;
use support::is_missed;

include!(concat!(env!("OUT_DIR"), "/whole_tables.rs"));

#[test]
fn an_unmapping_says_that_a_table_went() {
    is_missed(Mutant::LeafOnlyAgain, tables_that_go_are_told_beside_ones_that_stay);
}
