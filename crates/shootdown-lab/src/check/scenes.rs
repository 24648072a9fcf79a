//! What is hunted by default: the scenes of the random and the exhaustive checks.
//!
//! Both run the library's own code under the model kernel ([`shootdown_machine::hunt::kernel`]), or
//! that of devices ([`shootdown_machine::hunt::dma`]). A random
//! scene makes its programs from the seed; an exhaustive one has a program, written as one line.

mod chance;
mod devices;
mod small;
mod small_devices;

pub use chance::{random, soak};
pub use small::exhaustive;
pub use small_devices::exhaustive_devices;
