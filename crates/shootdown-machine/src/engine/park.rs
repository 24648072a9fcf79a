//! Waiting without working: parked CPUs and idle ones.
//!
//! A wait loop loads what it waits for and calls [`relax`]. Instead of turning thousands of times
//! the CPU is parked until something can have changed: one of the lines it loaded since its last
//! turn is written, or an interrupt arrives. It wakes when the write completes and then pays for
//! fetching the line, as a spinning CPU would.

use super::cpu::NEVER;
use super::{Engine, Mode, suspend, take_due, with};
use crate::oracle::Event;
use crate::time::Time;

/// A turn of a loop that watches too many lines to be parked, or that found news, ps: a pause
/// instruction and the loop around it.
const TURN: u64 = 20_000;

/// Registrations of a line above which old ones are swept out.
const SWEEP: usize = 8;

/// A turn of a loop that may end by itself after so many turns, ps: a few pauses. Longer than a
/// turn, as nothing happens in most of them.
const SOME_TURNS: u64 = 100_000;

/// One turn of a wait loop.
pub(crate) fn relax() {
    relax_until(NEVER);
}

/// The same for a loop that counts its turns: it goes on after some time even if nothing has
/// changed.
pub(crate) fn spin() {
    relax_until(super::now().ps() + SOME_TURNS);
}

fn relax_until(at: u64) {
    take_due();
    let park = with(|e| {
        e.settle();
        let cpu = e.current;
        let news = e.me().overflowed
            || e.cpus[cpu as usize]
                .watched
                .iter()
                .any(|(line, version)| e.lines[*line as usize].version != *version);
        if !news {
            e.park();
            if at != NEVER {
                e.wake_by(cpu, at);
            }
        }
        let mode = e.me().mode;
        if matches!(mode, Mode::Kernel | Mode::User) {
            e.me().mode = Mode::Waiting;
        }
        if news {
            e.me().spend(TURN);
        }
        (!news, mode)
    });
    let (parked, mode) = park;
    if parked {
        suspend();
    }
    with(|e| {
        e.forgive();
        let me = e.me();
        me.interruptible = false;
        me.mode = mode;
        me.wait = me.wait.wrapping_add(1);
        me.watched.clear();
        me.overflowed = false;
    });
    take_due();
}

/// Does nothing until `until`, or until woken. Returns whether it was woken.
pub(crate) fn idle_until(until: Time) -> bool {
    let until = until.ps();
    with(Engine::settle);
    let mode = super::mode(Mode::Idle);
    loop {
        take_due();
        let done = with(|e| {
            let cpu = e.current;
            let me = e.me();
            if me.woken || me.time >= until {
                return true;
            }
            e.note(Event::Note("idles", 0));
            let me = e.me();
            me.interruptible = true;
            let next = me.next_event();
            let at = until.min(next).max(me.time);
            if at != NEVER {
                e.enqueue(cpu, at);
            }
            false
        });
        if done {
            break;
        }
        suspend();
        with(|e| {
            e.me().interruptible = false;
            e.forgive();
        });
    }
    super::mode(mode);
    with(|e| std::mem::take(&mut e.me().woken))
}

impl Engine {
    /// Registers the current CPU with every line it watches.
    fn park(&mut self) {
        let cpu = self.current;
        self.note(Event::Note("waits", 0));
        let state = &mut self.cpus[cpu as usize];
        state.interruptible = true;
        let stamp = state.wait;
        let next = state.next_event();
        let watched = std::mem::take(&mut state.watched);
        let mut last = None;
        for (line, _) in &watched {
            if last.replace(*line) == Some(*line) {
                continue;
            }
            let line = &mut self.lines[*line as usize];
            if line.extra == 0 {
                line.extra = self.sharers.add();
            }
            if self.waiters.len() <= line.extra as usize {
                self.waiters.resize_with(line.extra as usize + 1, Vec::new);
            }
            let list = &mut self.waiters[line.extra as usize];
            if list.len() >= SWEEP && list.len().is_power_of_two() {
                let cpus = &self.cpus;
                list.retain(|(c, s)| cpus[*c as usize].wait == *s);
            }
            if list.last() != Some(&(cpu, stamp)) {
                list.push((cpu, stamp));
            }
        }
        self.cpus[cpu as usize].watched = watched;
        if next != NEVER {
            self.wake_by(cpu, next);
        }
    }

    /// A line was written by another CPU's fetch: those who wait for it go on when the write
    /// completes.
    #[inline]
    pub(super) fn written(&mut self, number: usize, done: u64) {
        let list = self.lines[number].extra as usize;
        if self.waiters.get(list).is_some_and(|waiters| !waiters.is_empty()) {
            self.wake_waiters(list, done);
        }
    }

    fn wake_waiters(&mut self, list: usize, done: u64) {
        let mut waiters = std::mem::take(&mut self.waiters[list]);
        for (cpu, stamp) in waiters.drain(..) {
            if self.cpus[cpu as usize].wait == stamp {
                self.wake_by(cpu, done);
            }
        }
        self.waiters[list] = waiters;
    }
}
