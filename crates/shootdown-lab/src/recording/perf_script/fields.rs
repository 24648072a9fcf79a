//! The fields of each event we use.

use super::{Job, Seen};
use crate::recording::model::{Call, CallArgs, Cpu, Extent, FlushStep, OffCpu, Tid, What};

/// What an event with these fields says; `Ok(None)` for events we do not use.
///
/// # Errors
///
/// What was expected of the fields.
pub fn what(event: &str, fields: &str) -> Result<Option<Seen>, &'static str> {
    let (group, name) = event.split_once(':').unwrap_or(("", event));
    let found = match (group, name) {
        ("tlb", "tlb_flush") => Some(flush(fields).ok_or("`pages:N reason:TEXT (N)`")?),
        ("sched", "sched_switch") => Some(switch(fields).ok_or(
            "`prev_comm=.. prev_pid=N prev_prio=N prev_state=S ==> next_comm=.. next_pid=N next_prio=N`",
        )?),
        ("sched", "sched_wakeup" | "sched_wakeup_new") => {
            let task = tid(fields, " pid=").ok_or("`comm=.. pid=N`")?;
            Some(Seen::Plain(What::Wakeup { task }))
        }
        ("sched", "sched_migrate_task") => {
            let parts = tid(fields, " pid=").zip(cpu(fields, " dest_cpu="));
            let (task, to) = parts.ok_or("`comm=.. pid=N .. dest_cpu=N`")?;
            Some(Seen::Plain(What::Migrate { task, to }))
        }
        ("sched", "sched_process_exec") => Some(Seen::Plain(What::Exec)),
        ("sched", "sched_process_exit") => Some(Seen::Plain(What::Exit)),
        ("task", "task_newtask") => {
            Some(new_task(fields).ok_or("`pid=N comm=.. clone_flags=HEX oom_score_adj=N`")?)
        }
        ("task", "task_rename") => Some(rename(fields).ok_or("`pid=N oldcomm=.. newcomm=..`")?),
        ("csd", "csd_queue_cpu") => Some(queued(fields).ok_or("`cpu=N callsite=.. func=..`")?),
        ("ipi", "ipi_send_cpu") => {
            let target = cpu(fields, "cpu=").ok_or("`cpu=N callsite=.. callback=..`")?;
            Some(ipi(Some(target), fields))
        }
        ("ipi", "ipi_send_cpumask") => Some(ipi(None, fields)),
        ("exceptions", "page_fault_user") => {
            Some(fault(fields).ok_or("`address=0xN ip=.. error_code=0xN`")?)
        }
        ("", "PERF_RECORD_LOST" | "PERF_RECORD_LOST_SAMPLES") => {
            Some(Seen::Lost(number(fields, "lost ").unwrap_or(1)))
        }
        ("syscalls", name) => syscall(name, fields)?,
        _ => None,
    };
    Ok(found)
}

/// The digits after the last `key`; the last, because names before it may hold anything.
fn number<T: std::str::FromStr>(fields: &str, key: &str) -> Option<T> {
    let after = &fields[fields.rfind(key)? + key.len()..];
    let end = after.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(after.len());
    after[..end].parse().ok()
}

/// The thread whose number follows the last `key`.
fn tid(fields: &str, key: &str) -> Option<Tid> {
    number(fields, key).and_then(Tid::new)
}

/// The CPU whose number follows the last `key`.
fn cpu(fields: &str, key: &str) -> Option<Cpu> {
    number(fields, key).and_then(Cpu::new)
}

/// The hexadecimal number after `key`.
fn hex(fields: &str, key: &str) -> Option<u64> {
    let after = fields[fields.rfind(key)? + key.len()..].trim_start();
    let after = after.strip_prefix("0x").unwrap_or(after);
    let end = after.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(after.len());
    u64::from_str_radix(&after[..end], 16).ok()
}

fn flush(fields: &str) -> Option<Seen> {
    let pages: i64 = number(fields, "pages:")?;
    let extent = u64::try_from(pages).map_or(Extent::Everything, Extent::Pages);
    let step = match number(fields, "(")? {
        0u8 => FlushStep::Switch,
        1 => FlushStep::Responded,
        2 => FlushStep::Local,
        3 => FlushStep::LocalSpace,
        4 => FlushStep::Ask,
        5 => FlushStep::WrongCpu,
        _ => return None,
    };
    Some(Seen::flush(step, extent))
}

fn switch(fields: &str) -> Option<Seen> {
    let (prev, next) = fields.split_once(" ==> next_comm=")?;
    let (prev_name, prev) = prev.strip_prefix("prev_comm=")?.rsplit_once(" prev_pid=")?;
    let (next_name, next) = next.rsplit_once(" next_pid=")?;
    let tid = |text: &str| text.split(' ').next()?.parse().ok().and_then(Tid::new);
    let state = &prev[prev.find("prev_state=")? + "prev_state=".len()..];
    let off = match state.as_bytes().first()? {
        b'R' => OffCpu::Preempted,
        b'X' | b'Z' => OffCpu::Dead,
        _ => OffCpu::Blocked,
    };
    Some(Seen::Switch {
        prev: (tid(prev)?, prev_name.into()),
        off,
        next: (tid(next)?, next_name.into()),
    })
}

fn new_task(fields: &str) -> Option<Seen> {
    let (pid, rest) = fields.strip_prefix("pid=")?.split_once(" comm=")?;
    let (name, _) = rest.rsplit_once(" clone_flags=")?;
    let flags = hex(rest, " clone_flags=")?;
    Some(Seen::NewTask { child: Tid::new(pid.parse().ok()?)?, name: name.into(), flags })
}

fn rename(fields: &str) -> Option<Seen> {
    let (pid, rest) = fields.strip_prefix("pid=")?.split_once(" oldcomm=")?;
    let (old, rest) = rest.split_once(" newcomm=")?;
    let (new, _) = rest.rsplit_once(" oom_score_adj=").unwrap_or((rest, ""));
    Some(Seen::Rename { task: Tid::new(pid.parse().ok()?)?, old: old.into(), new: new.into() })
}

/// The functions of the kernels seen so far that flush on a CPU that was asked to.
fn queued(fields: &str) -> Option<Seen> {
    let target = cpu(fields, "cpu=")?;
    let function = &fields[fields.find(" func=")? + " func=".len()..];
    let function = function.split([' ', '+', ',']).next()?;
    let job = match function {
        "flush_tlb_func" | "flush_tlb_func_remote" | "do_sync_core_flush_tlb" => Job::Flush,
        "do_flush_tlb_all" | "do_kernel_range_flush" => Job::KernelFlush,
        "sched_ttwu_pending" => Job::Wakeup,
        _ => Job::Other,
    };
    Some(Seen::Queued { target, job })
}

/// A flush goes out through a function call on several CPUs; a wake-up or a single call does not.
fn ipi(target: Option<Cpu>, fields: &str) -> Seen {
    let callback = fields.split_once("callback=").map_or("", |(_, text)| text);
    let reschedule = matches!(callback.split(' ').next(), Some("(nil)" | "0x0" | "nil" | ""));
    let may_flush = fields.contains("callsite=on_each_cpu")
        || fields.contains("callsite=smp_call_function_many");
    Seen::Ipi { target, reschedule, may_flush }
}

fn fault(fields: &str) -> Option<Seen> {
    /// Bits of the x86 page-fault error code.
    const PROTECTION: u64 = 1;
    const WRITE: u64 = 1 << 1;
    const FETCH: u64 = 1 << 4;
    let address = hex(fields, "address=")?;
    let code = hex(fields, "error_code=")?;
    Some(Seen::Plain(What::Fault {
        page: address >> 12,
        write: code & WRITE != 0,
        execute: code & FETCH != 0,
        protection: code & PROTECTION != 0,
    }))
}

const CALLS: [(&str, Call); 7] = [
    ("mmap", Call::Mmap),
    ("munmap", Call::Munmap),
    ("mprotect", Call::Mprotect),
    ("madvise", Call::Madvise),
    ("mremap", Call::Mremap),
    ("msync", Call::Msync),
    ("brk", Call::Brk),
];

/// The memory system call of that name.
#[must_use]
pub fn call_of(name: &str) -> Option<Call> {
    CALLS.iter().find(|(known, _)| *known == name).map(|(_, call)| *call)
}

fn syscall(name: &str, fields: &str) -> Result<Option<Seen>, &'static str> {
    if let Some(call) = name.strip_prefix("sys_enter_").and_then(call_of) {
        let args = arguments(call, fields).ok_or("`argument: 0xN, ...` of a memory system call")?;
        return Ok(Some(Seen::enter(args)));
    }
    if let Some(call) = name.strip_prefix("sys_exit_").and_then(call_of) {
        let result = result(fields).ok_or("the result of a system call, `0xN`")?;
        return Ok(Some(Seen::Plain(What::Leave { call, result })));
    }
    Ok(None)
}

/// A result in hexadecimal (`0xfffffffffffffff4` is -12) or, from other versions of the tool,
/// decimal.
fn result(fields: &str) -> Option<i64> {
    match fields.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(u64::cast_signed),
        None => fields.parse().ok(),
    }
}

fn arguments(call: Call, fields: &str) -> Option<CallArgs> {
    let first = |keys: &[&str]| {
        keys.iter().find_map(|key| {
            let at =
                fields.starts_with(key).then_some(0).or_else(|| fields.find(&format!(" {key}")))?;
            hex(&fields[at..fields[at..].find(',').map_or(fields.len(), |end| at + end)], key)
        })
    };
    let (len, mode, extra): (&[&str], &[&str], &[&str]) = match call {
        Call::Mmap => (&["len:"], &["prot:"], &["flags:"]),
        Call::Munmap => (&["len:"], &[], &[]),
        Call::Mprotect => (&["len:"], &["prot:"], &[]),
        Call::Madvise => (&["len_in:", "len:"], &["behavior:"], &[]),
        Call::Mremap => (&["old_len:"], &["flags:"], &["new_len:"]),
        Call::Msync => (&["len:"], &["flags:"], &[]),
        Call::Brk => (&[], &[], &[]),
    };
    let optional = |keys: &[&str]| if keys.is_empty() { Some(0) } else { first(keys) };
    Some(CallArgs {
        call,
        addr: first(&["addr:", "start:", "brk:"])?,
        len: optional(len)?,
        mode: optional(mode)?,
        extra: optional(extra)?,
    })
}
