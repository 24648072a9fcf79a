//! Programs of devices that follow from a seed: mapping and unmapping beside a hostile IOMMU.

use shootdown_machine::hunt::dma::DmaProgram;
use shootdown_machine::hunt::{Memory, Powers, World};

use crate::check::hunted::Scene;
use crate::check::steps::Policies;

/// Programs of devices by chance.
#[derive(Clone, Debug)]
pub struct Devices {
    name: &'static str,
    powers: Powers,
}

/// Operations of each CPU: see those of programs of CPUs.
const SIZE: usize = 6;

impl Devices {
    /// Policies of CPUs' translations mean nothing here.
    fn program(seed: u64, policies: Policies) -> DmaProgram {
        let mut program = DmaProgram::random(seed, SIZE);
        program.config.policy = policies.dma.unwrap_or(program.config.policy);
        program
    }
}

impl Scene for Devices {
    fn name(&self) -> &str {
        self.name
    }

    fn world(&self, seed: u64, policies: Policies) -> Box<dyn World> {
        Box::new(Self::program(seed, policies))
    }

    fn describe(&self, seed: u64, policies: Policies) -> Option<String> {
        Some(Self::program(seed, policies).to_string())
    }

    fn powers(&self) -> Powers {
        self.powers
    }

    /// A timer looks through whole tables for empty ones.
    fn steps(&self) -> u64 {
        120_000
    }

    fn witnesses(&self) -> &[&'static str] {
        &[
            "held-frame-recycled",
            "io-table-freed",
            "mapping-undone",
            "no-address-left",
            "stale-in-device",
            "path-kept",
            "absence-remembered",
            "line-was-stale",
            "in-flight",
            "page-shared",
            "uses-spilled",
            "large-page",
            "large-identity",
            "large-shared",
            "scattered",
            "mapped-at",
            "domain-ended",
            "bypassed",
            "device-attached",
            "device-detached",
            "device-pulled-out",
            "device-announced",
            "bound-reached",
            "held-pages-bounded",
            "bounced",
            "bounce-page-reused",
            "barrier-on-another",
            "survived-a-command",
            "timer-of-large-pages",
            "queue-full",
            "command-refused",
            "device-silent",
            "error-told",
            "unmapped-incompletely",
        ]
    }
}

/// The scenes.
pub(super) fn by_chance() -> Vec<(Devices, &'static str)> {
    let scene = |name, memory| Devices { name, powers: Powers::HOSTILE_DEVICES.memory(memory) };
    vec![
        (
            scene("random/dma", Memory::Tso),
            "memory for devices behind an IOMMU that forgets nothing untold; stores leave a buffer in order",
        ),
        (scene("random/dma-weak", Memory::Weak), "the same under the language's memory model"),
    ]
}
