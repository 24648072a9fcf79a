//! Programs by chance.

use shootdown_dma::Policy;

use super::op::BUFFERS;
use super::{Buffer, Config, DmaProgram, Op, Source, Tables};
use crate::hunt::schedule::Rng;

impl DmaProgram {
    /// A program that follows from a seed, with `size` operations on each of two or three CPUs. A
    /// correct library never breaks a promise in it.
    #[must_use]
    pub fn random(seed: u64, size: usize) -> Self {
        let mut numbers = Rng::new(seed);
        let config = config(&mut numbers);
        let cpus = 2 + numbers.below(2);
        let mut script = || (0..size).map(|_| op(&mut numbers, &config)).collect();
        Self { config, before: Vec::new(), cpus: (0..cpus).map(|_| script()).collect() }
    }
}

/// Chance in so many cases of a hundred.
fn chance(n: &mut Rng, percent: usize) -> bool {
    n.below(100) < percent
}

fn config(n: &mut Rng) -> Config {
    let policies = [Policy::Strict, Policy::Deferred, Policy::Deferred, Policy::Lazy];
    let from = [
        Source::Tree,
        Source::Tree,
        Source::Magazines,
        Source::Arena,
        Source::Ring,
        Source::Identity,
        Source::Identity,
    ][n.below(7)];
    let drawn = Config {
        policy: policies[n.below(policies.len())],
        entries: [1, 2, 4][n.below(3)],
        flush: 1 + n.below(3),
        atc: n.below(2) == 0,
        pages: [2, 4, 2048][n.below(3)],
        // A page of identity addresses has tables of its own.
        tables: if from == Source::Identity {
            [4, 6, 8][n.below(3)]
        } else {
            [3, 4, 6][n.below(3)]
        },
        format: Tables::ALL[n.below(Tables::ALL.len())],
        from,
        large: from == Source::Identity && chance(n, 50),
        units: 1 + usize::from(chance(n, 25)),
        domains: 1 + usize::from(chance(n, 25)),
        ends: chance(n, 50),
        absence: chance(n, 15),
        coherent: !chance(n, 25),
        window: from == Source::Tree && chance(n, 20),
        side: chance(n, 50),
        held: if chance(n, 25) { 1 } else { Config::default().held },
        promotes: chance(n, 25),
        survives: chance(n, 10),
        pinned: chance(n, 25),
        bounce: chance(n, 20),
        mistake: None,
        ..Config::default()
    };
    if !chance(n, 12) {
        return Config { ends: drawn.has_end(), ..drawn };
    }
    // What fails here is the hardware, and not a mapping that is to be taken back.
    Config {
        ends: false,
        faults: 1 + n.below(3) as u8,
        atc: true,
        pages: drawn.pages.min(4),
        tables: 8,
        absence: false,
        bounce: false,
        ..drawn
    }
}

#[allow(clippy::cast_possible_truncation)] // below BUFFERS
fn op(n: &mut Rng, config: &Config) -> Op {
    let buffer = Buffer(n.below(usize::from(BUFFERS)) as u8);
    // One page with several users is counted only where its address follows from its own.
    if config.from == Source::Identity && chance(n, 25) {
        return Op::Share(buffer);
    }
    let has_room = config.from == Source::Identity || config.pages > 1024;
    if config.maps_large() && has_room && chance(n, 15) {
        return [Op::Large(buffer), Op::Large2(buffer), Op::Piece(buffer)][n.below(3)];
    }
    if config.bounce && chance(n, 25) {
        return Op::Bounce(buffer);
    }
    if config.has_end() && chance(n, 8) {
        return Op::End;
    }
    if chance(n, 6) {
        return [Op::At(buffer), Op::At(buffer), Op::Unat(buffer)][n.below(3)];
    }
    match n.below(32) {
        0..6 => Op::Map(buffer),
        6 => Op::Map2(buffer),
        7..12 => Op::Unmap(buffer),
        12 => Op::UnmapStrict(buffer),
        13 => Op::Use(buffer),
        14..20 if config.faults != 0 => {
            [Op::Attach, Op::Unmap(buffer), Op::Map(buffer)][n.below(3)]
        }
        14 => Op::Reserve(buffer),
        15 | 16 => Op::Link(buffer),
        17 => Op::Unlink(buffer),
        18 => Op::Release(buffer),
        19 => Op::Big,
        20 => Op::Poll,
        // A timer has empty tables looked for, entry by entry: thousands of steps where a table has
        // as many.
        21 | 22 if config.page() > 4096 && !chance(n, 10) => Op::Flush,
        21 | 22 => Op::Timer,
        23 => Op::Flush,
        24 => Op::MapRead(buffer),
        25 => Op::MapWrite(buffer),
        26 if config.faults == 0 => Op::Scatter(buffer),
        26 | 27 => Op::Share(buffer),
        28 => Op::Bypass,
        29 => Op::Attach,
        30 => [Op::Detach, Op::Pull][n.below(2)],
        _ => [Op::Move, Op::Attach][n.below(2)],
    }
}
