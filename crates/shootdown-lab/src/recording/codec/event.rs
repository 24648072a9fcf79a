//! One event at a time, with the differences that make it short.
//!
//! The first byte holds the kind (bits 0 to 4), whether a CPU follows (bit 5) and whether a thread
//! follows (bit 6); bit 7 is 0.

use std::collections::BTreeMap;

use super::{
    Call, CallArgs, Code, Cpu, Event, Extent, FlushStep, Input, Malformed, OffCpu, Origin, Output,
    Purpose, Tid, What,
};

const CPU_FOLLOWS: u8 = 0x20;
const TID_FOLLOWS: u8 = 0x40;
const KIND: u8 = 0x1f;
const PAGE_SHIFT: u32 = 12;

mod kind {
    pub const TASK: u8 = 0;
    pub const SWITCH: u8 = 1;
    pub const WAKEUP: u8 = 2;
    pub const MIGRATE: u8 = 3;
    pub const FORK: u8 = 4;
    pub const EXEC: u8 = 5;
    pub const EXIT: u8 = 6;
    pub const RENAME: u8 = 7;
    pub const FLUSH: u8 = 8;
    pub const REMOTE_FLUSH: u8 = 9;
    pub const KERNEL_FLUSH: u8 = 10;
    pub const IPI: u8 = 11;
    pub const ENTER: u8 = 12;
    pub const LEAVE: u8 = 13;
    pub const FAULT: u8 = 14;
}

/// What both ends remember of one CPU.
#[derive(Debug, Default, Clone, Copy)]
struct PerCpu {
    tid: Option<Tid>,
    addr: u64,
}

#[derive(Debug, Default)]
struct State {
    time: u64,
    cpu: Option<Cpu>,
    cpus: BTreeMap<Cpu, PerCpu>,
}

impl State {
    fn of(&mut self, cpu: Cpu) -> &mut PerCpu {
        self.cpus.entry(cpu).or_default()
    }

    fn after(&mut self, event: &Event) {
        self.time = event.time;
        self.cpu = Some(event.cpu);
        // A declaration says nothing about who runs.
        if let What::Task { .. } = event.what {
            return;
        }
        let running = match event.what {
            What::Switch { next, .. } => next,
            _ => event.tid,
        };
        self.of(event.cpu).tid = Some(running);
    }
}

/// Encodes events; one per frame.
#[derive(Debug, Default)]
pub struct Encoder {
    state: State,
}

impl Encoder {
    /// Appends one event. Its time must not be before the last one's.
    pub fn event(&mut self, event: &Event, out: &mut Output) {
        let state = &mut self.state;
        let other_cpu = state.cpu != Some(event.cpu);
        let other_tid = state.of(event.cpu).tid != Some(event.tid);
        let flags = (u8::from(other_cpu) * CPU_FOLLOWS) | (u8::from(other_tid) * TID_FOLLOWS);
        out.byte(kind_of(&event.what) | flags);
        out.uint(event.time - state.time);
        if other_cpu {
            out.uint(u64::from(event.cpu.0));
        }
        if other_tid {
            out.uint(u64::from(event.tid.0));
        }
        body(&event.what, &mut state.of(event.cpu).addr, out);
        state.after(event);
    }
}

const fn kind_of(what: &What) -> u8 {
    match what {
        What::Task { .. } => kind::TASK,
        What::Switch { .. } => kind::SWITCH,
        What::Wakeup { .. } => kind::WAKEUP,
        What::Migrate { .. } => kind::MIGRATE,
        What::Fork { .. } => kind::FORK,
        What::Exec => kind::EXEC,
        What::Exit => kind::EXIT,
        What::Rename { .. } => kind::RENAME,
        What::Flush { .. } => kind::FLUSH,
        What::RemoteFlush { .. } => kind::REMOTE_FLUSH,
        What::KernelFlush { .. } => kind::KERNEL_FLUSH,
        What::Ipi { .. } => kind::IPI,
        What::Enter(_) => kind::ENTER,
        What::Leave { .. } => kind::LEAVE,
        What::Fault { .. } => kind::FAULT,
    }
}

fn body(what: &What, last: &mut u64, out: &mut Output) {
    match what {
        What::Task { pid, origin, name } => {
            out.uint(u64::from(*pid));
            out.byte(origin.code());
            out.text(name);
        }
        What::Switch { next, off } => {
            out.uint(u64::from(next.0));
            out.byte(off.code());
        }
        What::Wakeup { task } => out.uint(u64::from(task.0)),
        What::Migrate { task, to } => {
            out.uint(u64::from(task.0));
            out.uint(u64::from(to.0));
        }
        What::Fork { child, shares_space } => {
            out.uint(u64::from(child.0));
            out.byte(u8::from(*shares_space));
        }
        What::Exec | What::Exit => {}
        What::Rename { name } => out.text(name),
        What::Flush { step, extent } => {
            out.byte(step.code());
            match extent {
                Extent::Everything => out.int(-1),
                // More pages than an i64 counts is more than any address space has.
                Extent::Pages(n) => out.int(i64::try_from(*n).unwrap_or(i64::MAX)),
            }
        }
        What::RemoteFlush { target } | What::KernelFlush { target } => {
            out.uint(u64::from(target.0))
        }
        What::Ipi { target, purpose } => {
            out.byte(purpose.code());
            out.uint(target.map_or(0, |t| u64::from(t.0) + 1));
        }
        What::Enter(CallArgs { call, addr, len, mode, extra }) => {
            out.byte(call.code());
            out.int(addr.wrapping_sub(*last) as i64);
            out.uint(*len);
            out.uint(*mode);
            out.uint(*extra);
            *last = *addr;
        }
        What::Leave { call, result } => {
            out.byte(call.code());
            out.int(*result);
        }
        What::Fault { page, write, execute, protection } => {
            out.byte(u8::from(*write) | (u8::from(*execute) << 1) | (u8::from(*protection) << 2));
            out.int(page.wrapping_sub(*last >> PAGE_SHIFT) as i64);
            *last = page << PAGE_SHIFT;
        }
    }
}

/// Decodes what an [`Encoder`] wrote; one per frame.
#[derive(Debug, Default)]
pub struct Decoder {
    state: State,
}

impl Decoder {
    /// The next event, or `None` at the end of the frame.
    ///
    /// # Errors
    ///
    /// [`Malformed`] with what was expected; nothing more can be read then.
    pub fn event(&mut self, input: &mut Input<'_>) -> Result<Option<Event>, Malformed> {
        if input.is_empty() {
            return Ok(None);
        }
        let state = &mut self.state;
        let tag = input.byte()?;
        let time = state.time.checked_add(input.uint()?).filter(|time| *time < Event::TIME_LIMIT);
        let time = time.ok_or(Malformed("a time below 2^50 ns"))?;
        let cpu = match tag & CPU_FOLLOWS {
            0 => state.cpu.ok_or(Malformed("a CPU in the first event of a frame"))?,
            _ => cpu(input)?,
        };
        let tid = match tag & TID_FOLLOWS {
            0 => state.of(cpu).tid.ok_or(Malformed("a thread in the first event of a CPU"))?,
            _ => tid(input)?,
        };
        let what = read_body(tag & !(CPU_FOLLOWS | TID_FOLLOWS), &mut state.of(cpu).addr, input)?;
        let event = Event { time, cpu, tid, what };
        state.after(&event);
        Ok(Some(event))
    }
}

fn tid(input: &mut Input<'_>) -> Result<Tid, Malformed> {
    const EXPECTED: &str = "a thread number below 2^24";
    Tid::new(input.uint_as(EXPECTED)?).ok_or(Malformed(EXPECTED))
}

fn cpu(input: &mut Input<'_>) -> Result<Cpu, Malformed> {
    const EXPECTED: &str = "a CPU below 65535";
    Cpu::new(input.uint_as(EXPECTED)?).ok_or(Malformed(EXPECTED))
}

fn read_body(tag: u8, last: &mut u64, input: &mut Input<'_>) -> Result<What, Malformed> {
    Ok(match tag {
        kind::TASK => What::Task {
            pid: input.uint_as("a process number below 2^32")?,
            origin: Origin::of(input.byte()?)?,
            name: input.text()?,
        },
        kind::SWITCH => What::Switch { next: tid(input)?, off: OffCpu::of(input.byte()?)? },
        kind::WAKEUP => What::Wakeup { task: tid(input)? },
        kind::MIGRATE => What::Migrate { task: tid(input)?, to: cpu(input)? },
        kind::FORK => What::Fork { child: tid(input)?, shares_space: input.flag()? },
        kind::EXEC => What::Exec,
        kind::EXIT => What::Exit,
        kind::RENAME => What::Rename { name: input.text()? },
        kind::FLUSH => What::Flush {
            step: FlushStep::of(input.byte()?)?,
            extent: match input.int()? {
                -1 => Extent::Everything,
                n => Extent::Pages(u64::try_from(n).map_err(|_| Malformed("a number of pages"))?),
            },
        },
        kind::REMOTE_FLUSH => What::RemoteFlush { target: cpu(input)? },
        kind::KERNEL_FLUSH => What::KernelFlush { target: cpu(input)? },
        kind::IPI => What::Ipi {
            purpose: Purpose::of(input.byte()?)?,
            target: match input.uint()? {
                0 => None,
                n => Some(
                    u16::try_from(n - 1)
                        .ok()
                        .and_then(Cpu::new)
                        .ok_or(Malformed("a CPU below 65535"))?,
                ),
            },
        },
        kind::ENTER => {
            let call = Call::of(input.byte()?)?;
            let addr = last.wrapping_add(input.int()? as u64);
            *last = addr;
            What::Enter(CallArgs {
                call,
                addr,
                len: input.uint()?,
                mode: input.uint()?,
                extra: input.uint()?,
            })
        }
        kind::LEAVE => What::Leave { call: Call::of(input.byte()?)?, result: input.int()? },
        kind::FAULT => {
            let flags = input.byte()?;
            if flags > 7 {
                return Err(Malformed("the flags of a fault (0 to 7)"));
            }
            let page = (*last >> PAGE_SHIFT).wrapping_add(input.int()? as u64);
            *last = page << PAGE_SHIFT;
            What::Fault {
                page,
                write: flags & 1 != 0,
                execute: flags & 2 != 0,
                protection: flags & 4 != 0,
            }
        }
        tag if tag & !KIND != 0 => return Err(Malformed("an event's first byte below 128")),
        _ => return Err(Malformed("a known kind of event (0 to 14)")),
    })
}
