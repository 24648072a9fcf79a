//! Flushes: who is told, what they do, and when it is over.

use shootdown::gather::{Array, Gather};
use shootdown::mutant::Mutant::*;
use shootdown::{Facts, FlushError, Platform, Policy, Stride, VaRange};
use shootdown_machine::hunt::hw;
use shootdown_machine::oracle::Invariant;

use crate::check::mutants::kit::{
    deep_idle, enter, enter_now, hear, kit, lazy, meet, page, table, tell, tree, unmap_kernel, user,
};
use crate::check::mutants::port::{self, Rig, Rules, TAGGED, Waits};
use crate::check::mutants::scene::Scene;

static WHOLE: Policy = Policy { ranges: false, ..Policy::SHOOTDOWN };
static NO_LOG: Policy = Policy { range_log: false, ..Policy::SHOOTDOWN };

/// A CPU that replays many steps rather than forget everything.
static PATIENT: Facts = Facts { ceiling: 16, ..TAGGED };

const fn policy(policy: &'static Policy) -> Rules {
    Rules { policy, ..Rules::USUAL }
}

const NOTES: Rules = Rules { notes: true, ..Rules::USUAL };

/// CPU 1 goes to and fro between other spaces while CPU 0 waits for it: it says the answer,
/// something else, and the answer again.
fn to_and_fro(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).unmap(0).expect("CPU 0 may wait");
        return;
    }
    enter(0);
    user();
    meet(2);
    for space in [1, 2, 1, 2, 1, 2, 1] {
        enter(space);
    }
}

/// CPUs 1 and 2 use a space; CPU 0 takes two pages away.
fn taken(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        enter(0);
        meet(3);
        tree(0).unmap(0).expect("CPU 0 may wait");
        user();
        tree(0).unmap(1).expect("CPU 0 may wait");
        user();
        return;
    }
    enter(0);
    user();
    meet(3);
    user();
    user();
}

/// Three CPUs use a space, and two of them take a page away each.
fn two_take(cpu: u8) {
    port::come_online();
    enter(0);
    user();
    meet(3);
    if cpu != 1 {
        tree(0).unmap(u32::from(cpu)).expect("tasks may wait");
    }
    user();
    user();
}

/// As [`two_take`], but one takes a whole table away, and only a third has the space loaded.
fn table_and_page(cpu: u8) {
    port::come_online();
    match cpu {
        0 => {
            meet(3);
            tree(0).free_table(0).expect("tasks may wait");
        }
        1 => {
            enter(0);
            user();
            meet(3);
        }
        _ => {
            meet(3);
            tree(0).unmap(4).expect("tasks may wait");
        }
    }
}

/// CPU 1 goes from one space to another while CPUs 0 and 2 take a page of each away.
fn two_spaces(cpu: u8) {
    port::come_online();
    match cpu {
        0 => {
            meet(3);
            tree(0).unmap(0).expect("tasks may wait");
        }
        1 => {
            enter(1);
            user();
            enter(0);
            user();
            meet(3);
            enter(1);
            user();
            user();
        }
        _ => {
            meet(3);
            tree(1).unmap(1).expect("tasks may wait");
        }
    }
}

/// A table is freed that CPU 1 uses and CPU 2 has loaded lazily; the flusher knows what they did.
fn freed(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        enter(0);
        user();
        if cpu == 2 {
            lazy();
        }
        meet(3);
        return;
    }
    meet(3);
    let (change, leaf) = tree(0).unhook_table(0);
    tree(0).space.flush(&Rig::pin(), table(0)).expect("CPU 0 may wait");
    if !(port::forgetting_is_over(1) && port::forgetting_is_over(2)) {
        hw::violation(Invariant::TableReuse, "what was done to forget may come later".to_owned());
    }
    hw::revoked(&[change]);
    hw::free_table(leaf);
}

/// As [`freed`], by a gather.
fn gathered(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        enter(0);
        user();
        if cpu == 2 {
            lazy();
        }
        meet(3);
        user_if(cpu == 1);
        return;
    }
    meet(3);
    let page = |at: u64| VaRange::new(at << 12, 1, Stride::Page4K).expect("a page");
    let mut gather = Gather::<Rig, Array<u8, 4>>::new(tree(0).space);
    let of_page = hw::write_entry(tree(0).word(4), shootdown_machine::hostile::Descriptor::ABSENT);
    gather.unmapped(page(4), 0).expect("room");
    let (of_table, leaf) = tree(0).unhook_table(0);
    gather.table_freed(page(0), 1).expect("room");
    gather.changed(page(1));
    gather.finish(&Rig::pin()).map_err(|(e, _)| e).expect("CPU 0 may wait");
    hw::revoked(&[of_page, of_table]);
    hw::free_table(leaf);
}

fn user_if(runs: bool) {
    if runs {
        user();
        user();
    }
}

/// A gather is finished later.
fn deferred(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        enter(0);
        user();
        meet(3);
        user();
        user();
        return;
    }
    meet(3);
    let mut gather = Gather::<Rig, Array<u8, 4>>::new(tree(0).space);
    let change = hw::write_entry(tree(0).word(0), shootdown_machine::hostile::Descriptor::ABSENT);
    let range = VaRange::new(0, 1, Stride::Page4K).expect("a page");
    gather.unmapped(range, 0).expect("room");
    let mut deferred = gather.defer(&Rig::pin()).map_err(|(e, _)| e).expect("kicks work");
    while let Err(again) = deferred.poll() {
        deferred = again;
        hw::relax();
    }
    hw::revoked(&[change]);
}

/// A flush is begun, and its ticket asked until it is done, while a target looks for work by
/// itself.
fn ticket(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        enter(0);
        user();
        meet(2);
        let _ = shootdown::poll::<Rig>(&Rig::pin());
        user();
        user();
        return;
    }
    meet(2);
    let change = hw::write_entry(tree(0).word(0), shootdown_machine::hostile::Descriptor::ABSENT);
    let mut ticket = tree(0).space.begin_flush(&Rig::pin(), page(0)).expect("kicks work");
    while !ticket.poll() {
        hw::relax();
    }
    hw::revoked(&[change]);
}

/// A flush that can't wait says so.
fn would_wait(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        let done = tree(0).unmap(0);
        assert!(matches!(done, Ok(()) | Err(FlushError::WouldWait)), "errors: {done:?}");
        return;
    }
    enter(0);
    user();
    meet(2);
    user();
}

/// A CPU that was told acknowledges before it invalidates: what it used before is over.
fn early(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).unmap(0).expect("CPU 0 may wait");
        if !port::uses_are_over(1) {
            hw::violation(Invariant::FrameReuse, "what CPU 1 used may come later".to_owned());
        }
        return;
    }
    enter(0);
    hw::set_irqs(false);
    meet(2);
    user();
    hw::set_irqs(true);
}

/// Software walks tables of a space whose generation it has seen.
fn software_walk(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).unmap(0).expect("CPU 0 may wait");
        return;
    }
    meet(2);
    let seen = tree(0).space.generation().0;
    if seen != 0 && hw::read_entry(tree(0).word(0)).present() {
        hw::violation(Invariant::Revocation, "the change is counted, and can't be seen".to_owned());
    }
}

/// The log's ring has come round when a lazy CPU reads the newest step.
fn log_round(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        for _ in 0..8 {
            tree(0).space.flush(&Rig::pin(), page(1)).expect("nobody else is there");
        }
        meet(2);
        meet(4);
        tree(0).unmap(0).expect("CPU 0 may wait");
        return;
    }
    meet(2);
    enter(0);
    user();
    lazy();
    meet(4);
    enter(0);
    user();
    user();
}

/// The log's ring comes round while CPU 1 reads it on its way out of lazy mode. An interrupt may
/// come in between, whose handler waits until only the last step is missing.
fn log_overrun(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        let change = tree(0).take(0);
        let mut ticket = tree(0).space.begin_flush(&Rig::pin(), page(0)).expect("kicks work");
        meet(4);
        assert!(hw::kick(shootdown::CpuId(1)));
        hear(0);
        begin_flushes(7);
        tell(1);
        begin_flushes(1);
        while !ticket.poll() {
            hw::relax();
        }
        hw::revoked(&[change]);
        tell(2);
        return;
    }
    enter(0);
    user();
    lazy();
    meet(2);
    meet(4);
    enter_now(0);
    user();
    hear(2);
    user();
}

fn lets_it_come_round(cpu: u8) {
    if cpu == 1 && kit().cells[1].replace(1) == 0 {
        tell(0);
        hear(1);
    }
    port::answer();
}

/// Begins flushes of a page that nobody misses: no more than steps for the log.
fn begin_flushes(n: u32) {
    for _ in 0..n {
        let _ = tree(0).space.begin_flush(&Rig::pin(), page(1)).expect("kicks work");
    }
}

/// CPU 0 writes a step into the log, and an interrupt comes in between. Its handler comes round the
/// ring to the same entry, where CPU 1, back from lazy mode, looks for it.
fn log_writers(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        begin_flushes(1);
        return;
    }
    meet(2);
    assert!(hw::kick(shootdown::CpuId(0)));
    meet(4);
    enter(0);
    user();
    lazy();
    meet(6);
    meet(8);
    enter(0);
    user();
    user();
}

fn comes_round(cpu: u8) {
    if cpu == 0 && kit().cells[0].replace(1) == 0 {
        begin_flushes(7);
        meet(4);
        meet(6);
        tree(0).unmap(0).expect("nobody has to be told");
        meet(8);
    }
    port::answer();
}

/// CPU 1 comes back to a space while flushes ask it to leave the set.
fn trimmed(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        for _ in 0..63 {
            tree(0).space.flush(&Rig::pin(), page(1)).expect("CPU 0 may wait");
        }
        meet(4);
        tree(0).space.flush(&Rig::pin(), page(1)).expect("CPU 0 may wait");
        tree(0).unmap(0).expect("CPU 0 may wait");
        return;
    }
    enter(0);
    user();
    enter(1);
    meet(2);
    meet(4);
    enter(0);
    user();
    user();
}

/// CPU 1 comes online, with whatever its TLB holds, while a kernel page is taken away.
fn kernel_online(cpu: u8) {
    if cpu == 0 {
        port::come_online();
        unmap_kernel().expect("CPU 0 may wait");
        return;
    }
    port::power_on();
    port::come_online();
    hw::kernel_code();
    hw::kernel_code();
}

/// CPU 1 uses a kernel page that is taken away.
fn kernel_taken(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        unmap_kernel().expect("CPU 0 may wait");
        return;
    }
    enter(0);
    hw::kernel_code();
    meet(2);
    hw::kernel_code();
    deep_idle();
    hw::kernel_code();
}

pub static SCENES: &[Scene] = &[
    Scene::new("taken", "two CPUs use pages that are taken away", 3, taken).kills(&[
        RespondWithoutInvalidate,
        FilterLosesOne,
        FilterSkipsActive,
        NoLocalWork,
        NoWait,
        WaitsForLastOnly,
        SleepUnchecked,
        SettleWithoutSync,
        InsertMarkForgotten,
    ]),
    Scene::new("taken-push", "the same with posted requests", 3, taken)
        .rules(policy(&Policy::LINUX_5_13))
        .kills(&[HintTrusts]),
    Scene::new("to-and-fro", "a CPU that is waited for goes to and fro", 2, to_and_fro)
        .kills(&[SleepOnAcknowledgement]),
    Scene::new("two-take", "two CPUs take a page away each", 3, two_take)
        .kills(&[FilterTrustsOvertaken]),
    Scene::new("two-take-push", "the same with posted requests", 3, two_take)
        .rules(policy(&Policy::LINUX_5_13))
        .kills(&[PartialOverMissedStep]),
    Scene::new("table-and-page", "a table and a page are taken away", 3, table_and_page)
        .kills(&[ReplayForgetsFreed]),
    Scene::new("two-spaces-push", "posted requests find another space", 3, two_spaces)
        .rules(policy(&Policy::LINUX_5_13))
        .kills(&[PushIgnoresSpace]),
    Scene::new("freed", "a table is freed that others use or have loaded", 3, freed)
        .rules(NOTES)
        .kills(&[
            EarlyAckFreed,
            AckRelaxed,
            NoAck,
            LeafOnlyFreed,
            FilterSkipsLazyFreed,
            LazyStaysFreed,
            LazyAcknowledgesFreed,
            RecordForgetsFreed,
        ]),
    Scene::new("freed-push", "the same with posted requests", 3, freed)
        .rules(Rules { notes: true, ..policy(&Policy::LINUX_5_13) })
        .kills(&[AckBeforeUnload]),
    Scene::new("freed-no-log", "the same without a log", 3, freed)
        .rules(Rules { notes: true, ..policy(&NO_LOG) })
        .kills(&[UnknownCountsAsLeaf]),
    Scene::new("gathered", "the same by a gather", 3, gathered).kills(&[
        GatherWithoutFlush,
        GatherForgetsTables,
        GatherCoversLast,
    ]),
    Scene::new("deferred", "a gather is finished later", 3, deferred)
        .kills(&[DeferredIgnoresTicket, TicketTrustsFirst]),
    Scene::new("ticket-push", "a posted flush is finished later", 2, ticket)
        .rules(policy(&Policy::LINUX_5_13))
        .kills(&[DeferForgotten, TakeDeferredRelaxed]),
    Scene::new("would-wait", "a flush that can't wait says so", 2, would_wait)
        .rules(Rules { waits: Waits::Nowhere, ..Rules::USUAL })
        .kills(&[WouldWaitIsOk]),
    Scene::new("early", "what was used before an early answer is over", 2, early)
        .rules(NOTES)
        .kills(&[EarlyAckRelaxed]),
    Scene::new("software-walk", "who sees the count sees the tables", 2, software_walk)
        .kills(&[BumpRelaxed, GenerationRelaxed]),
    Scene::new("whole", "whole tags are invalidated", 3, taken)
        .rules(policy(&WHOLE))
        .kills(&[TagForgotten]),
    Scene::new("log-round", "the log comes round before it is read", 2, log_round)
        .kills(&[StampRelaxed, StampSeenRelaxed]),
    Scene::new("log-overrun", "the log comes round while it is read", 2, log_overrun)
        .rules(Rules { facts: &PATIENT, ..Rules::USUAL })
        .interrupt(lets_it_come_round)
        .kills(&[RecordWithoutFence, ReadWithoutFence, StepReadOnce]),
    Scene::new("log-writers", "two writers meet in an entry of the log", 2, log_writers)
        .rules(Rules { facts: &PATIENT, ..Rules::USUAL })
        .interrupt(comes_round)
        .kills(&[RecordIgnoresWriter, RecordClaimIgnored]),
    Scene::new("trimmed", "a CPU is asked to leave a set and comes back", 2, trimmed)
        .kills(&[LeaveUnchecked]),
    Scene::new("kernel-online", "a CPU comes online while a kernel page goes", 2, kernel_online)
        .kills(&[
            EverywhereWithoutFence,
            EverywhereWithoutPublish,
            OnlineWithoutFence,
            OnlineKeeps,
            OnlineWithoutSync,
            OnlineListedLate,
            OnlineUnlisted,
        ]),
    Scene::new("kernel-taken", "a kernel page is taken away", 2, kernel_taken)
        .kills(&[EverywhereInvalidatesNothing]),
];
