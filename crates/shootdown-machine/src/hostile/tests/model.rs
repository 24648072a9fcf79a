//! The sets against a second implementation that knows no increments, no marks and no short cuts.
//!
//! The naive hardware recomputes its sets from scratch. For removals that take effect late it runs
//! one world for every set of removals that are taken to be effective at once. A sync takes an
//! entry out of a world if one of its removals covers it and the world in which that one was not
//! late lacks it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

type Leaf = (u32, u8, Owner, Descriptor, Rights, Word);
type Step = (u32, u8, Owner, TableId, Rights, bool, Word);

#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Sets {
    leaves: BTreeSet<Leaf>,
    steps: BTreeSet<Step>,
}

#[derive(Clone, Copy)]
struct Loaded {
    root: Option<TableId>,
    tag: Tag,
}

/// The naive hardware.
struct Naive {
    rules: Rules,
    loaded: [Loaded; 2],
    /// By the set of outstanding removals that were effective at once; 0 is what there is.
    worlds: Vec<[Sets; 2]>,
    /// Who issued it, whom it reaches, what it removes.
    outstanding: Vec<(usize, std::ops::Range<usize>, Invalidation)>,
}

impl Naive {
    fn new(rules: Rules) -> Self {
        Self {
            rules,
            loaded: [Loaded { root: None, tag: Tag(0) }; 2],
            worlds: vec![Default::default()],
            outstanding: Vec::new(),
        }
    }

    fn serves(loaded: Loaded, owner: Owner) -> bool {
        match owner {
            Owner::Tag(tag) => tag == loaded.tag,
            Owner::Root(root) => Some(root) == loaded.root,
            Owner::Everyone => true,
        }
    }

    /// Adds everything that can be walked, until nothing more comes.
    fn fill(&mut self, mem: &Tables) {
        for world in &mut self.worlds {
            for (sets, loaded) in world.iter_mut().zip(self.loaded) {
                let Some(root) = loaded.root else { continue };
                loop {
                    let before = sets.clone();
                    let mut from = vec![(0, self.rules.shape.top(), root, Rights::ALL, false)];
                    let usable = before.steps.iter().filter(|s| Self::serves(loaded, s.2));
                    from.extend(usable.map(|s| (s.0, s.1, s.3, s.4, s.5)));
                    for start in from {
                        Self::read(&self.rules, loaded, root, start, mem, sets);
                    }
                    if *sets == before {
                        break;
                    }
                }
            }
        }
    }

    fn read(
        rules: &Rules,
        loaded: Loaded,
        root: TableId,
        (base, level, table, rights, global): (u32, u8, TableId, Rights, bool),
        mem: &Tables,
        sets: &mut Sets,
    ) {
        let span = rules.shape.last_offset(level) + 1;
        for index in 0..rules.shape.entries() {
            let word = Word::new(table, index as u8);
            let mut d = mem.0.get(&word).copied().unwrap_or_default().0;
            let base = base + span * index as u32;
            let owner = |everyone| if everyone { Owner::Everyone } else { Owner::Tag(loaded.tag) };
            let leaf = d.has(Descriptor::LEAF) || level == 0 && rules.last_level_is_leaf;
            if !d.present() || level == 0 && !leaf {
                if rules.negative != Negative::Never {
                    let absent = Descriptor::ABSENT;
                    sets.leaves.insert((base, level, owner(global), absent, rights, word));
                }
                continue;
            }
            let used = d.has(Descriptor::ACCESSED);
            let set_silently =
                rules.accessed_by_hardware && rules.accessed_updates == AccessedUpdates::Assumed;
            let may_cache = used || set_silently || rules.unaccessed;
            let rights = rights.and(d.rights());
            if leaf {
                if set_silently {
                    d = d.with(Descriptor::ACCESSED);
                }
                let everyone = global || d.has(Descriptor::GLOBAL);
                if may_cache {
                    sets.leaves.insert((base, level, owner(everyone), d, rights, word));
                }
                continue;
            }
            if rules.tables_accessed && !may_cache {
                continue;
            }
            let global = global || rules.tables_global && d.has(Descriptor::GLOBAL);
            let owner = match (global, rules.walk_cache) {
                (false, WalkCache::Untagged) => Owner::Root(root),
                _ => owner(global),
            };
            sets.steps.insert((base, level - 1, owner, d.next(), rights, global, word));
        }
    }

    fn owns(what: &Invalidation, owner: Owner, globals: bool) -> bool {
        match owner {
            Owner::Everyone => what.globals && globals,
            Owner::Tag(tag) => what.owners == Owners::Any || what.owners == Owners::Tag(tag),
            Owner::Root(_) => what.owners == Owners::Any,
        }
    }

    fn covers(rules: &Rules, what: &Invalidation, leaf: &Leaf) -> bool {
        let last = leaf.0 + rules.shape.last_offset(leaf.1);
        let page = what.pages != Pages::ALL;
        let globals = !(rules.errata.page_spares_globals && page);
        what.pages.meets(Pages { first: leaf.0, last }) && Self::owns(what, leaf.2, globals)
    }

    fn covers_step(rules: &Rules, what: &Invalidation, step: &Step) -> bool {
        let last = step.0 + rules.shape.last_offset(step.1 + 1);
        let meets = what.pages.meets(Pages { first: step.0, last });
        let named = what.walks == Walks::All || what.walks == Walks::Covering && meets;
        named && Self::owns(what, step.2, true)
    }

    fn remove(rules: &Rules, sets: &mut Sets, what: &Invalidation) {
        sets.leaves.retain(|leaf| !Self::covers(rules, what, leaf));
        sets.steps.retain(|step| !Self::covers_step(rules, what, step));
    }

    fn late(&self, broadcast: bool) -> bool {
        match self.rules.late {
            Late::Never => false,
            Late::Broadcast => broadcast,
            Late::Always => true,
        }
    }

    fn invalidate(&mut self, cpu: usize, what: Invalidation, broadcast: bool) {
        let targets = if broadcast { 0..2 } else { cpu..cpu + 1 };
        let mut prompt = self.worlds.clone();
        for world in &mut prompt {
            for target in targets.clone() {
                Self::remove(&self.rules, &mut world[target], &what);
            }
        }
        if self.late(broadcast) {
            self.worlds.append(&mut prompt);
            self.outstanding.push((cpu, targets, what));
        } else {
            self.worlds = prompt;
        }
    }

    fn sync(&mut self, cpu: usize) {
        let all: Vec<_> = (0..self.outstanding.len()).collect();
        let (mine, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|&n| self.outstanding[n].0 == cpu);
        let mut after = Vec::new();
        for chosen in 0..1usize << others.len() {
            let bit = |(at, n): (usize, &usize)| (chosen >> at & 1) << n;
            let set = others.iter().enumerate().map(bit).sum::<usize>();
            let mut world = self.worlds[set].clone();
            for &n in &mine {
                let (_, targets, what) = &self.outstanding[n];
                for target in targets.clone() {
                    let prompt = &self.worlds[set | 1 << n][target];
                    let sets = &mut world[target];
                    sets.leaves.retain(|leaf| {
                        !Self::covers(&self.rules, what, leaf) || prompt.leaves.contains(leaf)
                    });
                    sets.steps.retain(|step| {
                        !Self::covers_step(&self.rules, what, step) || prompt.steps.contains(step)
                    });
                }
            }
            after.push(world);
        }
        self.worlds = after;
        self.outstanding.retain(|removal| removal.0 != cpu);
    }

    fn fault(&mut self, cpu: usize, page: u32) {
        let forget_all = self.rules.fault_forgets;
        let forget_absent = self.rules.negative == Negative::UntilFault;
        let loaded = self.loaded[cpu];
        for world in &mut self.worlds {
            world[cpu].leaves.retain(|leaf| {
                let last = leaf.0 + self.rules.shape.last_offset(leaf.1);
                let hit = leaf.0 <= page && page <= last && Self::serves(loaded, leaf.2);
                !(hit && (forget_all || forget_absent && !leaf.3.present()))
            });
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Write(u16, u8, Descriptor),
    Load(usize, Option<u16>, u16, bool),
    Invalidate(usize, Invalidation, bool),
    Sync(usize),
    Fault(usize, u32),
}

fn descriptors() -> impl Strategy<Value = Descriptor> {
    let frame = (0u32..3).prop_map(Frame);
    prop_oneof![
        3 => Just(Descriptor::ABSENT),
        4 => (0u16..4).prop_map(|table| Descriptor::table(TableId(table))),
        1 => (0u16..4).prop_map(|table| {
            Descriptor::table(TableId(table)).with(Descriptor::GLOBAL).without(Descriptor::WRITE)
        }),
        1 => (0u16..4).prop_map(|table| {
            Descriptor::table(TableId(table)).without(Descriptor::ACCESSED)
        }),
        3 => frame.clone().prop_map(Descriptor::user_rw),
        2 => frame.clone().prop_map(Descriptor::kernel_rw),
        1 => frame.prop_map(|frame| Descriptor::user_rw(frame).without(Descriptor::ACCESSED)),
    ]
}

fn invalidations() -> impl Strategy<Value = Invalidation> {
    let owners = prop_oneof![
        4 => (0u16..3).prop_map(|tag| Owners::Tag(Tag(tag))),
        1 => Just(Owners::Any),
    ];
    let pages = prop_oneof![
        4 => (0u32..16).prop_map(Pages::one),
        1 => (0u32..16, 0u32..16).prop_map(|(a, b)| Pages { first: a.min(b), last: a.max(b) }),
        1 => Just(Pages::ALL),
    ];
    let walks = prop_oneof![Just(Walks::None), Just(Walks::Covering), Just(Walks::All)];
    (pages, owners, any::<bool>(), walks).prop_map(|(pages, owners, globals, walks)| Invalidation {
        pages,
        owners,
        globals,
        walks,
    })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let cpu = 0usize..2;
    let op = prop_oneof![
        6 => (0u16..4, 0u8..4, descriptors()).prop_map(|(t, i, d)| Op::Write(t, i, d)),
        3 => (cpu.clone(), proptest::option::weighted(0.9, 0u16..3), 0u16..3, any::<bool>())
            .prop_map(|(cpu, root, tag, keep)| Op::Load(cpu, root, tag, keep)),
        4 => (cpu.clone(), invalidations(), any::<bool>())
            .prop_map(|(cpu, what, broadcast)| Op::Invalidate(cpu, what, broadcast)),
        2 => cpu.clone().prop_map(Op::Sync),
        1 => (cpu, 0u32..8).prop_map(|(cpu, page)| Op::Fault(cpu, page)),
    ];
    proptest::collection::vec(op, 1..60)
}

fn rules() -> impl Strategy<Value = Rules> {
    let shape = prop_oneof![Just((2, 2)), Just((3, 1)), Just((1, 2)), Just((3, 2))]
        .prop_map(|(levels, bits)| Shape::new(levels, bits).unwrap());
    let arch =
        (shape, 0..4, any::<bool>(), any::<bool>()).prop_map(|(shape, arch, a, b)| match arch {
            0 | 1 => Rules::x86_64(shape),
            2 => Rules {
                translates_ahead: false,
                ..Rules::aarch64(shape, Aarch64 { ets2: true, ha: a, hd: false })
            },
            _ => Rules::riscv64(shape, RiscV { svvptc: a, svadu: b, svinval: a != b }),
        });
    let late = prop_oneof![Just(Late::Never), Just(Late::Broadcast), Just(Late::Always)];
    (arch, late, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(rules, late, untagged, spares, explicit)| {
            let mut rules = Rules { late, ..rules };
            rules.errata.page_spares_globals = spares;
            if untagged {
                rules.walk_cache = WalkCache::Untagged;
            }
            if explicit {
                rules.accessed_updates = AccessedUpdates::Explicit;
            }
            rules
        },
    )
}

fn content(hw: &Hostile, cpu: usize) -> Sets {
    let leaf = |t: &Translation| (t.base, t.level, t.owner, t.descriptor, t.rights, t.source.word);
    let step = |p: &Partial| (p.base, p.level, p.owner, p.table, p.rights, p.global, p.source.word);
    Sets {
        leaves: hw.translations(cpu).map(leaf).collect(),
        steps: hw.partials(cpu).map(step).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_sets_are_those_of_the_naive_hardware(rules in rules(), ops in ops()) {
        let mut mem = Tables::default();
        let mut hw = Hostile::new(rules, 2).unwrap();
        let mut naive = Naive::new(rules);
        for op in ops {
            match op {
                Op::Write(table, index, descriptor) => {
                    let index = index & (rules.shape.entries() - 1) as u8;
                    let word = Word::new(TableId(table), index);
                    mem.0.insert(word, (descriptor, 0));
                    hw.changed(&mem, word).unwrap();
                }
                Op::Load(cpu, root, tag, keep) => {
                    let root = root.map(TableId);
                    hw.load(&mem, cpu, root, Tag(tag), keep).unwrap();
                    naive.loaded[cpu] = Loaded { root, tag: Tag(tag) };
                    if !keep {
                        for world in &mut naive.worlds {
                            Naive::remove(&rules, &mut world[cpu], &Invalidation::tag(Tag(tag)));
                        }
                    }
                }
                Op::Invalidate(cpu, what, broadcast) => {
                    if naive.late(broadcast) && naive.outstanding.len() == 4 {
                        continue; // 16 worlds are enough
                    }
                    let reach = if broadcast { Reach::Broadcast } else { Reach::Local };
                    hw.invalidate(&mem, cpu, what, reach).unwrap();
                    naive.invalidate(cpu, what, broadcast);
                }
                Op::Sync(cpu) => {
                    hw.sync(cpu);
                    naive.sync(cpu);
                }
                Op::Fault(cpu, page) => {
                    let page = page & rules.shape.last_page();
                    hw.faulted(&mem, cpu, page).unwrap();
                    naive.fault(cpu, page);
                }
            }
            naive.fill(&mem);
            for cpu in 0..2 {
                prop_assert_eq!(content(&hw, cpu), naive.worlds[0][cpu].clone(), "{:?}", op);
            }
            // H1: nothing is left to add.
            let mut again = hw.clone();
            again.changed_anywhere(&mem).unwrap();
            prop_assert_eq!(&again, &hw);
        }
    }
}
