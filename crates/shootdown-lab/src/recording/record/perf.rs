//! perf as the tracer.

use std::fs;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::tool::{self, Session};
use crate::recording::error::RecordingError;
use crate::recording::host;
use crate::recording::import::{self, Imported, Source};
use crate::recording::model::Tid;

/// The clock perf is told to use: it never jumps, and other tools can print it too.
pub const CLOCK: &str = "CLOCK_MONOTONIC";

const TRACEFS: [&str; 2] = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];

/// Without these there is nothing to rebuild.
const REQUIRED: [&str; 4] =
    ["sched:sched_switch", "sched:sched_process_exec", "task:task_newtask", "tlb:tlb_flush"];

/// Taken where the kernel has them. `csd:csd_queue_cpu` (recent kernels) tells which CPU was asked
/// to flush; without it the interrupts sent must do.
const WANTED: [&str; 24] = [
    "sched:sched_process_exit",
    "sched:sched_wakeup",
    "sched:sched_wakeup_new",
    "sched:sched_migrate_task",
    "task:task_rename",
    "csd:csd_queue_cpu",
    "ipi:ipi_send_cpu",
    "ipi:ipi_send_cpumask",
    "exceptions:page_fault_user",
    "syscalls:sys_enter_mmap",
    "syscalls:sys_exit_mmap",
    "syscalls:sys_enter_munmap",
    "syscalls:sys_exit_munmap",
    "syscalls:sys_enter_mprotect",
    "syscalls:sys_exit_mprotect",
    "syscalls:sys_enter_madvise",
    "syscalls:sys_exit_madvise",
    "syscalls:sys_enter_mremap",
    "syscalls:sys_exit_mremap",
    "syscalls:sys_enter_msync",
    "syscalls:sys_exit_msync",
    "syscalls:sys_enter_brk",
    "syscalls:sys_exit_brk",
    "sched:sched_process_fork",
];

/// perf's version, or one sentence on what keeps it from recording and what would help.
pub fn usable(scratch: &Path) -> Result<String, String> {
    let version = tool::version("perf", "--version", "linux-perf")?;
    let events = tracefs()?;
    if let Some(missing) = REQUIRED.iter().find(|event| !has(&events, event)) {
        return Err(format!(
            "this kernel has no event {missing} (perf needs it; x86 kernels built with tracing have it)"
        ));
    }
    let trial = Command::new("perf")
        .args(["record", "-q", "-a", "-e", "tlb:tlb_flush", "-o"])
        .arg(scratch.join("trial.data"))
        .args(["--", "true"])
        .stdin(Stdio::null())
        .output();
    match trial {
        Ok(output) if output.status.success() => Ok(version),
        _ => {
            let paranoid =
                fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
            Err(format!(
                "perf may not record the whole machine (kernel.perf_event_paranoid is {}): run as root, \
                 or set it to -1 with sysctl",
                paranoid.trim()
            ))
        }
    }
}

fn tracefs() -> Result<PathBuf, String> {
    for path in TRACEFS.map(PathBuf::from) {
        match fs::read_dir(path.join("sched")) {
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(format!(
                    "perf may not read {}: run as root, or remount tracefs with mode=755",
                    path.display()
                ));
            }
            Err(_) => {}
        }
    }
    Err("the kernel's trace events are not visible to perf: as root, \
         mount -t tracefs tracefs /sys/kernel/tracing"
        .to_owned())
}

fn has(events: &Path, event: &str) -> bool {
    event.split_once(':').is_some_and(|(group, name)| events.join(group).join(name).is_dir())
}

/// Runs `command` under perf and imports what it saw.
pub fn record(command: &[String], scratch: &Path) -> Result<Imported, RecordingError> {
    let all = tracefs().map_err(RecordingError::Tracer)?;
    let events: Vec<_> =
        REQUIRED.into_iter().chain(WANTED.into_iter().filter(|event| has(&all, event))).collect();
    let data = scratch.join("perf.data");
    let mut perf = Session::start(scratch, &data, &events.join(","))?;
    // The interrupts are counted from the moment perf looks to the moment it looks away, so that
    // they are those of the recording and not of perf's own beginning and end.
    perf.ask("enable")?;
    let before = host::tlb_interrupts();
    let ran = Command::new(&command[0]).args(&command[1..]).spawn().and_then(|mut child| {
        let root = child.id();
        child.wait().map(|status| (root, status))
    });
    let after = host::tlb_interrupts();
    perf.ask("stop")?;
    perf.end()?;
    let (root, status) = ran.map_err(|error| {
        RecordingError::Tracer(format!("{} could not be started: {error}", command[0]))
    })?;
    let mut imported = script(&data, Tid(root))?;
    imported.trailer.tlb_interrupts = before.zip(after).map(|(before, after)| {
        after.iter().zip(&before).map(|(after, before)| after.saturating_sub(*before)).collect()
    });
    imported.trailer.exit_status = status.code();
    Ok(imported)
}

fn script(data: &Path, root: Tid) -> Result<Imported, RecordingError> {
    let mut child = Command::new("perf")
        .args(["script", "--ns", "--show-lost-events", "-F", "pid,tid,cpu,time,event,trace", "-i"])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| tool::not_started("perf script", &error))?;
    let mut stderr = child.stderr.take().expect("piped");
    // It warns about every event class without samples; a full pipe would stop it.
    let warnings = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text);
        text
    });
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    let imported = import::stream(stdout, Path::new("perf script"), Source::PerfScript, Some(root));
    if imported.is_err() {
        // It may be waiting for us to read on.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| tool::not_started("perf script", &error))?;
    let warnings = warnings.join().unwrap_or_default();
    let imported = imported?;
    if status.success() {
        Ok(imported)
    } else {
        Err(tool::failed("perf script", status, &warnings))
    }
}
