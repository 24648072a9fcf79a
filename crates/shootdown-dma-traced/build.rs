//! Turns the traced atomics on: the only difference between this package and `shootdown-dma`.
fn main() {
    println!("cargo::rustc-cfg=shootdown_traced");
    println!("cargo::rerun-if-changed=build.rs");
}
