//! Virtual machines: every instruction of `shootdown-virt` with every failure that this machine can
//! show, and the host's control bits while a guest runs.
//!
//! | file | what |
//! |---|---|
//! | `hypervisor` | a small hypervisor, and guests for it |
//! | `host` | what both need of the host: registers, the copy of CR4, VMX and SVM turned on and off |
//! | `checks` | what a case says of itself |
//! | `elsewhere` | virtualization is taken away by an interrupt from another CPU |
//! | `vmx_failures`, `vmx_guests` | the cases of VMX |
//! | `svm_failures`, `svm_guests` | those of SVM |
//!
//! Each case has its negative control inside: beside what must fail it executes the same
//! instruction where it must succeed, or the same guest without what the crate does.

mod checks;
mod elsewhere;
mod host;
mod hypervisor;
mod svm_failures;
mod svm_guests;
mod vmx_failures;
mod vmx_guests;

use crate::cmdline::{Options, Sabotage};
use crate::verdict::Verdict;
use crate::{arch, heap, say};
use checks::{Checks, Seen};
use host::{SvmCpu, VmxCpu};

/// A case.
pub struct Case<C> {
    /// Its name.
    pub name: &'static str,
    /// The case.
    pub run: fn(&C, &mut Checks) -> Seen,
}

impl<C> Case<C> {
    const fn new(name: &'static str, run: fn(&C, &mut Checks) -> Seen) -> Self {
        Self { name, run }
    }
}

/// Runs the cases of the instructions that this CPU has; the worst verdict.
pub fn run(options: &Options) -> Verdict {
    if !heap::init() {
        say!("virt: memory has no room for a heap; nothing can be tried");
        return Verdict::NotObservable;
    }
    arch::interrupts::off();
    host::begin();
    checks::hear_reports();
    let mut suite = Suite { options, worst: Verdict::Pass, ran: 0 };
    let (vmx, svm) = (VmxCpu::find(), SvmCpu::find());
    if let Some(cpu) = &vmx {
        suite.all("vmx", cpu, &[vmx_failures::CASES, vmx_guests::CASES]);
    }
    if let Some(cpu) = &svm {
        let guests = if options.sabotage == Some(Sabotage::HostBits) {
            svm_guests::WITHOUT_HOST_BITS
        } else {
            svm_guests::CASES
        };
        suite.all("svm", cpu, &[svm_failures::CASES, guests]);
    }
    if vmx.is_none() && svm.is_none() {
        say!("virt: this CPU has neither VMX nor SVM; nothing can be tried");
        return Verdict::NotObservable;
    }
    if suite.ran == 0 {
        say!("virt: no case has '{}' in its name", options.only.unwrap_or_default());
        return Verdict::NotObservable;
    }
    suite.worst
}

struct Suite<'a> {
    options: &'a Options,
    worst: Verdict,
    ran: u32,
}

impl Suite<'_> {
    fn all<C>(&mut self, family: &str, cpu: &C, cases: &[&[Case<C>]]) {
        let wanted = |name: &str| self.options.only.is_none_or(|part| name.contains(part));
        for case in cases.iter().copied().flatten().filter(|case| wanted(case.name)) {
            let mut checks = Checks::new();
            let seen = (case.run)(cpu, &mut checks);
            let verdict = checks.verdict(&seen);
            checks.say(family, case.name, verdict, &seen);
            self.worst = self.worst.max(verdict);
            self.ran += 1;
        }
    }
}
