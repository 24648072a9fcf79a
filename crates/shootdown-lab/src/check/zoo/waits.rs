//! Deadlocks, lost answers, handlers that come at the wrong moment, CPUs that come and go.

use shootdown::mutant::Mutant;
use shootdown_machine::hunt::kernel::KernelMutant;
use shootdown_machine::oracle::Invariant;

use super::scenario::{Scenario, Step, Whole};

/// Somebody waits for ever.
const STUCK: &[Invariant] = &[Invariant::Progress];

/// The scenarios.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "redox-deaf-spin",
        source: "Redox 1f8d7bc6, 7d42e8d9; likewise Twizzler #150, Uros #317",
        year: 2026,
        wrong: "a CPU that waited for a lock with interrupts off did not look at flush requests, and the lock's holder waited for its answer",
        kept_out: "contract: whoever waits with interrupts off calls `poll`; the library's own loops do",
        step: Step::Kernel(KernelMutant::DeafSpin),
        program: "; switch a | unmap a0; switch a | peek a, user",
        breaks: STUCK,
        ..Scenario::USUAL
    },
    Scenario {
        name: "asterinas-lost-handler",
        source: "Asterinas #1877",
        year: 2025,
        wrong: "the interrupt was raised, and nobody was registered to answer it",
        kept_out: "contract: a kick ends in `on_kick` on every target",
        step: Step::Kernel(KernelMutant::DeafHandler),
        program: "; switch a | unmap a0; switch a | user, user",
        breaks: STUCK,
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "offline-with-requests",
        source: "Linux 8d056c48e486",
        year: 2014,
        wrong: "a CPU went offline with requests in its queue, whose senders waited for ever",
        kept_out: "`offline` leaves the set, fences (D4), and serves once more",
        step: Step::Library(Mutant::OfflineDoesNotServe),
        program: "; call; offline",
        breaks: STUCK,
        seen: &["went-offline"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "nmi-during-switch",
        source: "Linux 4.19, nmi_uaccess_okay",
        year: 2018,
        wrong: "a non-maskable handler read user memory in the middle of a switch, when the loaded tables were not the task's",
        kept_out: "contract: a non-maskable handler asks `user_access_ok` first",
        step: Step::Kernel(KernelMutant::UncheckedNmi),
        program: "tags=on spaces=2 early=off nmi=on; unmap a0; switch a, switch b | switch a, user",
        breaks: &[
            Invariant::Revocation,
            Invariant::MasterInvariant,
            Invariant::FrameReuse,
            Invariant::TagReuse,
        ],
        seen: &["nmi-refused", "switch-replayed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "retire-under-lazy",
        source: "Asterinas (leave before load)",
        year: 2025,
        wrong: "a space's tables were freed while a CPU in lazy mode still had them loaded",
        kept_out: "`AddressSpace::retire` makes lazy CPUs leave, and refuses while others run in it",
        step: Step::Kernel(KernelMutant::RetireWithoutAsking),
        program: "; retire a; switch a, lazy | kernel",
        breaks: &[Invariant::TableReuse],
        seen: &["space-reborn"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "resume-with-old-state",
        source: "Linux 4.14, TLB state on hotplug and resume",
        year: 2017,
        wrong: "a CPU that came back went on with the TLB state that it had when it left",
        kept_out: "`online` empties the whole TLB and waits for that",
        step: Step::Library(Mutant::OnlineKeeps),
        program: "kernel=1; kernel-page 0; switch a | kernel, offline, online, kernel",
        breaks: &[
            Invariant::Revocation,
            Invariant::MasterInvariant,
            Invariant::FrameReuse,
            Invariant::TagReuse,
        ],
        seen: &["went-offline", "came-back-online"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "freebsd-nmi-stale-root",
        source: "FreeBSD 8362c96b5d67",
        year: 2018,
        wrong: "a non-maskable handler worked with a remembered root that was not the one in use",
        kept_out: "`user_access_ok` compares with what is loaded, not with what is remembered",
        step: Step::Library(Mutant::UserAccessElsewhere),
        program: "tags=on spaces=2 nmi=on; unmap a0; switch a, switch b | switch a, user",
        breaks: &[
            Invariant::Revocation,
            Invariant::MasterInvariant,
            Invariant::FrameReuse,
            Invariant::TagReuse,
        ],
        seen: &["nmi-refused"],
        ..Scenario::USUAL
    },
];
