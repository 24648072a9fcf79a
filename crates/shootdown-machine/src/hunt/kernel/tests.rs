use super::*;
use crate::hunt::{Bounds, Chooser, Decision, Outcome, Point, Powers, run};

struct Dice(u64);

impl Chooser for Dice {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 >> 33;
        Decision::Take(if x.is_multiple_of(3) {
            (x / 3 % point.options() as u64) as usize
        } else {
            0
        })
    }
}

fn play(program: &Program, powers: Powers, seed: u64) -> Outcome {
    run(program, powers, Bounds { record: false, ..Bounds::default() }, &mut Dice(seed))
}

fn tell(program: &Program, powers: Powers, seed: u64) -> String {
    let bounds = Bounds { record: true, ..Bounds::default() };
    let outcome = run(program, powers, bounds, &mut Dice(seed));
    let mut text = format!("{program}\n{:?}\n", outcome.end);
    for e in &outcome.events {
        text += &format!("{:5} cpu{} {}\n", e.step, e.cpu, e.text);
    }
    text
}

#[test]
fn a_correct_kernel_keeps_every_promise() {
    for seed in 0..200 {
        let program = Program::random(seed, 6);
        for run in 0..10 {
            let outcome = play(&program, Powers::HOSTILE, run);
            let story = || tell(&program, Powers::HOSTILE, run);
            assert!(!outcome.end.is_failure(), "seed {seed}, run {run}: {}", story());
        }
    }
}

#[test]
fn a_broken_kernel_is_found() {
    for (text, mutant) in [
        (
            "pages=1; switch a | user, user, user; switch a | unmap a0",
            KernelMutant::FreeFrameBeforeFlush,
        ),
        (
            "pages=1; switch a | user, user, user; switch a | protect a0",
            KernelMutant::ProtectWithoutFlush,
        ),
    ] {
        let program: Program = text.parse().unwrap();
        let finds = |p: &Program| (0..500).any(|s| play(p, Powers::HOSTILE, s).end.is_failure());
        assert!(!finds(&program), "{text}");
        assert!(finds(&program.broken(mutant)), "{text} with {}", mutant.name());
    }
}

#[test]
fn programs_read_back_as_they_are_written() {
    for seed in 0..500 {
        let program = Program::random(seed, 8);
        let text = program.to_string();
        assert_eq!(text.parse::<Program>().as_ref(), Ok(&program), "{text}");
    }
}
