use super::*;
use crate::recording::model::{
    Call, CallArgs, Cpu, Extent, FlushStep, OffCpu, Origin, Purpose, What,
};
use crate::recording::perf_script::{Line, line};

/// Shortened from a real `perf script`: perf starts `mp`, which makes a thread and unmaps.
const PERF: &str = "\
     migration/0    18/18    [000]  1615.813636511:  sched:sched_switch: prev_comm=migration/0 prev_pid=18 prev_prio=0 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
         swapper     0/0     [000]  1615.813852625:  sched:sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=perf-exec next_pid=5946 next_prio=120
         swapper     0/0     [000]  1615.813853871:  tlb:tlb_flush: pages:0 reason:flush on task switch (0)
       perf-exec  5946/5946  [000]  1615.814221223:  task:task_rename: pid=5946 oldcomm=perf-exec newcomm=mp oom_score_adj=0
              mp  5946/5946  [000]  1615.814291809:  sched:sched_process_exec: filename=./mp pid=5946 old_pid=5946
              mp  5946/5946  [000]  1615.814305644:  exceptions:page_fault_user: address=0x7f198d5e5b70 ip=0x7f198d5e5b70 error_code=0x14
              mp  5946/5946  [000]  1615.814400000:  task:task_newtask: pid=5947 comm=mp clone_flags=3d0f00 oom_score_adj=0
              mp  5946/5946  [000]  1615.814400100:  csd:csd_queue_cpu: cpu=1 callsite=ttwu_queue_wakelist+0x11d func=sched_ttwu_pending csd=0xffff888102cdc538
              mp  5946/5946  [000]  1615.814400200:  ipi:ipi_send_cpu: cpu=1 callsite=ttwu_queue_wakelist+0x11d callback=generic_smp_call_function_single_interrupt+0x0
          a [1] b    77/77    [001]  1615.814400300:  exceptions:page_fault_user: address=0x1000 ip=0x7f198d5e5b70 error_code=0x6
          a [1] b    77/77    [001]  1615.814400400:  csd:csd_queue_cpu: cpu=0 callsite=on_each_cpu_cond_mask+0x20 func=flush_tlb_func csd=0x1
          a [1] b    77/77    [001]  1615.814400500:  sched:sched_switch: prev_comm=a [1] b prev_pid=77 prev_prio=120 prev_state=R+ ==> next_comm=mp next_pid=5947 next_prio=120
              mp  5946/5947  [001]  1615.814500000:  syscalls:sys_enter_munmap: addr: 0x7f198d5b8000, len: 0x0000876f
              mp  5946/5947  [001]  1615.814500100:  tlb:tlb_flush: pages:9 reason:remote IPI send (4)
              mp  5946/5947  [001]  1615.814500200:  csd:csd_queue_cpu: cpu=0 callsite=on_each_cpu_cond_mask+0x20 func=flush_tlb_func csd=0x1
              mp  5946/5947  [001]  1615.814500300:  ipi:ipi_send_cpu: cpu=0 callsite=on_each_cpu_cond_mask+0x20 callback=generic_smp_call_function_single_interrupt+0x0
              mp  5946/5947  [001]  1615.814500400:  tlb:tlb_flush: pages:-1 reason:local MM shootdown (3)
              mp  5946/5947  [001]  1615.814509000:  syscalls:sys_exit_munmap: 0xfffffffffffffff4
              mp  5946/5947  [001]  1615.814509100:  PERF_RECORD_LOST lost 3
              mp  5946/5947  [001]  1615.814510000:  sched:sched_process_exit: comm=mp pid=5947 prio=120 group_dead=false
             :-1    -1/-1    [001]  1615.814511000:  sched:sched_switch: prev_comm=mp prev_pid=5947 prev_prio=120 prev_state=X ==> next_comm=swapper/1 next_pid=0 next_prio=120
         swapper     0/0     [001]  1615.814512000:  irq_vectors:call_function_single_entry: vector=251
";

fn import(text: &str, source: Source) -> Result<Imported, RecordingError> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("text");
    std::fs::write(&path, text).expect("writable");
    super::text(&path, source, None)
}

#[test]
fn a_line_comes_apart_whatever_the_name_holds() {
    let expected = Line {
        pid: None,
        tid: Some(Tid(15842)),
        cpu: Cpu(0),
        time: 1_398_248_041_000,
        event: "tlb:tlb_flush",
        fields: "pages:1 reason:local MM shootdown (3)",
    };
    let fields = "[000]  1398.248041: tlb:tlb_flush: pages:1 reason:local MM shootdown (3)";
    assert_eq!(line(&format!("mp 15842 {fields}")), Some(expected));
    assert_eq!(line(&format!("a [000] b 15842 {fields}")), Some(expected));
    assert_eq!(line(&format!("15842/15842 {fields}")), Some(Line { pid: Some(15842), ..expected }));
    assert_eq!(line("nothing of the kind"), None);
}

#[test]
fn i4_every_thread_is_declared_and_only_the_commands_events_are_kept() {
    let imported = import(PERF, Source::PerfScript).expect("sound");
    assert_eq!(imported.cpus, 2);
    assert_eq!(imported.clock_base, 1_615_814_291_809);
    assert_eq!(imported.trailer.foreign_remote_flushes, 1);
    assert_eq!(imported.trailer.lost, 3);
    let task = |pid, origin, name: &str| What::Task { pid, origin, name: name.into() };
    let expected = [
        (0, 5946, task(5946, Origin::Command, "perf-exec")),
        (0, 5946, What::Exec),
        (
            0,
            5946,
            What::Fault { page: 0x7_f198_d5e5, write: false, execute: true, protection: false },
        ),
        (0, 5947, task(5946, Origin::Command, "mp")),
        (0, 5946, What::Fork { child: Tid(5947), shares_space: true }),
        (0, 5946, What::Ipi { target: Some(Cpu(1)), purpose: Purpose::Reschedule }),
        (1, 77, task(77, Origin::Foreign, "")),
        (1, 77, What::Switch { next: Tid(5947), off: OffCpu::Preempted }),
        (
            1,
            5947,
            What::Enter(CallArgs {
                call: Call::Munmap,
                addr: 0x7f19_8d5b_8000,
                len: 0x876f,
                mode: 0,
                extra: 0,
            }),
        ),
        (1, 5947, What::Flush { step: FlushStep::Ask, extent: Extent::Pages(9) }),
        (1, 5947, What::RemoteFlush { target: Cpu(0) }),
        (1, 5947, What::Ipi { target: Some(Cpu(0)), purpose: Purpose::Flush }),
        (1, 5947, What::Flush { step: FlushStep::LocalSpace, extent: Extent::Everything }),
        (1, 5947, What::Leave { call: Call::Munmap, result: -12 }),
        (1, 5947, What::Exit),
        (1, 0, task(0, Origin::Kernel, "idle")),
        (1, 5947, What::Switch { next: Tid::IDLE, off: OffCpu::Dead }),
    ];
    let found: Vec<_> =
        imported.events.iter().map(|e| (e.cpu.0, e.tid.0, e.what.clone())).collect();
    assert_eq!(found, expected);
}

#[test]
fn i3_strace_gives_each_thread_a_cpu_and_joins_split_calls() {
    let text = "\
6141  1795252109.933428 execve(\"./mp\", [\"./mp\", \"2\"], 0x7ffea0a18b30 /* 35 vars */) = 0
6141  1795252109.934627 mmap(NULL, 8192, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0c8391b000
6141  1795252109.938933 clone3({flags=CLONE_VM|CLONE_THREAD, stack=0x7f0c82f2c000} => {parent_tid=[6142]}, 88) = 6142
6142  1795252109.939596 mprotect(0x7f0c83914000, 28672, PROT_READ <unfinished ...>
6141  1795252109.939700 --- SIGCHLD {si_signo=SIGCHLD} ---
6142  1795252109.939782 <... mprotect resumed>) = 0
6142  1795252109.940000 madvise(0x7f0c83914000, 28672, MADV_DONTNEED) = -1 EINVAL (Invalid argument)
6142  1795252109.940100 +++ exited with 0 +++
6141  1795252109.940200 exit_group(0) = ?
6141  1795252109.940300 +++ exited with 0 +++
";
    let imported = import(text, Source::Strace).expect("sound");
    assert_eq!(imported.cpus, 2);
    let whats: Vec<_> = imported.events.iter().map(|e| (e.cpu.0, e.tid.0, &e.what)).collect();
    let mprotect =
        CallArgs { call: Call::Mprotect, addr: 0x7f0c_8391_4000, len: 28672, mode: 1, extra: 0 };
    assert!(whats.contains(&(0, 6141, &What::Exec)));
    assert!(whats.contains(&(0, 6141, &What::Fork { child: Tid(6142), shares_space: true })));
    assert!(whats.contains(&(1, 6142, &What::Enter(mprotect))));
    assert!(whats.contains(&(1, 6142, &What::Leave { call: Call::Mprotect, result: 0 })));
    assert!(whats.contains(&(1, 6142, &What::Leave { call: Call::Madvise, result: -1 })));
    assert!(whats.contains(&(
        1,
        6142,
        &What::Task { pid: 6141, origin: Origin::Command, name: String::new() }
    )));
    assert_eq!(imported.events.last().map(|e| e.cpu), Some(Cpu(0)));
}

#[test]
fn a_text_of_something_else_names_its_first_odd_line() {
    let error =
        import("# a comment\n\nDear Sir or Madam\n", Source::PerfScript).expect_err("prose");
    assert!(
        error.to_string().ends_with("line 3: expected `comm pid/tid [cpu] time: event: fields`")
    );
    let error = import("Dear Sir\n", Source::Strace).expect_err("prose");
    assert!(error.to_string().contains("line 1: expected `PID SECONDS"));
    let bad = PERF.replace("(4)", "(9)");
    let error = import(&bad, Source::PerfScript).expect_err("an unknown reason");
    assert!(error.to_string().contains("line 14: expected `pages:N reason:TEXT (N)`"), "{error}");
    let error = import("", Source::PerfScript).expect_err("empty");
    assert!(matches!(error, RecordingError::Empty { .. }));
}

#[test]
fn more_threads_at_once_than_cpus_can_be_counted_share_the_last_one() {
    use std::fmt::Write;
    let mut text = String::new();
    for thread in 1..=u32::from(u16::MAX) + 2 {
        writeln!(text, "{thread} 1.5 brk(NULL) = 1").expect("a string takes every line");
    }
    let imported = import(&text, Source::Strace).expect("sound");
    assert_eq!(imported.cpus, Cpu::LIMIT);
    assert!(imported.events.iter().all(|event| event.cpu.0 < Cpu::LIMIT));
}

#[test]
fn flags_named_twice_count_once() {
    let text = "1 1.5 mprotect(0x1000, 4096, PROT_READ|PROT_READ|PROT_WRITE) = 0\n";
    let imported = import(text, Source::Strace).expect("sound");
    let modes = imported.events.iter().filter_map(|event| match event.what {
        What::Enter(args) => Some(args.mode),
        _ => None,
    });
    assert_eq!(modes.collect::<Vec<_>>(), [3]);
}
