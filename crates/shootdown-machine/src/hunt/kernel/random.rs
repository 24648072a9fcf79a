//! Programs by chance.

use shootdown::accessed::{Accessed, AccessedPolicy};
use shootdown::policy::Policy;

use super::config::Split;
use super::{At, Config, Op, Program, Script};
use crate::hunt::MAX_CPUS;

/// Numbers that follow from a seed (splitmix64: G. Steele, D. Lea, C. Flood, OOPSLA 2014).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    #[allow(clippy::cast_possible_truncation)] // below a small number
    fn below(&mut self, n: u8) -> u8 {
        (self.next() % u64::from(n.max(1))) as u8
    }

    fn one_in(&mut self, n: u8) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[(self.next() % all.len() as u64) as usize]
    }
}

impl Program {
    /// A program that follows from a seed, with `size` operations on each of two to four CPUs. A
    /// correct library and port never break a promise in it.
    #[must_use]
    pub fn random(seed: u64, size: usize) -> Self {
        let mut numbers = Numbers(seed);
        let mut config = config(&mut numbers);
        config.keeps = config.tags && seed >> 12 & 1 == 1;
        Self::by_chance(&mut numbers, config, size)
    }

    /// As [`Self::random`], for a kernel that is built like this.
    #[must_use]
    pub fn random_for(config: &Config, seed: u64, size: usize) -> Self {
        Self::by_chance(&mut Numbers(seed), *config, size)
    }

    fn by_chance(numbers: &mut Numbers, config: Config, size: usize) -> Self {
        let cpus = 2 + numbers.below(3);
        let cpus = (0..cpus)
            .map(|_| {
                let mut script = Script::default();
                if !numbers.one_in(4) {
                    script.boot.push(Op::Switch(numbers.below(config.spaces)));
                    if numbers.one_in(4) {
                        script.boot.push(Op::Lazy);
                    }
                }
                let mut online = true;
                while script.run.len() < size {
                    let op = op(numbers, &config);
                    match op {
                        Op::Offline => online = false,
                        Op::Online if online => continue,
                        Op::Online => online = true,
                        _ if !online => continue,
                        _ => {}
                    }
                    script.run.push(op);
                }
                script
            })
            .collect();
        Self { config, cpus }
    }
}

fn config(n: &mut Numbers) -> Config {
    let policies = [
        Policy::SHOOTDOWN,
        Policy::SHOOTDOWN,
        Policy::SHOOTDOWN,
        Policy::NAIVE,
        Policy::LINUX_4_13,
        Policy::LINUX_4_14,
        Policy::LINUX_5_13,
    ];
    let tags = n.one_in(2);
    let split = n.of(&[Split::Off, Split::Off, Split::On, Split::Pending]);
    let mut policy = n.of(&policies);
    if n.one_in(2) {
        // Few slots, so that spaces push each other out.
        policy.slots = policy.slots.min(1 + n.below(2));
    }
    if n.one_in(4) {
        policy.tree_above = 1;
    }
    policy.accessed = AccessedPolicy::all(n.of(&[
        Accessed::Generation,
        Accessed::Generation,
        Accessed::AtSwitch,
        Accessed::Immediate,
    ]));
    let bits = 1 + n.below(2);
    Config {
        levels: if n.one_in(6) { 3 } else { 2 },
        bits,
        spaces: 1 + n.below(3),
        pages: 1 + n.below(2),
        kernel_pages: n.below(2),
        large: bits == 2 && n.one_in(3),
        policy,
        tags,
        split,
        ceiling: n.of(&[1, 4]),
        isolated: n.one_in(3),
        serializes: !n.one_in(4),
        nmi: n.one_in(8),
        numbers: numbers(n),
        ..Config::default()
    }
}

/// Where CPUs are far apart there is more to step through: seldom.
fn numbers(n: &mut Numbers) -> [u16; MAX_CPUS] {
    match n.below(8) {
        0..4 => Config::NEAR,
        4 | 5 => Config::APART[0],
        6 => Config::APART[1],
        _ => n.of(&Config::APART[2..]),
    }
}

fn op(n: &mut Numbers, config: &Config) -> Op {
    let at = At { space: n.below(config.spaces), page: n.below(config.pages.max(1)) };
    let other = At { page: n.below(config.entries()), ..at };
    let elsewhere = At { space: n.below(config.spaces), ..other };
    let large = At { page: config.entries(), ..at };
    match n.below(44) {
        0..8 => Op::User,
        8..12 => Op::Switch(at.space),
        12 | 13 => Op::Lazy,
        14 => Op::Leave,
        15 => Op::Copy,
        16 => Op::Kernel,
        17 => Op::Poll,
        18 => Op::Call,
        19 if n.one_in(2) => Op::Offline,
        19 => Op::Online,
        20 => Op::Map(at),
        21 | 22 => Op::Unmap(at),
        23 => Op::UnmapMany(at, 2),
        24 => Op::Discard(at),
        25 => Op::UnmapAtomic(at),
        26 => Op::Defer(at),
        27 => Op::Protect(at),
        28 => Op::Grant(at),
        29 | 30 => Op::Replace(at),
        31 => Op::Move(at, other),
        32 if config.bits == 2 && !config.large => Op::MoveTable(at, large),
        32 => Op::Write(at),
        33 => Op::FreeTable(at),
        34 if config.large && n.one_in(2) => Op::Split(large),
        34 if config.large => Op::Merge(large),
        34 => Op::Map(at),
        35 => Op::KernelPage(0),
        36 => Op::KernelTable,
        37 => Op::Retire(at.space),
        38 if n.one_in(2) => Op::Hint(at),
        38 => Op::Migrate(at),
        39 => Op::Tick,
        40 => Op::Age(at),
        _ => match n.of(&[
            Op::Walk(at),
            Op::Peek(at.space),
            Op::Track(at),
            Op::Write(at),
            Op::Reclaim(at, elsewhere),
            Op::ReclaimTight(at, elsewhere),
            Op::Ticket(at),
            Op::FreeTableAfter(at),
            Op::PinTag(at.space),
            Op::UnpinTag(at.space),
        ]) {
            Op::Ticket(at) => n.of(&[Op::Ticket(at), Op::Begin(at), Op::Abandon(at)]),
            op => op,
        },
    }
}
