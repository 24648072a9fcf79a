//! Programs by chance.

use shootdown_dma::Policy;

use super::op::BUFFERS;
use super::{Buffer, Config, DmaProgram, Op};
use crate::hunt::schedule::Rng;

impl DmaProgram {
    /// A program that follows from a seed, with `size` operations on each of two or three CPUs. A correct library never
    /// breaks a promise in it.
    #[must_use]
    pub fn random(seed: u64, size: usize) -> Self {
        let mut numbers = Rng::new(seed);
        let config = config(&mut numbers);
        let cpus = 2 + numbers.below(2);
        let mut script = || (0..size).map(|_| op(&mut numbers)).collect();
        Self { config, cpus: (0..cpus).map(|_| script()).collect() }
    }
}

fn config(n: &mut Rng) -> Config {
    let policies = [Policy::Strict, Policy::Held, Policy::Held, Policy::Lazy];
    Config {
        policy: policies[n.below(policies.len())],
        entries: [1, 2, 4][n.below(3)],
        flush: 1 + n.below(3),
        atc: n.below(2) == 0,
        pages: [2, 4, 2048][n.below(3)],
        tables: [3, 4, 6][n.below(3)],
    }
}

#[allow(clippy::cast_possible_truncation)] // below BUFFERS
fn op(n: &mut Rng) -> Op {
    let buffer = Buffer(n.below(usize::from(BUFFERS)) as u8);
    match n.below(24) {
        0..6 => Op::Map(buffer),
        6 => Op::Map2(buffer),
        7..12 => Op::Unmap(buffer),
        12 => Op::UnmapStrict(buffer),
        13 => Op::Use(buffer),
        14 => Op::Reserve(buffer),
        15 | 16 => Op::Link(buffer),
        17 => Op::Unlink(buffer),
        18 => Op::Release(buffer),
        19 => Op::Big,
        20 => Op::Poll,
        21 | 22 => Op::Timer,
        _ => Op::Flush,
    }
}
