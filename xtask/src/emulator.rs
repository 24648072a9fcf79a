//! The machines: their command lines, and how they end.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::cli::{Arch, BochsCpu, Iommu, Loader, Machine, MachineArgs, Suite};
use crate::image::{self, Profile};
use crate::monitor::Monitor;
use crate::output;
use crate::process::{self, Show, need};

/// How the image ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// With the verdict of this code (kernel/src/verdict.rs).
    Verdict(Verdict),
    /// The machine was reset, as after a fault while a fault was handled, or turned off.
    Reset,
    /// It was stopped, as it had not ended in time.
    Stopped(u64),
    /// The emulator ended by itself, with this code and no verdict.
    Without(Option<i32>),
}

/// The image's own verdicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Pass,
    NotObservable,
    Fail,
    Crashed,
}

impl Verdict {
    const ALL: [(Self, u8, &str); 4] = [
        (Self::Pass, 32, "pass"),
        (Self::NotObservable, 33, "not-observable"),
        (Self::Fail, 34, "fail"),
        (Self::Crashed, 35, "crashed"),
    ];

    fn of_code(code: i32) -> Option<Self> {
        Self::ALL.iter().find(|(_, c, _)| i32::from(*c) == code).map(|(verdict, ..)| *verdict)
    }

    /// The verdict with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(.., n)| *n == name).map(|(verdict, ..)| *verdict)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(verdict, ..)| *verdict == self).map_or("", |(.., name)| name)
    }
}

impl Ended {
    /// Is it a verdict about cases, even if there were none?
    pub const fn is_judgement(self) -> bool {
        matches!(self, Self::Verdict(Verdict::Pass | Verdict::NotObservable | Verdict::Fail))
    }

    /// The exit code of this program for it.
    pub const fn code(self) -> u8 {
        match self {
            Self::Verdict(Verdict::Pass) => 0,
            Self::Verdict(Verdict::Fail) => 1,
            Self::Verdict(Verdict::NotObservable) => 3,
            Self::Verdict(Verdict::Crashed) | Self::Reset | Self::Stopped(_) | Self::Without(_) => {
                4
            }
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verdict(verdict) => write!(f, "the image ended with '{}'", verdict.name()),
            Self::Reset => f.write_str("the machine was reset, or turned off, without a verdict"),
            Self::Stopped(seconds) => write!(f, "stopped: it had not ended after {seconds} s"),
            Self::Without(Some(code)) => {
                write!(f, "the emulator ended with code {code} and the image gave no verdict")
            }
            Self::Without(None) => f.write_str("the emulator was ended by a signal"),
        }
    }
}

/// What the image printed, and how it ended.
pub struct Ran {
    pub output: String,
    pub errors: String,
    pub ended: Ended,
}

/// Builds the image and runs it.
pub fn boot(machine: &MachineArgs, profile: Profile, show: Show) -> Result<Ran, Error> {
    if machine.iommu.is_some() && machine.suite != Suite::Dma {
        return Err(Error::Unusable("--iommu is for the device's cases: add --suite dma".into()));
    }
    if machine.machine != Machine::Bochs && machine.bochs_cpu != BochsCpu::default() {
        return Err(Error::Unusable("--bochs-cpu is for Bochs: add --machine bochs".into()));
    }
    if machine.suite == Suite::Virt && machine.arch != Arch::X86_64 {
        return Err(Error::Unusable(
            "virtual machines are tried on x86-64 only: leave out --arch, or take another suite"
                .into(),
        ));
    }
    if machine.machine == Machine::Bochs && machine.suite == Suite::Dma {
        return Err(Error::Unusable(
            "Bochs has no IOMMU and no device that copies: take --machine qemu".into(),
        ));
    }
    if machine.loader != Loader::Direct
        && (machine.machine, machine.arch) != (Machine::Qemu, Arch::X86_64)
    {
        return Err(Error::Unusable(
            "--loader is for x86-64 on QEMU: Bochs boots by BIOS, and the image for AArch64 has no other loader".into(),
        ));
    }
    match (machine.machine, machine.arch) {
        (Machine::Qemu, _) => qemu(machine, profile, show),
        (Machine::Bochs, Arch::X86_64) if !machine.kvm => bochs(machine, profile, show),
        (Machine::Bochs, Arch::X86_64) => Err(Error::Unusable(
            "Bochs emulates every CPU: leave out --kvm, or take --machine qemu".into(),
        )),
        (Machine::Bochs, Arch::Aarch64) => Err(Error::Unusable(
            "Bochs emulates x86-64 only: take --machine qemu for aarch64".into(),
        )),
    }
}

fn qemu(machine: &MachineArgs, profile: Profile, show: Show) -> Result<Ran, Error> {
    let (program, package) = match machine.arch {
        Arch::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
        Arch::Aarch64 => ("qemu-system-aarch64", "qemu-system-arm"),
    };
    let program =
        need(program, &format!("apt-get install {package}, or scripts/install-deps.sh metal"))?;
    if machine.kvm {
        can_use_kvm(machine.arch)?;
    }
    let image = image::build(machine.arch, profile)?;
    let mut command = Command::new(program);
    let board = match machine.arch {
        Arch::X86_64 => "q35",
        Arch::Aarch64 => "virt,gic-version=3",
    };
    command.args(["-M", board]);
    if machine.kvm {
        command.args(["-accel", "kvm", "-cpu", "host"]);
    } else {
        // One thread and an instruction count for a clock: the same run every time, on any host.
        command.args(["-accel", "tcg,thread=single", "-cpu", "max"]);
        // With such a clock UEFI firmware does not come to its end: it gets the host's.
        if machine.loader != Loader::Uefi {
            command.args(["-icount", "shift=0,sleep=off", "-rtc", "base=2020-01-01,clock=vm"]);
        }
    }
    command.args(["-smp", &machine.cpus.to_string(), "-m", "256"]);
    command.args(["-display", "none", "-no-reboot", "-nodefaults", "-serial", "stdio"]);
    match machine.arch {
        Arch::X86_64 => command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]),
        Arch::Aarch64 => command.arg("-semihosting"),
    };
    let mut append = machine.append.clone();
    if machine.suite == Suite::Dma {
        append.insert_str(0, "suite=dma ");
        let all = Iommu::of(machine.arch);
        if let Some(wrong) = machine.iommu.filter(|iommu| !all.contains(iommu)) {
            let names: Vec<_> = all.iter().map(|iommu| iommu.name()).collect();
            return Err(Error::Unusable(format!(
                "{} has no {}: leave --iommu out, or take one of: {}",
                machine.arch,
                wrong.name(),
                names.join(", ")
            )));
        }
        if let Some(option) = machine.iommu.unwrap_or(all[0]).option() {
            command.args(option);
        }
        // The device that copies; without the mask it has 28 bits of address.
        command.args(["-device", "edu,dma_mask=0xffffffffffffffff"]);
    }
    let monitor = if machine.suite == Suite::Virt {
        append.insert_str(0, "suite=virt ");
        let monitor = Monitor::new()?;
        command.args(monitor.options());
        Some(monitor)
    } else {
        None
    };
    match machine.loader {
        Loader::Direct => {
            command.arg("-kernel").arg(image).args(["-append", &append]);
        }
        from => from_iso(&mut command, from, &image, &append)?,
    }
    let heed = move |line: &str| {
        if let Some(monitor) = &monitor {
            monitor.heed(line);
        }
    };
    let ran = process::run(&mut command, machine.timeout, show, heed)?;
    let ended = match ran.status.map(|status| status.code()) {
        None => Ended::Stopped(machine.timeout),
        // `-no-reboot`: the emulator ends instead. So it does where Arm's image could only turn the
        // machine off, since KVM has no semihosting; then its last line is all there is.
        Some(Some(0)) => match last_verdict(&ran.output) {
            Some(verdict) if machine.arch == Arch::Aarch64 => Ended::Verdict(verdict),
            _ => Ended::Reset,
        },
        Some(Some(code)) => {
            // isa-debug-exit makes 2c+1 of c; semihosting leaves it.
            let own = if machine.arch == Arch::X86_64 { (code - 1) / 2 } else { code };
            Verdict::of_code(own).map_or(Ended::Without(Some(code)), Ended::Verdict)
        }
        Some(None) => Ended::Without(None),
    };
    Ok(Ran { output: ran.output, errors: ran.errors, ended })
}

/// What the last line of the image says, if it is a verdict.
fn last_verdict(output: &str) -> Option<Verdict> {
    Verdict::of_name(output.lines().next_back()?.strip_prefix("verdict: ")?)
}

/// Has QEMU boot the image as a computer does: from an ISO, by firmware.
fn from_iso(
    command: &mut Command,
    loader: Loader,
    image: &Path,
    append: &str,
) -> Result<(), Error> {
    let iso = image::iso(image, append)?;
    command.arg("-cdrom").arg(&iso.file);
    iso.boots_by(loader)?;
    if loader != Loader::Uefi {
        return Ok(());
    }
    const FOLDER: &str = "/usr/share/OVMF";
    let part = |kind: &str| {
        let sizes = ["_4M", ""].into_iter();
        let mut files = sizes.map(|size| Path::new(FOLDER).join(format!("OVMF_{kind}{size}.fd")));
        files.find(|file| file.is_file()).ok_or_else(|| Error::Missing {
            program: format!("{FOLDER}/OVMF_{kind}.fd, UEFI firmware,"),
            hint: "apt-get install ovmf, or scripts/install-deps.sh metal-bochs".into(),
        })
    };
    // It writes to its variables: they begin anew in each run.
    let (code, variables) = (part("CODE")?, iso.file.with_file_name("variables.fd"));
    std::fs::copy(part("VARS")?, &variables)
        .map_err(|source| Error::File { path: variables.display().to_string(), source })?;
    let flash =
        |file: &Path, more: &str| format!("if=pflash,format=raw,{more}file={}", file.display());
    command.args(["-drive", &flash(&code, "readonly=on,"), "-drive", &flash(&variables, "")]);
    Ok(())
}

/// May this user run guests of this architecture on this computer's CPUs?
fn can_use_kvm(arch: Arch) -> Result<(), Error> {
    if arch.to_string() != std::env::consts::ARCH {
        return Err(Error::Unusable(format!(
            "--kvm runs guests on this computer's CPUs, which are {}: leave it out for {arch}",
            std::env::consts::ARCH
        )));
    }
    let device = "/dev/kvm";
    std::fs::OpenOptions::new().read(true).write(true).open(device).map(drop).map_err(|error| {
        Error::Unusable(format!(
            "{device}: {error}; KVM needs virtualization turned on in the firmware, the module kvm_intel or kvm_amd, and membership in the group kvm"
        ))
    })
}

/// A file of Bochs's, or how to get it.
fn part_of_bochs(candidates: &[&str], hint: &str) -> Result<PathBuf, Error> {
    candidates.iter().map(PathBuf::from).find(|path| path.exists()).ok_or_else(|| Error::Missing {
        program: candidates.first().copied().unwrap_or_default().into(),
        hint: hint.into(),
    })
}

fn bochs(machine: &MachineArgs, profile: Profile, show: Show) -> Result<Ran, Error> {
    const HINT: &str = "apt-get install bochs bochs-term bochsbios vgabios, or scripts/install-deps.sh metal-bochs";
    let program = need("bochs", HINT)?;
    // Bochs draws on a terminal, for want of a display that draws nothing; `script` makes one up.
    let script = need("script", "apt-get install bsdutils")?;
    let plugins = "/usr/lib/x86_64-linux-gnu/bochs/plugins/libbx_term_gui.so";
    part_of_bochs(&[plugins], HINT)?;
    let bios = part_of_bochs(&["/usr/share/bochs/BIOS-bochs-latest"], HINT)?;
    let vga = part_of_bochs(
        &["/usr/share/vgabios/vgabios.bin", "/usr/share/bochs/VGABIOS-lgpl-latest"],
        HINT,
    )?;
    let mut append = machine.append.clone();
    if machine.suite == Suite::Virt {
        append.insert_str(0, "suite=virt ");
    }
    let iso = image::iso(&image::build(machine.arch, profile)?, &append)?;
    iso.boots_by(Loader::Bios)?;
    let iso = iso.file;
    let folder = iso.with_file_name("bochs");
    let file = |path: &Path| {
        let path = path.display().to_string();
        move |source| Error::File { path, source }
    };
    std::fs::create_dir_all(&folder).map_err(file(&folder))?;
    let serial = folder.join("serial.txt");
    std::fs::write(&serial, "").map_err(file(&serial))?;
    let settings = format!(
        "display_library: term\n\
         romimage: file={bios}\n\
         vgaromimage: file={vga}\n\
         cpu: model={model}, count={cpus}, ips=4000000, reset_on_triple_fault=0, ignore_bad_msrs=1\n\
         memory: guest=256, host=256\n\
         boot: cdrom\n\
         ata0-master: type=cdrom, path={iso}, status=inserted\n\
         com1: enabled=1, mode=file, dev={serial}\n\
         panic: action=fatal\n\
         log: {log}\n\
         clock: sync=none\n\
         speaker: enabled=0\n",
        bios = bios.display(),
        vga = vga.display(),
        model = machine.bochs_cpu.model(),
        cpus = machine.cpus,
        iso = iso.display(),
        serial = serial.display(),
        log = folder.join("bochs.log").display(),
    );
    let (config, commands) = (folder.join("bochsrc"), folder.join("commands"));
    std::fs::write(&config, settings).map_err(file(&config))?;
    // Debian's Bochs has its debugger built in, which waits to be told to go on.
    std::fs::write(&commands, "continue\nquit\n").map_err(file(&commands))?;
    let inner = format!(
        "stty rows 30 cols 100; exec '{}' -q -f '{}' -rc '{}'",
        program.display(),
        config.display(),
        commands.display()
    );
    let mut command = Command::new(script);
    command.env("TERM", "xterm").args(["-qfec", &inner, "/dev/null"]);
    let ran = process::run(&mut command, machine.timeout, Show::Nothing, |_| {})?;
    let output = std::fs::read(&serial).map_err(file(&serial))?;
    let output = String::from_utf8_lossy(&output).replace('\r', "");
    if show == Show::All {
        output::print(format_args!("{output}"));
    }
    // Bochs's own code says nothing: the last line of the image does.
    let ended = match (last_verdict(&output), ran.status) {
        (Some(verdict), _) => Ended::Verdict(verdict),
        (None, None) => Ended::Stopped(machine.timeout),
        (None, Some(status)) => Ended::Without(status.code()),
    };
    // What Bochs has to say of its own end is in its log, among much else.
    let log = std::fs::read_to_string(folder.join("bochs.log")).unwrap_or_default();
    let panics = log.lines().filter_map(|line| line.split_once(">>PANIC<< "));
    // The image ends it by a port that counts as a panic.
    let panics = panics.filter(|_| !matches!(ended, Ended::Verdict(_)));
    let errors = panics.map(|(_, why)| format!("Bochs: {why}\n")).collect();
    Ok(Ran { output, errors, ended })
}
