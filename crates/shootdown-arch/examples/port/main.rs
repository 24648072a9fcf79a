//! A complete port to x86-64: what a kernel writes, without the kernel.
//!
//! It can't load page tables here, so running it only decides, from this computer's CPUID, what a
//! kernel on it would declare, and prints that.

#[cfg(target_arch = "x86_64")]
mod hardware;
#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod yours;

#[cfg(target_arch = "x86_64")]
fn main() {
    use shootdown_arch::x86_64::{Boot, Features, Leaves, RootFrame};

    let features = Features::decode(&Leaves::of_this_cpu());
    println!("{features:#?}");
    let root = RootFrame::new(0x10_0000, features.physical_bits).expect("a page frame");
    hardware::decide(root);
    println!("{:#?}", hardware::Hardware::port().facts());
    let _: fn(_, _, _) -> _ = kernel::unmap;
    let _: fn() = kernel::kicked;
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("this example is about x86-64");
}
