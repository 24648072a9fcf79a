//! The programs that both explorers run: a small language of our own, written out as a litmus test
//! for the one, interpreted by the other.

use std::fmt::Write as _;

/// Whose rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arch {
    X86,
    Arm,
    Riscv,
}

/// What an entry of the table says: a frame, or nothing.
pub type Mapping = Option<usize>;

/// A word of memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Word {
    Var(usize),
    Frame(usize),
    Entry(usize),
}

/// What a word holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Value {
    Number(u64),
    Map(Mapping),
}

/// An instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instr {
    LoadPage(usize),
    StorePage(usize, u64),
    LoadVar(usize),
    StoreVar(usize, u64),
    StoreEntry(usize, Mapping),
    /// MFENCE, DMB ISH, FENCE RW,RW.
    Fence,
    /// DSB ISH.
    Sync,
    /// ISB.
    Context,
    /// INVLPG, TLBI VAAE1 (IS if broadcast), SFENCE.VMA with an address.
    Invalidate {
        page: usize,
        broadcast: bool,
    },
    Interrupt(usize),
    TakeInterrupt,
}

impl Instr {
    pub fn reads(self) -> bool {
        matches!(self, Self::LoadPage(_) | Self::LoadVar(_))
    }

    pub fn writes(self) -> bool {
        matches!(self, Self::StorePage(..) | Self::StoreVar(..) | Self::StoreEntry(..))
    }

    pub fn accesses(self) -> bool {
        self.reads() || self.writes()
    }

    /// The page that has to be translated for it.
    pub fn page(self) -> Option<usize> {
        match self {
            Self::LoadPage(page) | Self::StorePage(page, _) => Some(page),
            _ => None,
        }
    }

    /// The word it names without translation.
    pub fn word(self) -> Option<Word> {
        match self {
            Self::LoadVar(var) | Self::StoreVar(var, _) => Some(Word::Var(var)),
            Self::StoreEntry(page, _) => Some(Word::Entry(page)),
            _ => None,
        }
    }

    /// What it stores.
    pub fn data(self) -> Option<Value> {
        match self {
            Self::StorePage(_, n) | Self::StoreVar(_, n) => Some(Value::Number(n)),
            Self::StoreEntry(_, mapping) => Some(Value::Map(mapping)),
            _ => None,
        }
    }

    fn text(self, at: usize, arch: Arch) -> String {
        let frame = |mapping: Mapping| mapping.map_or("invalid".into(), |f| format!("f{f}"));
        match (self, arch) {
            (Self::LoadPage(page), _) => format!("r{at} = load p{page}"),
            (Self::StorePage(page, n), _) => format!("store p{page} = {n}"),
            (Self::LoadVar(var), _) => format!("r{at} = load v{var}"),
            (Self::StoreVar(var, n), _) => format!("store v{var} = {n}"),
            (Self::StoreEntry(page, to), _) => format!("store pte(p{page}) = {}", frame(to)),
            (Self::Fence, Arch::X86) => "mfence".into(),
            (Self::Fence, Arch::Arm) => "dmb ish".into(),
            (Self::Fence, Arch::Riscv) => "fence rw,rw".into(),
            (Self::Sync, _) => "dsb ish".into(),
            (Self::Context, _) => "isb".into(),
            (Self::Invalidate { page, .. }, Arch::X86) => format!("invlpg p{page}"),
            (Self::Invalidate { page, .. }, Arch::Riscv) => format!("sfence.vma p{page}"),
            (Self::Invalidate { page, broadcast: true }, Arch::Arm) => {
                format!("tlbi vaae1is p{page}")
            }
            (Self::Invalidate { page, .. }, Arch::Arm) => format!("tlbi vaae1 p{page}"),
            (Self::Interrupt(cpu), _) => format!("ipi {cpu}"),
            (Self::TakeInterrupt, _) => "wait ipi".into(),
        }
    }
}

/// A configuration: one table, its pages, and a program for each CPU. Frame `f` holds `f + 1`,
/// variables hold 0.
#[derive(Clone, Debug)]
pub struct Program {
    pub arch: Arch,
    pub vars: usize,
    pub frames: usize,
    pub pages: Vec<Mapping>,
    pub cpus: Vec<Vec<Instr>>,
}

impl Program {
    /// As a litmus test.
    pub fn text(&self) -> String {
        let arch = match self.arch {
            Arch::X86 => "x86-64",
            Arch::Arm => "aarch64",
            Arch::Riscv => "riscv64",
        };
        let mut text = format!("test twin\narch {arch}\nsource twin\nverdict allowed\n");
        for frame in 0..self.frames {
            let _ = writeln!(text, "frame f{frame} = {}", frame + 1);
        }
        for var in 0..self.vars {
            let _ = writeln!(text, "var v{var}");
        }
        for (page, mapping) in self.pages.iter().enumerate() {
            let to = mapping.map_or("invalid".into(), |f| format!("f{f}"));
            let _ = writeln!(text, "map p{page} -> {to}");
        }
        for (cpu, code) in self.cpus.iter().enumerate() {
            let _ = writeln!(text, "cpu {cpu}");
            for (at, instr) in code.iter().enumerate() {
                let _ = writeln!(text, "    {}", instr.text(at, self.arch));
            }
        }
        text + "exists always\n"
    }

    /// A program that depends on `seed` alone.
    pub fn random(arch: Arch, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = move |n: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % n as u64) as usize
        };
        let cpus = 2;
        let (vars, frames, pages) = (1, 2, 2);
        let mapping = |below: &mut dyn FnMut(usize) -> usize| match below(3) {
            0 => None,
            frame => Some(frame - 1),
        };
        let mapped = (0..pages).map(|_| mapping(&mut below)).collect();
        let mut interrupts = 0;
        let mut code = |cpu: usize, below: &mut dyn FnMut(usize) -> usize| {
            let mut code = vec![];
            for _ in 0..2 + below(3) {
                let page = below(pages);
                code.push(match below(12) {
                    0..3 => Instr::LoadPage(page),
                    3 => Instr::StorePage(page, 5 + below(3) as u64),
                    4 => Instr::LoadVar(0),
                    5 => Instr::StoreVar(0, 1 + below(2) as u64),
                    6 | 7 => Instr::StoreEntry(page, mapping(below)),
                    8 => Instr::Invalidate { page, broadcast: arch == Arch::Arm && below(2) == 0 },
                    9 if cpu == 0 => {
                        interrupts += 1;
                        Instr::Interrupt(1)
                    }
                    9 if interrupts > 0 => {
                        interrupts -= 1;
                        Instr::TakeInterrupt
                    }
                    10 if arch == Arch::Arm => Instr::Context,
                    11 | 10 if arch == Arch::Arm => Instr::Sync,
                    _ => Instr::Fence,
                });
            }
            code
        };
        let programs = (0..cpus).map(|cpu| code(cpu, &mut below)).collect();
        Self { arch, vars, frames, pages: mapped, cpus: programs }
    }
}
