//! The step of a CPU, and its wait: where others go on, and where interrupts come.

use shootdown::CpuId;

use super::{Go, Hunt, Status, with};
use crate::hunt::choice::Footprint;
use crate::hunt::guest::take_away;
use crate::hunt::memory::{Location, mix};

/// Lets the others go on; comes back when this CPU has been chosen, and has taken an interrupt if
/// it was to take one.
pub(super) fn suspend_for_others() {
    let go = match with(Hunt::schedule) {
        Go::Away => {
            suspend();
            with(|h| h.me().command)
        }
        go => go,
    };
    obey(go);
}

fn suspend() {
    let yielder = with(|h| h.cpus[h.executing as usize].yielder);
    // SAFETY: the yielder lives on the coroutine's stack, and we run on it.
    unsafe { &*yielder }.suspend(());
}

/// The run is over: this CPU never goes on. Neither does a world that looks at the end of a run,
/// which is no CPU.
pub(in crate::hunt) fn stop() -> ! {
    if with(|h| !h.running) {
        std::panic::resume_unwind(Box::new("the run is over"));
    }
    loop {
        suspend();
    }
}

/// Takes the interrupt, if that is what was decided. Says whether it did.
pub(super) fn obey(go: Go) -> bool {
    if go != Go::Interrupt {
        return false;
    }
    let (world, cpu) = with(|h| {
        let Hunt { cpus, memory, current, .. } = h;
        let me = &mut cpus[*current as usize];
        me.pending = false;
        me.irqs_on = false;
        me.in_interrupt = true;
        // Where among the accesses to its own memory it comes is part of the CPU's state.
        me.history = mix(me.history ^ 0x1e57 ^ me.own_accesses << 16);
        memory.receive(*current, &me.knowledge);
        me.knowledge.clear();
        h.note(|| "takes the interrupt".to_owned());
        (h.world, h.current)
    });
    // SAFETY: the world outlives the run.
    unsafe { &*world }.interrupt(CpuId(u32::from(cpu)));
    with(|h| {
        h.note(|| "leaves the interrupt".to_owned());
        h.me().irqs_on = true;
        h.me().in_interrupt = false;
    });
    true
}

/// This CPU is about to do something that others can notice, or that interrupts may come before.
pub(in crate::hunt) fn step(location: Location, write: bool, everything: bool) {
    loop {
        let go = with(|h| {
            if !h.running {
                return Go::On;
            }
            let cpu = h.current;
            h.me().next = Footprint { cpu, location, write, everything };
            h.me().status = Status::Ready;
            h.schedule()
        });
        let taken = match go {
            Go::Away => {
                suspend();
                obey(with(|h| h.me().command))
            }
            go => obey(go),
        };
        if !taken && !take_away() {
            return;
        }
    }
}

/// A turn of a wait loop: comes back when something that this CPU loaded since the last turn has
/// changed, or after an interrupt.
pub(in crate::hunt) fn relax() {
    let news = with(|h| {
        let me = h.me();
        let taken = std::mem::replace(&mut me.handler_waited, me.in_interrupt);
        taken && !me.in_interrupt || h.memory.has_news(h.current)
    });
    if news {
        step(0, false, true);
    } else {
        with(|h| {
            let cpu = h.current;
            h.me().next = Footprint::everything(cpu);
            h.me().status = Status::Waiting;
        });
        suspend_for_others();
        with(|h| h.me().status = Status::Ready);
    }
    with(|h| h.memory.catch_up(h.current));
}
