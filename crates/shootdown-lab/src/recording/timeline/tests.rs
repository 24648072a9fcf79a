use super::*;
use crate::recording::model::{Call, FlushStep, OffCpu, Origin, What};

fn at(time: u64, cpu: u16, tid: u32, what: What) -> Event {
    Event { time, cpu: Cpu(cpu), tid: Tid(tid), what }
}

fn task(tid: u32, pid: u32, origin: Origin) -> Event {
    at(0, 0, tid, What::Task { pid, origin, name: String::new() })
}

fn flush(time: u64, cpu: u16, tid: u32, step: FlushStep) -> Event {
    at(time, cpu, tid, What::Flush { step, extent: Extent::Pages(1) })
}

fn switch(time: u64, cpu: u16, tid: u32, next: u32, off: OffCpu) -> Event {
    at(time, cpu, tid, What::Switch { next: Tid(next), off })
}

/// Two threads of one program on two CPUs, beside another program and the kernel.
fn cast() -> Vec<Event> {
    vec![
        task(0, 0, Origin::Kernel),
        task(10, 10, Origin::Command),
        task(11, 10, Origin::Command),
        task(20, 20, Origin::Foreign),
        task(30, 30, Origin::Kernel),
    ]
}

fn runs(timeline: &Timeline) -> Vec<(u64, u16, Runs)> {
    let run = |s: &Step| match s.act {
        Act::Run(what) => Some((s.time, s.cpu.0, what)),
        _ => None,
    };
    timeline.steps.iter().filter_map(run).collect()
}

fn program(thread: u32, space: u32) -> Runs {
    Runs::Program { thread: Tid(thread), space: SpaceId(space) }
}

#[test]
fn r1_clone_vm_shares_a_space_and_exec_gives_a_new_one_when_the_kernel_loads_it() {
    let mut events = cast();
    events.extend([
        at(1, 0, 10, What::Exec),
        at(2, 0, 10, What::Fork { child: Tid(11), shares_space: true }),
        switch(3, 1, 0, 11, OffCpu::Preempted),
        flush(3, 1, 11, FlushStep::Switch),
        flush(5, 1, 11, FlushStep::Switch),
        flush(6, 1, 11, FlushStep::LocalSpace),
        at(7, 1, 11, What::Exec),
    ]);
    let timeline = Timeline::of(&events);
    assert_eq!(
        runs(&timeline),
        [
            (0, 0, program(10, 0)),
            (0, 1, Runs::Idle),
            (1, 0, program(10, 1)),
            (3, 1, program(11, 1)),
            (5, 1, program(11, 2)),
        ]
    );
    assert_eq!(timeline.spaces, [true, true, true]);
}

#[test]
fn r2_a_kernel_thread_has_no_space_and_another_program_has_its_own() {
    let mut events = cast();
    events.extend([
        switch(1, 0, 10, 30, OffCpu::Blocked),
        switch(2, 0, 30, 20, OffCpu::Blocked),
        switch(3, 0, 20, 11, OffCpu::Preempted),
    ]);
    let timeline = Timeline::of(&events);
    assert_eq!(
        runs(&timeline),
        [
            (0, 0, program(10, 0)),
            (1, 0, Runs::Kernel),
            (2, 0, program(20, 1)),
            (3, 0, program(11, 0)),
        ]
    );
    assert_eq!(timeline.spaces, [true, false]);
}

#[test]
fn r3_and_r4_a_request_is_counted_once_and_knows_its_cause() {
    let args = CallArgs { call: Call::Munmap, addr: 0x5000, len: 4096, mode: 0, extra: 0 };
    let mut events = cast();
    events.extend([
        switch(1, 1, 0, 11, OffCpu::Preempted),
        at(2, 0, 10, What::Enter(args)),
        flush(3, 0, 10, FlushStep::Ask),
        at(4, 0, 10, What::RemoteFlush { target: Cpu(1) }),
        flush(5, 0, 10, FlushStep::LocalSpace),
        at(6, 0, 10, What::Leave { call: Call::Munmap, result: 0 }),
        at(7, 0, 10, What::Fault { page: 9, write: true, execute: false, protection: true }),
        flush(8, 0, 10, FlushStep::LocalSpace),
        flush(9, 0, 10, FlushStep::LocalSpace),
        flush(9, 1, 11, FlushStep::Responded),
    ]);
    let timeline = Timeline::of(&events);
    let causes: Vec<_> = timeline
        .steps
        .iter()
        .filter_map(|s| match s.act {
            Act::Flush { cause, .. } => Some(cause),
            _ => None,
        })
        .collect();
    assert_eq!(causes, [Cause::Call(args), Cause::WriteFault(9), Cause::Unknown]);
    let truth = timeline.truth;
    assert_eq!((truth.requests, truth.asks, truth.remote_flushes), (3, 1, 1));
    assert_eq!((truth.met_running, truth.met_lazy, truth.in_vain, truth.unknown), (1, 0, 0, 0));
    assert_eq!(timeline.met_running(), 3, "the other thread ran all the time");
}

#[test]
fn a_thread_that_ends_has_its_space_to_its_last_switch_and_the_last_one_ends_it() {
    let mut events = cast();
    events.extend([
        at(1, 0, 10, What::Exit),
        switch(2, 0, 10, 11, OffCpu::Dead),
        at(3, 0, 11, What::Exit),
        flush(4, 0, 11, FlushStep::LocalSpace),
        switch(5, 0, 11, 0, OffCpu::Dead),
    ]);
    // The second thread is known to be there only because it runs before the first one ends.
    events.insert(5, switch(0, 1, 11, 0, OffCpu::Blocked));
    let timeline = Timeline::of(&events);
    let ends: Vec<_> = timeline.steps.iter().filter(|s| matches!(s.act, Act::End(_))).collect();
    assert_eq!(ends, [&Step { time: 5, cpu: Cpu(0), act: Act::End(SpaceId(0)) }]);
    assert_eq!(timeline.pauses[&Tid(11)], [Pause { from: 0, until: 2 }]);
}

#[test]
fn r6_an_unseen_switch_happened_as_long_before_as_seen_ones_do() {
    let mut events = cast();
    let fault = |time, cpu, tid| {
        at(time, cpu, tid, What::Fault { page: 1, write: true, execute: false, protection: false })
    };
    events.extend([
        switch(100, 0, 10, 0, OffCpu::Blocked),
        switch(230, 0, 0, 10, OffCpu::Preempted),
        flush(230, 0, 10, FlushStep::Switch),
        fault(260, 0, 10),
        switch(300, 1, 11, 0, OffCpu::Blocked),
        flush(1060, 0, 10, FlushStep::LocalSpace),
        flush(1090, 0, 10, FlushStep::LocalSpace),
        fault(1100, 1, 11),
        switch(1200, 1, 11, 0, OffCpu::Blocked),
        at(1290, 0, 10, What::Wakeup { task: Tid(11) }),
        fault(1300, 1, 11),
    ]);
    let timeline = Timeline::of(&events);
    let arrivals = runs(&timeline);
    assert!(arrivals.contains(&(1070, 1, program(11, 0))), "30 ns before the event");
    assert!(arrivals.contains(&(1290, 1, program(11, 0))), "not before it could run");
    assert_eq!(timeline.met_running(), 1);
}

#[test]
fn a_lazy_cpu_that_was_asked_leaves_the_space_and_is_asked_in_vain_after() {
    let mut events = cast();
    let ask = |time| at(time, 0, 10, What::RemoteFlush { target: Cpu(1) });
    events.extend([
        switch(1, 1, 11, 0, OffCpu::Blocked),
        flush(2, 0, 10, FlushStep::Ask),
        ask(3),
        flush(4, 0, 10, FlushStep::LocalSpace),
        flush(5, 0, 10, FlushStep::Ask),
        ask(6),
        flush(7, 0, 10, FlushStep::LocalSpace),
        at(8, 0, 30, What::RemoteFlush { target: Cpu(1) }),
        switch(9, 1, 0, 20, OffCpu::Preempted),
        flush(10, 0, 10, FlushStep::Ask),
        flush(11, 1, 20, FlushStep::Switch),
        ask(12),
    ]);
    let truth = Timeline::of(&events).truth;
    assert_eq!((truth.met_running, truth.met_lazy, truth.in_vain, truth.unknown), (0, 1, 1, 1));
    assert_eq!(truth.met_switching, 1, "the switch was under way when the flush began");
}

#[test]
fn who_is_between_two_spaces_is_asked_while_it_is_in_the_set() {
    let everything =
        |time, tid, step| at(time, 0, tid, What::Flush { step, extent: Extent::Everything });
    let mut events = cast();
    events.extend([
        switch(1, 1, 11, 20, OffCpu::Blocked),
        flush(2, 1, 20, FlushStep::Switch),
        everything(3, 10, FlushStep::Ask),
        everything(4, 10, FlushStep::LocalSpace),
        switch(5, 1, 20, 30, OffCpu::Blocked),
        switch(6, 1, 30, 20, OffCpu::Blocked),
        flush(7, 0, 10, FlushStep::Ask),
        flush(8, 1, 20, FlushStep::Switch),
        flush(9, 0, 10, FlushStep::LocalSpace),
    ]);
    assert_eq!(Timeline::of(&events).asked_while_switching(), 0, "it had left the set");
    events.drain(7..9);
    assert_eq!(Timeline::of(&events).asked_while_switching(), 1);
}

#[test]
fn r7_without_flush_events_calls_that_take_away_are_requests() {
    let args = |call, mode| CallArgs { call, addr: 0x5000, len: 8192, mode, extra: 0 };
    let mut events = cast();
    let calls = [
        (Call::Munmap, 0, 0),
        (Call::Mprotect, 3, 0),
        (Call::Mprotect, 1, 0),
        (Call::Munmap, 0, -22),
    ];
    for (time, (call, mode, result)) in (1..).step_by(2).zip(calls) {
        events.push(at(time, 0, 10, What::Enter(args(call, mode))));
        events.push(at(time + 1, 0, 10, What::Leave { call, result }));
    }
    let timeline = Timeline::of(&events);
    let times =
        timeline.steps.iter().filter(|s| matches!(s.act, Act::Flush { .. })).map(|s| s.time);
    assert_eq!(times.collect::<Vec<_>>(), [2, 6]);
    assert!(!timeline.flushes_seen);
}
