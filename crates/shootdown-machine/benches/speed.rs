//! The machine's own speed: see the example of this name.

#[path = "../examples/speed.rs"]
mod speed;

fn main() {
    speed::main();
}
