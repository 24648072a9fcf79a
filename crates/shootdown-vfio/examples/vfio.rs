//! A driver in user space: buffers that are mapped for a device and unmapped again, under each
//! policy, and what the kernel is asked for that.
//!
//! ```text
//! cargo run -p shootdown-vfio --example vfio            # without hardware
//! cargo run -p shootdown-vfio --example vfio -- 26      # VFIO, group 26
//! cargo run -p shootdown-vfio --example vfio -- iommufd # iommufd, no device attached
//! ```
//!
//! Without an IOMMU, or without an argument, it says so and goes on with the dry backend, which
//! maps nothing and refuses what kernels refuse.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::error::Error;
use std::time::Instant;

use shootdown_dma::domain::Config;
use shootdown_dma::iova::Tree;
use shootdown_dma::iova::magazine::{self, Magazines};
use shootdown_dma::{Policy, Rights};
use shootdown_vfio::user::dry::Dry;
use shootdown_vfio::user::{Backend, Space};

const PAGE: usize = 4096;
/// Buffers in flight, and how many are mapped altogether.
const RING: usize = 64;
const BUFFERS: usize = 20_000;

/// Pages for buffers; they stay until the spaces are ended.
struct Pages(*mut u8, Layout);

impl Pages {
    fn new() -> Self {
        let layout = Layout::from_size_align(RING * PAGE, PAGE).expect("some pages");
        // SAFETY: the layout is not empty.
        let first = unsafe { alloc_zeroed(layout) };
        assert!(!first.is_null(), "no memory");
        Self(first, layout)
    }

    fn buffer(&self, n: usize) -> *mut u8 {
        // SAFETY: within the pages.
        unsafe { self.0.add(n % RING * PAGE) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0, self.1) }
    }
}

/// Receives packets: maps a ring of buffers, and for each that the device has filled unmaps it and
/// maps the next.
fn receive<B: Backend>(backend: B, policy: Policy, pages: &Pages) -> Result<(), Box<dyn Error>> {
    let config = Config::new(1).policy(policy);
    let space = Space::new(backend, (), config, |space| {
        Magazines::new(Tree::new(space).ok()?, &magazine::Config::for_cpus(1)).ok()
    })?;
    let start = Instant::now();
    let mut ring = Vec::new();
    for n in 0..BUFFERS {
        if ring.len() == RING {
            let at = ring.remove(0);
            space.unmap(at, PAGE as u64)?;
        }
        // SAFETY: the pages stay until the space is ended, and nobody looks into them.
        ring.push(unsafe { space.map(pages.buffer(n), PAGE as u64, Rights::Write) }?);
        if n % 256 == 0 {
            space.poll(start.elapsed().as_nanos() as u64)?;
        }
    }
    for at in ring {
        space.unmap(at, PAGE as u64)?;
    }
    space.flush()?;
    let took = start.elapsed();
    let calls = space.calls();
    println!(
        "  {:<10} {:>6} calls to map, {:>6} to unmap {} mappings: {:>5} ns a buffer",
        policy.to_string(),
        calls.map,
        calls.unmap,
        calls.unmapped,
        took.as_nanos() / BUFFERS as u128,
    );
    space.end().map_err(|(error, _)| error)?;
    Ok(())
}

fn under_each<B: Backend + Clone>(backend: B) -> Result<(), Box<dyn Error>> {
    let pages = Pages::new();
    println!("{BUFFERS} buffers of a page, {RING} in flight:");
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        receive(backend.clone(), policy, &pages)?;
    }
    Ok(())
}

fn dry(why: &str) -> Result<(), Box<dyn Error>> {
    println!("NO HARDWARE: {why}.");
    println!("Going on with the dry backend: nothing is mapped for any device, and the times");
    println!("are without system calls. Their numbers are what a kernel would be asked.\n");
    under_each(std::sync::Arc::new(Dry::default()))
}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn Error>> {
    use std::sync::Arc;

    use shootdown_vfio::user::linux::{Iommufd, VfioType1};

    match std::env::args().nth(1).as_deref() {
        None => dry("no group of devices was named (see the head of this file)"),
        Some("iommufd") => match Iommufd::open() {
            Ok(iommufd) => {
                println!("iommufd, address space {}\n", iommufd.id());
                under_each(Arc::new(iommufd))
            }
            Err(error) => dry(&format!("/dev/iommu can't be used: {error}")),
        },
        Some(group) => {
            let group = group.parse().map_err(|_| format!("{group:?} is no number of a group"))?;
            match VfioType1::open(group) {
                Ok(vfio) => {
                    println!("VFIO, group {group}, {:?} mappings left\n", vfio.left()?);
                    under_each(Arc::new(vfio))
                }
                Err(error) => dry(&format!("VFIO can't be used for group {group}: {error}")),
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> Result<(), Box<dyn Error>> {
    dry("VFIO and iommufd are Linux's")
}
