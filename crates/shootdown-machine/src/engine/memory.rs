//! What accesses to shared memory cost.
//!
//! - A load waits for the line. The value it returns is the one at its issue; a line that a write
//!   has made busy delays the load until that write is complete, so no one sees a value before its
//!   time.
//! - A store is posted: the line is fetched in the background, in one of the CPU's fill buffers,
//!   and the CPU goes on. The next full fence, read-modify-write or interrupt command waits for all
//!   of them.
//! - A read-modify-write waits for the CPU's stores, then for the line, alone.
//! - A prefetch fetches in the background what a later load then waits for only in part.
//!
//! Memory that is not shared (stacks) costs a hit.

use std::sync::atomic::Ordering;

use shootdown::sync::Access;

use super::{CPU_BITS, Engine, LOOKAHEAD, PRIVATE_LOOKAHEAD, step, with};

/// What the hook of an atomic does.
#[inline]
pub fn access(addr: usize, access: Access, ordering: Ordering) {
    if access == Access::Plain {
        return; // only hunts ask whose memory it is
    }
    // A sequentially consistent store is an exchange on x86.
    let access = match access {
        Access::Store if ordering == Ordering::SeqCst => Access::Rmw,
        Access::CountLoad => Access::Load,
        Access::CountStore => Access::Store,
        access => access,
    };
    let Some(line) = with(|e| e.attempt(addr, access)) else { return };
    step();
    with(|e| e.access(line, access));
}

/// What the hook of a fence does. Only a full fence costs on x86.
pub fn fence(ordering: Ordering) {
    if ordering != Ordering::SeqCst {
        return;
    }
    with(|e| {
        let cost = e.costs.fence.ps();
        let me = e.me();
        me.lines.fences += 1;
        let done = (me.time + cost).max(me.stores_done);
        me.spend_until(done);
        if let Some(probe) = e.probe_of_current() {
            probe.fence();
        }
    });
}

/// What the hook of a prefetch does.
pub fn prefetch(addr: usize, write: bool) {
    let Some(line) = with(|e| e.arena.line(addr)) else { return };
    step();
    with(|e| if write { e.prefetch_write(line) } else { e.prefetch(line) });
}

impl Engine {
    /// Makes an access that concerns no other CPU: to memory that is not shared, or one that hits
    /// while this CPU is not too far ahead of the others. Returns the line when others must
    /// have their turn first.
    ///
    /// A hit may run ahead by the length of a transfer and [`LOOKAHEAD`], because a write by
    /// another CPU takes about that long to take the copy away; a later access by another CPU
    /// waits for the time of the write ([`Line::busy`](super::lines::Line::busy)). What no
    /// other CPU has ever touched, though its owner has for long, may run further ahead
    /// ([`PRIVATE_LOOKAHEAD`]).
    #[inline]
    fn attempt(&mut self, addr: usize, access: Access) -> Option<usize> {
        let cpu = self.current;
        let Some(number) = self.arena.line(addr) else {
            let cost = match access {
                Access::Rmw => self.costs.atomic,
                _ => self.costs.line_hit,
            };
            self.me().spend(cost.ps());
            return None;
        };
        let me = &self.cpus[cpu as usize];
        let line = &mut self.lines[number];
        let mine = line.is_mine(cpu);
        let hit = mine || (access == Access::Load && line.is_shared_by(cpu, &self.sharers));
        let ahead = match access {
            _ if mine && line.is_private() => PRIVATE_LOOKAHEAD,
            // Whoever waits for the line gets it before the owner comes again.
            Access::Rmw => 0,
            _ => self.costs.line_same.ps() + LOOKAHEAD,
        };
        let limit = (self.head >> CPU_BITS).saturating_add(ahead);
        if !hit || me.time > limit || me.is_due() {
            return Some(number);
        }
        self.access(number, access);
        None
    }

    #[inline]
    fn access(&mut self, line: usize, access: Access) {
        if self.own.is_some() {
            self.recall(line, access);
        }
        match access {
            Access::Load | Access::CountLoad | Access::Plain => self.load(line),
            Access::Store | Access::CountStore => self.store(line),
            Access::Rmw => self.rmw(line),
        }
    }

    /// A line that this CPU has a right to, but that has left its own caches, comes from the
    /// last-level cache. A store does not wait for it.
    fn recall(&mut self, number: usize, access: Access) {
        let cpu = self.current;
        let Some(own) = &mut self.own else { return };
        if own.touch(cpu, number) || matches!(access, Access::Store | Access::CountStore) {
            return;
        }
        let line = &self.lines[number];
        if line.is_mine(cpu) || line.is_shared_by(cpu, &self.sharers) {
            let cost = self.costs.line_cache.ps();
            self.me().spend(cost);
        }
    }

    fn load(&mut self, number: usize) {
        let hit = self.costs.line_hit.ps();
        let cpu = self.current;
        let line = &mut self.lines[number];
        let me = &mut self.cpus[cpu as usize];
        me.lines.loads += 1;
        let mut fetched = false;
        if line.is_mine(cpu) && me.prefetched.is_empty() {
            me.spend(hit);
        } else if line.is_mine(cpu) || line.is_shared_by(cpu, &self.sharers) {
            let ready =
                me.prefetched.iter().find(|(l, _)| *l as usize == number).map_or(0, |p| p.1);
            me.spend_until(ready.max(me.time + hit));
        } else {
            let got = line.fetch_shared(cpu, &self.distances, &mut self.sharers);
            let from = me.time.max(line.busy);
            me.spend_until(from + got.transfer.unwrap_or(hit));
            me.lines.transfers += 1;
            fetched = true;
        }
        me.watch(number, line.version);
        if let Some(probe) = self.probe_of_current() {
            probe.load(number, fetched);
        }
    }

    fn store(&mut self, number: usize) {
        let (hit, limit) = (self.costs.line_hit.ps(), self.costs.fill_buffers as usize);
        let cpu = self.current;
        let me = &mut self.cpus[cpu as usize];
        me.lines.stores += 1;
        if !self.lines[number].is_mine(cpu) {
            me.take_fill(limit);
        }
        let line = &mut self.lines[number];
        let got = line.fetch_alone(cpu, &self.distances);
        me.spend(hit);
        line.busy = line.busy.max(me.time);
        if let Some(transfer) = got.transfer {
            let done = me.time.max(line.busy) + transfer;
            line.busy = done;
            me.fills.push(done);
            me.stores_done = me.stores_done.max(done);
            me.lines.transfers += 1;
            me.lines.remote_dirtied += u64::from(got.took);
            self.written(number, done);
        }
        if let Some(probe) = self.probe_of_current() {
            probe.store(number, got.transfer.is_some());
        }
    }

    fn rmw(&mut self, number: usize) {
        let atomic = self.costs.atomic.ps();
        let cpu = self.current;
        let me = &mut self.cpus[cpu as usize];
        me.lines.rmws += 1;
        me.drain();
        let line = &mut self.lines[number];
        let got = line.fetch_alone(cpu, &self.distances);
        match got.transfer {
            None => {
                me.spend(atomic);
                line.busy = line.busy.max(me.time);
            }
            Some(transfer) => {
                let done = me.time.max(line.busy) + transfer + atomic;
                line.busy = done;
                me.spend_until(done);
                me.lines.transfers += 1;
                me.lines.remote_dirtied += u64::from(got.took);
                self.written(number, done);
            }
        }
        if let Some(probe) = self.probe_of_current() {
            probe.rmw(number, got.transfer.is_some());
        }
    }

    /// Fetches the line alone, in the background. Whoever waits for a write to it sees it taken
    /// away and looks again, which takes it back: asking too early costs a transfer.
    fn prefetch_write(&mut self, number: usize) {
        let (hit, limit) = (self.costs.line_hit.ps(), self.costs.fill_buffers as usize);
        let cpu = self.current;
        let me = &mut self.cpus[cpu as usize];
        if self.lines[number].is_mine(cpu) {
            me.spend(hit);
            return;
        }
        me.take_fill(limit);
        me.spend(hit);
        let line = &mut self.lines[number];
        let got = line.fetch_alone(cpu, &self.distances);
        let done = me.time.max(line.busy) + got.transfer.unwrap_or(0);
        line.busy = done;
        me.expect(number, done);
        me.stores_done = me.stores_done.max(done);
        me.lines.transfers += 1;
        me.lines.remote_dirtied += u64::from(got.took);
        self.written(number, done);
    }

    fn prefetch(&mut self, number: usize) {
        let (hit, limit) = (self.costs.line_hit.ps(), self.costs.fill_buffers as usize);
        let cpu = self.current;
        let me = &mut self.cpus[cpu as usize];
        let line = &mut self.lines[number];
        if line.is_mine(cpu) || line.is_shared_by(cpu, &self.sharers) {
            me.spend(hit);
            return;
        }
        me.take_fill(limit);
        me.spend(hit);
        let got = line.fetch_shared(cpu, &self.distances, &mut self.sharers);
        let done = me.time.max(line.busy) + got.transfer.unwrap_or(0);
        me.lines.transfers += 1;
        me.expect(number, done);
    }
}
