//! The command line.

use std::fmt;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Builds and boots the bare-metal image of the library.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Builds the image, and with --iso a bootable ISO for a machine of your own.
    Image(ImageArgs),
    /// Builds and boots it, and shows what it prints.
    Boot(MachineArgs),
    /// Builds and boots it, and judges each case.
    #[command(after_help = CODES)]
    Test(TestArgs),
    /// Builds and boots it, and shows what the hot paths cost.
    Bench(BenchArgs),
    /// Shows what instructions of VMX and SVM cost beside themselves, in the compiler's output.
    Wrappers(WrappersArgs),
    /// Shows how large the core is in a kernel: text, and the state of a CPU.
    Size(SizeArgs),
    /// Checks that no import of the core runs up a layer (crates/shootdown/ARCHITECTURE.md).
    Layers,
}

/// Which image.
#[derive(Args, Debug)]
pub struct ImageArgs {
    /// The architecture.
    #[arg(long, value_enum, default_value_t)]
    pub arch: Arch,
    /// Also make an ISO that boots by GRUB, on BIOS and UEFI (x86-64 only).
    #[arg(long)]
    pub iso: bool,
    /// The ISO's command line for the image.
    #[arg(long, requires = "iso")]
    pub append: Option<String>,
}

/// What `test` ends with.
const CODES: &str = "Exit codes:
  0  pass: every case passed, and what the machine can't show is known (kernel/expect/)
  1  fail: a promise was broken
  2  bad input, a missing tool, the image does not build, or no case was run
  3  not observable: a case passed without proof, as its control showed nothing stale
  4  crashed: a panic, a fault, a reset, or not over in time";

/// Which cases are judged how.
#[derive(Args, Debug)]
pub struct TestArgs {
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Takes no excuses: what this machine is known not to show counts as not observable.
    #[arg(long)]
    pub strict: bool,
}

/// Which costs.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Compares with the budgets in kernel/budgets/ (on QEMU, whose counts are the same on every
    /// host).
    #[arg(long, conflicts_with = "kvm")]
    pub check: bool,
    /// Makes what was measured the budgets.
    #[arg(long, conflicts_with = "kvm")]
    pub record: bool,
}

/// Which wrappers.
#[derive(Args, Debug)]
pub struct WrappersArgs {
    /// Compares with the budgets in crates/shootdown-virt/budgets.txt.
    #[arg(long)]
    pub check: bool,
    /// Makes what was found the budgets.
    #[arg(long)]
    pub record: bool,
    /// Shows the instructions of one wrapper instead.
    #[arg(long, value_name = "WRAPPER", conflicts_with_all = ["check", "record"])]
    pub listing: Option<String>,
}

/// Which sizes.
#[derive(Args, Debug)]
pub struct SizeArgs {
    /// Compares with the budgets in crates/shootdown/budgets.txt.
    #[arg(long)]
    pub check: bool,
    /// Makes what was measured the budgets.
    #[arg(long)]
    pub record: bool,
    /// Shows the functions too, the largest first.
    #[arg(long)]
    pub functions: bool,
}

/// Which machine.
#[derive(Args, Clone, Debug)]
pub struct MachineArgs {
    /// The architecture.
    #[arg(long, value_enum, default_value_t)]
    pub arch: Arch,
    /// What runs it.
    #[arg(long, value_enum, default_value_t)]
    pub machine: Machine,
    /// CPUs.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: u32,
    /// On the CPUs of this computer (/dev/kvm) instead of emulated ones.
    #[arg(long)]
    pub kvm: bool,
    /// How the image gets into the machine (x86-64 on QEMU): handed over, or from an ISO by GRUB
    /// and the machine's firmware, as on a computer of your own.
    #[arg(long, value_enum, default_value_t)]
    pub loader: Loader,
    /// Which cases.
    #[arg(long, value_enum, default_value_t)]
    pub suite: Suite,
    /// Which CPU Bochs emulates: Haswell and Sandy Bridge have VMX, the Ryzen has SVM.
    #[arg(long, value_enum, default_value_t)]
    pub bochs_cpu: BochsCpu,
    /// Of the DMA cases: the IOMMU that the device is behind (QEMU). Left out, `test` takes all
    /// that the architecture has, one after the other, and `boot` the first.
    #[arg(long, value_enum)]
    pub iommu: Option<Iommu>,
    /// Words for the image's command line (kernel/README.md lists them).
    #[arg(long, default_value = "")]
    pub append: String,
    /// Seconds of a CPU's time after which a machine that has not ended is stopped; one that only
    /// waits is given ten times as long.
    #[arg(long, default_value_t = 120)]
    pub timeout: u64,
}

/// How the image gets into the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Loader {
    /// QEMU puts it into memory. (Bochs always boots the ISO, by BIOS.)
    #[default]
    Direct,
    /// From the ISO, by a BIOS.
    Bios,
    /// From the ISO, by UEFI firmware; the run is not the same every time then, as the clock is the
    /// host's.
    Uefi,
}

/// Which cases of the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Suite {
    /// What CPUs remember.
    #[default]
    Cpu,
    /// What a device behind an IOMMU reaches.
    Dma,
    /// The instructions of virtual machines, and guests (x86-64).
    Virt,
}

/// A CPU that Bochs emulates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum BochsCpu {
    /// Intel, 4th generation: VMX with all that the image uses, PCIDs.
    #[default]
    Haswell,
    /// Intel, 2nd generation: VMX; VMWRITE changes no read-only field.
    SandyBridge,
    /// AMD: SVM.
    Ryzen,
}

impl BochsCpu {
    /// Bochs's name for it.
    pub const fn model(self) -> &'static str {
        match self {
            Self::Haswell => "corei7_haswell_4770",
            Self::SandyBridge => "corei7_sandy_bridge_2600k",
            Self::Ryzen => "ryzen",
        }
    }

    /// What the file of what it can't show is called by, behind the name of the machine.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Haswell => "",
            Self::SandyBridge => "-sandy-bridge",
            Self::Ryzen => "-ryzen",
        }
    }
}

/// An emulated IOMMU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Iommu {
    /// None: the device is there alone.
    None,
    /// Intel VT-d.
    #[value(name = "vt-d")]
    VtD,
    /// The same with caching mode, and addresses of 48 bits.
    #[value(name = "vt-d-caching")]
    VtDCaching,
    /// AMD-Vi.
    #[value(name = "amd-vi")]
    AmdVi,
    /// Arm SMMUv3.
    #[value(name = "smmu")]
    Smmu,
}

impl Iommu {
    /// Those of an architecture.
    pub const fn of(arch: Arch) -> &'static [Self] {
        match arch {
            Arch::X86_64 => &[Self::VtD, Self::VtDCaching, Self::AmdVi, Self::None],
            Arch::Aarch64 => &[Self::Smmu, Self::None],
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "no IOMMU",
            Self::VtD => "vt-d",
            Self::VtDCaching => "vt-d-caching",
            Self::AmdVi => "amd-vi",
            Self::Smmu => "smmu",
        }
    }

    /// What it adds to QEMU's command line: an option and its value. Interrupts are not remapped:
    /// no case is about them.
    pub const fn option(self) -> Option<[&'static str; 2]> {
        match self {
            Self::None => None,
            Self::VtD => Some(["-device", "intel-iommu,intremap=off"]),
            Self::VtDCaching => {
                Some(["-device", "intel-iommu,intremap=off,caching-mode=on,aw-bits=48"])
            }
            Self::AmdVi => Some(["-device", "amd-iommu"]),
            // A part of the board. Options of boards add up.
            Self::Smmu => Some(["-M", "iommu=smmuv3"]),
        }
    }
}

/// An architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Arch {
    /// x86-64.
    #[default]
    #[value(name = "x86_64")]
    X86_64,
    /// AArch64.
    #[value(name = "aarch64")]
    Aarch64,
}

impl Arch {
    /// Rust's name for the bare machine.
    pub const fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-none",
            Self::Aarch64 => "aarch64-unknown-none",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        })
    }
}

/// What runs the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Machine {
    /// QEMU, counting instructions: the same run every time.
    #[default]
    Qemu,
    /// Bochs, by GRUB: a second model of x86-64.
    Bochs,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Qemu => "qemu",
            Self::Bochs => "bochs",
        })
    }
}
