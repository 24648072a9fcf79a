//! Small worlds, all schedules of which are explored.

use shootdown::accessed::{Accessed, AccessedPolicy};
use shootdown::policy::Policy;
use shootdown_machine::hunt::kernel::Program;
use shootdown_machine::hunt::{Memory, Powers, World};

use crate::check::exhaustive::Exhaustive;
use crate::check::hunted::Scene;
use crate::check::steps::Policies;
use crate::check::{Check, Checks, adversary};

/// One program.
#[derive(Clone, Debug)]
pub struct Fixed {
    name: &'static str,
    text: &'static str,
    powers: Powers,
    witnesses: &'static [&'static str],
}

impl Fixed {
    fn program(&self, policy: Option<Policy>) -> Program {
        let mut program: Program =
            self.text.parse().unwrap_or_else(|e| panic!("the program of {}: {e}", self.name));
        if let Some(policy) = policy {
            program.config.policy = policy;
        }
        // None of them clears accessed bits, and a switch that looks whether any were doubles what
        // there is to explore.
        program.config.policy.accessed = AccessedPolicy::all(Accessed::Never);
        program
    }
}

impl Scene for Fixed {
    fn name(&self) -> &str {
        self.name
    }

    fn world(&self, _: u64, policies: Policies) -> Box<dyn World> {
        Box::new(self.program(policies.core))
    }

    fn describe(&self, _: u64, policies: Policies) -> Option<String> {
        Some(self.program(policies.core).to_string())
    }

    fn powers(&self) -> Powers {
        self.powers
    }

    fn witnesses(&self) -> &[&'static str] {
        self.witnesses
    }
}

/// A world, all schedules of which are explored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Small {
    pub name: &'static str,
    pub line: &'static str,
    /// The program.
    pub text: &'static str,
    pub memory: Memory,
    pub witnesses: &'static [&'static str],
    /// Takes seconds: in the default set.
    pub quick: bool,
}

impl Small {
    /// The check of this world, as a scene with these powers.
    pub(super) fn check(&self, scene: impl Scene + 'static, powers: Powers) -> Box<dyn Check> {
        let bounds = format!("{} ({})", self.text, adversary::write(powers));
        Box::new(Exhaustive { scene, line: self.line.to_owned(), bounds, small: self.quick })
    }
}

/// What a CPU that meets a space on its way to a tag for all CPUs must have seen.
const MEETING: &[&str] =
    &["tag-for-all-cpus", "invalidation-broadcast", "interrupt-crosses-switch", "stale-elsewhere"];

/// Small worlds. The same program may come twice: under a memory model that takes seconds, and
/// under a weaker one that takes minutes.
const SMALL: &[Small] = &[
    Small {
        name: "exhaustive/unmap",
        line: "a page is unmapped while another CPU uses it",
        text: "; switch a | unmap a0; switch a | user",
        memory: Memory::Weak,
        witnesses: &["stale-elsewhere"],
        quick: true,
    },
    Small {
        name: "exhaustive/begun",
        line: "a page is unmapped by a flush that was begun, and another CPU finds it unmapped",
        text: "; begin a0; switch a | unmap a0, user",
        memory: Memory::Weak,
        witnesses: &["stale-elsewhere", "pending-flush-seen"],
        quick: false,
    },
    Small {
        name: "exhaustive/abandoned",
        line: "the same, and the flush is given up",
        text: "; abandon a0; switch a | unmap a0, user",
        memory: Memory::Sc,
        witnesses: &["stale-elsewhere", "pending-flush-seen", "ticket-dropped"],
        quick: false,
    },
    Small {
        name: "exhaustive/kernel-kept",
        line: "split tables: a kernel page goes that a CPU has cached of the kernel's own tables too, to which it returns",
        text: "tags=on split=on kernel=1 keeps=on; kernel-page 0; kernel, switch a | leave, kernel",
        memory: Memory::Sc,
        witnesses: &[],
        quick: true,
    },
    Small {
        name: "exhaustive/completes-early",
        line: "a page is unmapped by a broadcast that is said to be complete too early, while another CPU leaves and comes back",
        text: "arch=arm wide=2 spaces=2 broadcast=always completes=early; switch a | unmap a0; switch a | switch b, switch a, user",
        memory: Memory::Sc,
        witnesses: &["invalidation-broadcast"],
        quick: false,
    },
    Small {
        name: "exhaustive/switch",
        line: "a page is unmapped while another CPU comes to its space (D1)",
        text: "tags=on; switch a | unmap a0; switch a, leave | switch a, user",
        memory: Memory::Sc,
        witnesses: &[
            "stale-elsewhere",
            "switch-kept",
            "switch-replayed",
            "interrupt-crosses-switch",
        ],
        quick: true,
    },
    Small {
        name: "exhaustive/switch-weak",
        line: "the same under weak memory",
        text: "tags=on; switch a | unmap a0; switch a, leave | switch a, user",
        memory: Memory::Weak,
        witnesses: &[
            "stale-elsewhere",
            "switch-kept",
            "switch-replayed",
            "interrupt-crosses-switch",
        ],
        quick: false,
    },
    Small {
        name: "exhaustive/lazy-unmap",
        line: "a page is unmapped lazily and mapped again while another CPU uses it, and ticks",
        text: "lazy=on; lazy-unmap a0, map a0; switch a | user, tick",
        memory: Memory::Weak,
        witnesses: &["stale-elsewhere", "unmapped-lazily", "address-needed"],
        quick: true,
    },
    Small {
        name: "exhaustive/lazy-unmap-isolated",
        line: "the same, and the other is an isolated CPU, which is left alone until the frame is needed",
        text: "lazy=on isolated=on; lazy-unmap a0, expire a, redeem a; switch a | user",
        memory: Memory::Weak,
        witnesses: &[
            "stale-elsewhere",
            "unmapped-lazily",
            "lazily-flushed",
            "isolated-left-pending",
        ],
        quick: false,
    },
    Small {
        name: "exhaustive/always",
        line: "a page is unmapped by broadcast while another CPU comes to its space",
        text: "arch=arm wide=2 broadcast=always; switch a | unmap a0; switch a, leave | switch a, user",
        memory: Memory::Weak,
        witnesses: &["invalidation-broadcast"],
        quick: true,
    },
    Small {
        name: "exhaustive/sticky",
        line: "the same, local while one CPU owns the space",
        text: "arch=arm wide=2 broadcast=sticky; switch a | unmap a0; | switch a, user",
        memory: Memory::Weak,
        witnesses: &["invalidation-local", "invalidation-broadcast"],
        quick: true,
    },
    Small {
        name: "exhaustive/active",
        line: "the same, local while one CPU is active in it",
        text: "arch=arm wide=2 broadcast=active; switch a | unmap a0; switch a, leave | switch a, user",
        memory: Memory::Weak,
        witnesses: &["invalidation-local", "invalidation-broadcast", "stale-tag-flushed"],
        quick: true,
    },
    Small {
        name: "exhaustive/trim",
        line: "the same, local while one CPU is in its set",
        text: "arch=arm wide=2 broadcast=trim; switch a | unmap a0; | switch a, user",
        memory: Memory::Weak,
        witnesses: &["invalidation-local", "invalidation-broadcast"],
        quick: true,
    },
    Small {
        name: "exhaustive/active-freed",
        line: "a table is freed while another CPU comes to its space, local while one CPU is active in it",
        text: "arch=arm wide=2 broadcast=active; switch a | free-table a0; switch a, leave | switch a, user",
        memory: Memory::Weak,
        witnesses: &["invalidation-broadcast", "table-page-freed"],
        quick: true,
    },
    Small {
        name: "exhaustive/rollover",
        line: "tags run out while another CPU comes to a space and a page of it is unmapped",
        text: "arch=arm wide=2 spaces=4 broadcast=sticky; switch a, switch b, switch c | unmap c0; | switch d, switch c, user",
        memory: Memory::Weak,
        witnesses: &["rollover", "invalidation-local", "invalidation-broadcast"],
        quick: true,
    },
    Small {
        name: "exhaustive/moving",
        line: "a page is unmapped while another CPU comes to its space, which has got a tag for all CPUs",
        text: "tags=on invlpgb=1 above=0; switch a, protect a0 | unmap a0; switch a, leave | switch a, user",
        memory: Memory::Sc,
        witnesses: MEETING,
        quick: true,
    },
    Small {
        name: "exhaustive/moving-weak",
        line: "the same under weak memory",
        text: "tags=on invlpgb=1 above=0; switch a, protect a0 | unmap a0; switch a, leave | switch a, user",
        memory: Memory::Weak,
        witnesses: MEETING,
        quick: false,
    },
    Small {
        name: "exhaustive/moving-freed",
        line: "a table is freed while another CPU wakes from lazy mode in a space that has got a tag for all CPUs",
        text: "tags=on invlpgb=1 above=0; switch a, protect a0 | free-table a0; switch a, lazy | switch a, user",
        memory: Memory::Sc,
        witnesses: &["tag-for-all-cpus", "invalidation-broadcast", "table-page-freed"],
        quick: true,
    },
    Small {
        name: "exhaustive/moved",
        line: "a page is unmapped while another CPU comes to its space, all CPUs of which are under one tag",
        text: "pages=2 tags=on invlpgb=1 above=0; switch a, protect a0, protect a1 | unmap a0; switch a, leave | switch a, user",
        memory: Memory::Weak,
        witnesses: &["tag-for-all-cpus", "invalidation-broadcast", "stale-elsewhere"],
        quick: true,
    },
    Small {
        name: "exhaustive/moves",
        line: "a space gets a tag for all CPUs, and a page of it is unmapped, while another CPU uses it",
        text: "pages=2 tags=on invlpgb=1 above=0; switch a | protect a0, unmap a0; switch a | user",
        memory: Memory::Sc,
        witnesses: &["tag-for-all-cpus", "invalidation-broadcast", "stale-elsewhere"],
        quick: false,
    },
    Small {
        name: "exhaustive/lazy",
        line: "a page is unmapped while another CPU wakes from lazy mode (D2)",
        text: "; switch a | unmap a0; switch a, lazy | switch a, user",
        memory: Memory::Sc,
        witnesses: &["stale-elsewhere", "switch-same", "lazy-caught-up"],
        quick: true,
    },
    Small {
        name: "exhaustive/lazy-weak",
        line: "the same under weak memory",
        text: "; switch a | unmap a0; switch a, lazy | switch a, user",
        memory: Memory::Weak,
        witnesses: &["stale-elsewhere", "switch-same", "lazy-caught-up"],
        quick: false,
    },
    Small {
        name: "exhaustive/freed",
        line: "a table is freed while another CPU wakes from lazy mode",
        text: "; switch a | free-table a0; switch a, lazy | switch a, user",
        memory: Memory::Sc,
        witnesses: &["stale-elsewhere", "lazy-caught-up", "table-page-freed"],
        quick: true,
    },
    Small {
        name: "exhaustive/user-half",
        line: "a CPU with the invalidation of two user halves pending goes back to user code in one space after the other",
        text: "tags=on spaces=2 split=pending; | switch a, user, unmap a0, switch b, user, switch a, user",
        memory: Memory::Weak,
        witnesses: &["user-half-flushed"],
        quick: true,
    },
    Small {
        name: "exhaustive/tree-groups",
        line: "two CPUs of the first and the last group of a word are called as a tree",
        text: "numbers=1,49,2 tree=1; call;;",
        memory: Memory::Sc,
        witnesses: &["call-returned"],
        quick: true,
    },
    Small {
        name: "exhaustive/retired",
        line: "a space is retired, and its memory given back, while a CPU that has it lazily leaves it",
        text: "; retire a; switch a, lazy | leave",
        memory: Memory::Sc,
        witnesses: &["space-reborn"],
        quick: true,
    },
    Small {
        name: "exhaustive/evicted",
        line: "a slot changes its space while the old one is flushed",
        text: "tags=on spaces=2 slots=1; switch a | unmap b0; switch b | switch a, switch b, user",
        memory: Memory::Sc,
        witnesses: &["stale-elsewhere", "switch-flushed"],
        quick: false,
    },
    Small {
        name: "exhaustive/three",
        line: "a page is unmapped while two CPUs have its space",
        text: "; switch a | unmap a0; switch a |; switch a |",
        memory: Memory::Sc,
        witnesses: &["stale-elsewhere"],
        quick: false,
    },
];

/// The exhaustive checks.
#[must_use]
pub fn exhaustive() -> Checks {
    SMALL
        .iter()
        .map(|small| {
            let Small { name, text, memory, witnesses, .. } = *small;
            let powers = Powers::HOSTILE.memory(memory);
            small.check(Fixed { name, text, powers, witnesses }, powers)
        })
        .collect()
}
