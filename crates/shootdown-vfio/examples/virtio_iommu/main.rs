//! A guest's IOMMU in front of the kernel's: a virtio-iommu device on `vm-memory`, whose domains
//! are VFIO's address spaces, and a guest that asks it for what is right and for what is not.
//!
//! ```text
//! cargo run -p shootdown-vfio --example virtio_iommu         # without hardware
//! cargo run -p shootdown-vfio --example virtio_iommu -- 26   # VFIO, group 26
//! ```
//!
//! Without a group, or where VFIO can't be used, it says so and goes on with the dry backend. There
//! it looks at what each device reaches after each request; with hardware the statuses are all that
//! it sees. It ends with 1 if something does not hold.

#[cfg(target_os = "linux")]
mod group;
mod model;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use model::cases::{LIMITS, all};
use model::guest::Guest;
use model::platform::{DryPlatform, Platform};

/// Plays every case with a guest of its own; how many do not hold.
fn play<P: Platform>(platform: impl Fn() -> P) -> usize {
    let mut failed = 0;
    for (name, case) in all::<P>() {
        let outcome = Guest::new(platform(), LIMITS).map_err(|error| error.to_string());
        let outcome = outcome.and_then(|mut guest| {
            let played = catch_unwind(AssertUnwindSafe(|| case(&mut guest)));
            played.map_err(|_| "see above".into())
        });
        match outcome {
            Ok(()) => println!("PASS  {name}"),
            Err(why) => {
                println!("FAIL  {name}: {why}");
                failed += 1;
            }
        }
    }
    failed
}

fn dry(why: &str) -> usize {
    println!("NO HARDWARE: {why}.");
    println!("Going on with the dry backend: nothing is mapped for any device.\n");
    play(DryPlatform::default)
}

#[cfg(target_os = "linux")]
fn run() -> usize {
    use group::Group;
    use shootdown_vfio::user::linux::VfioType1;

    let Some(argument) = std::env::args().nth(1) else {
        return dry("no group of devices was named (see the head of this file)");
    };
    let Ok(group) = argument.parse() else {
        return dry(&format!("{argument:?} is no number of a group"));
    };
    match VfioType1::open(group) {
        Ok(_) => {
            println!("VFIO, group {group}: what devices reach is not looked at\n");
            play(|| Group(group))
        }
        Err(error) => dry(&format!("VFIO can't be used for group {group}: {error}")),
    }
}

#[cfg(not(target_os = "linux"))]
fn run() -> usize {
    dry("VFIO is Linux's")
}

fn main() -> ExitCode {
    let failed = run();
    println!("\nverdict: {}", if failed == 0 { "PASS" } else { "FAIL" });
    ExitCode::from(u8::from(failed != 0))
}
