//! What automatic mutants are hunted with: every scene that the other checks have.

use shootdown_machine::hunt::kernel::Program;
use shootdown_machine::hunt::{Powers, World};

use crate::check::breakers::BREAKERS;
use crate::check::hunted::Scene;
use crate::check::mutants::{devices, scene::Stage, scenes};
use crate::check::steps::Policies;
use crate::check::{Check, scenes as check_scenes, zoo};

/// How a scene makes its worlds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Worlds {
    /// One world.
    Fixed,
    /// A world for each seed.
    Chance,
}

/// Something to hunt with.
pub struct Hunt {
    /// Its name.
    pub name: String,
    /// How it makes its worlds.
    pub worlds: Worlds,
    source: Source,
}

enum Source {
    Own(Box<dyn Scene>),
    OfCheck(Box<dyn Check>),
}

impl Hunt {
    /// Its scene.
    ///
    /// # Panics
    /// Never: checks without a scene are no hunts.
    #[must_use]
    pub fn scene(&self) -> &dyn Scene {
        match &self.source {
            Source::Own(scene) => &**scene,
            Source::OfCheck(check) => check.scene().expect("it was asked before"),
        }
    }
}

/// A program in which a promise is broken without one of the steps, with all of them.
struct Played {
    name: String,
    program: Program,
    powers: Powers,
}

impl Scene for Played {
    fn name(&self) -> &str {
        &self.name
    }

    fn world(&self, _: u64, _: Policies) -> Box<dyn World> {
        Box::new(self.program.clone())
    }

    fn powers(&self) -> Powers {
        self.powers
    }
}

/// All hunts, always in the same order: programs first.
#[must_use]
pub fn all() -> Vec<Hunt> {
    let fixed = |name: String, scene: Box<dyn Scene>| Hunt {
        name,
        worlds: Worlds::Fixed,
        source: Source::Own(scene),
    };
    let mut hunts: Vec<Hunt> = Vec::new();
    for breaker in BREAKERS {
        let name = format!("breakers/{}/{}", breaker.invariant, breaker.step.name());
        let program = breaker.program.parse().expect("the table's programs are tested");
        let scene = Played { name: name.clone(), program, powers: breaker.powers };
        hunts.push(fixed(name, Box::new(scene)));
    }
    for scene in scenes::all() {
        let name = format!("scenes/{}", scene.name);
        hunts.push(fixed(name.clone(), Box::new(Stage::new(scene, &name))));
    }
    for scene in devices::ALL {
        let name = format!("scenes/{}", scene.name);
        hunts.push(fixed(name.clone(), Box::new(devices::DeviceStage::new(scene, &name))));
    }
    let fixed = [zoo::checks(), check_scenes::exhaustive(), check_scenes::exhaustive_devices()];
    let fixed = fixed.into_iter().flatten().map(|check| (check, Worlds::Fixed));
    let chance = check_scenes::random().into_iter().map(|check| (check, Worlds::Chance));
    for (check, worlds) in fixed.chain(chance).filter(|(check, _)| check.scene().is_some()) {
        let name = check.name().to_owned();
        hunts.push(Hunt { name, worlds, source: Source::OfCheck(check) });
    }
    hunts
}
