//! A hypervisor in small: a guest that maps memory for its disk by virtio-iommu requests, and an
//! emulated disk that translates through what it has mapped.
//!
//! ```text
//! cargo run -p shootdown-vfio --example vm_memory
//! ```
//!
//! The guest lends the disk a page, takes it back, and keeps a secret in it; then the disk tries
//! again. It is played three times: with the cache of the emulated IOMMU as a unit of the domain,
//! with a hypervisor that forgets to tell its cache, and with a guest that asks for nonsense.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shootdown_dma::domain::{Config, Domain};
use shootdown_dma::invalidate::{Command, QueueError, Ticket, Unit};
use shootdown_dma::iova::Unmanaged;
use shootdown_dma::table::memory::Table;
use shootdown_dma::table::{TableMemory, VtdSecondLevel};
use shootdown_dma::{DeviceId, DomainId, Host, PhysAddr, Policy};
use shootdown_vfio::vmm::{Bounds, Cache, Mappings, Translator};
use vm_memory::iommu::IommuMemory;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const PAGE: u64 = 4096;
const MEMORY: u64 = 64 << 20;

// ---- the hypervisor's half of the seam

struct Vmm<U>(std::marker::PhantomData<fn() -> U>);
struct Pages;

// SAFETY: the guest's memory is given to nobody else while the guest lives.
unsafe impl<U: Unit> Host for Vmm<U> {
    type Addresses = Unmanaged; // the guest chooses them
    type Format = VtdSecondLevel;
    type Tables = Pages;
    type Unit = U;
    type Pin = usize;
    fn pin(&self) -> usize {
        0
    }
    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        // Is it the guest's?
        first.0.checked_add(pages * PAGE).is_some_and(|end| end <= MEMORY)
    }
    fn release(&self, _: PhysAddr, _: u64) {}
}

fn page() -> Layout {
    Layout::from_size_align(4096, 4096).expect("a page")
}

// SAFETY: pages of the heap; nobody but software walks these tables.
unsafe impl TableMemory for Pages {
    fn allocate(&self) -> Option<PhysAddr> {
        // SAFETY: the layout is not empty.
        Some(PhysAddr(unsafe { alloc_zeroed(page()) } as u64)).filter(|at| at.0 != 0)
    }
    unsafe fn free(&self, at: PhysAddr) {
        // SAFETY: from `allocate`, as promised.
        unsafe { dealloc(at.0 as *mut u8, page()) }
    }
    unsafe fn table(&self, at: PhysAddr) -> &Table {
        // SAFETY: from `allocate`, as promised.
        unsafe { &*(at.0 as *const Table) }
    }
}

/// What not to do: says that the cache has forgotten, and has not told it.
#[derive(Default)]
struct Forgetful(AtomicU64);

// SAFETY: it breaks the promise, to show what comes of it.
unsafe impl Unit for Forgetful {
    fn submit(&self, _: &[Command]) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.0.fetch_add(1, Ordering::Relaxed) + 1))
    }
    fn completed(&self) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.0.load(Ordering::Relaxed)))
    }
}

// ---- the guest's driver: requests as they lie in the virtqueue

fn map_request(start: u64, end: u64, phys: u64, flags: u32) -> Vec<u8> {
    let mut request = vec![3, 0, 0, 0]; // VIRTIO_IOMMU_T_MAP
    request.extend(1u32.to_le_bytes()); // domain
    [start, end, phys].iter().for_each(|word| request.extend(word.to_le_bytes()));
    request.extend(flags.to_le_bytes());
    request
}

fn unmap_request(start: u64, end: u64) -> Vec<u8> {
    let mut request = vec![4, 0, 0, 0]; // VIRTIO_IOMMU_T_UNMAP
    request.extend(1u32.to_le_bytes());
    [start, end].iter().for_each(|word| request.extend(word.to_le_bytes()));
    request.extend([0; 4]);
    request
}

// ---- the emulated IOMMU: decodes, asks, answers with a status

fn serve<H: Host>(mappings: &mut Mappings<H>, request: &[u8]) -> u8 {
    let word = |at: usize| Some(u64::from_le_bytes(request.get(at..at + 8)?.try_into().ok()?));
    let flags = request.get(32..36).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    let answer = match (request.first(), word(8), word(16), word(24), flags) {
        (Some(3), Some(start), Some(end), Some(phys), Some(flags)) => {
            mappings.map(start, end, phys, flags).map(|()| 0)
        }
        (Some(4), Some(start), Some(end), ..) => mappings.unmap(start, end),
        _ => return 2, // VIRTIO_IOMMU_S_UNSUPP
    };
    match answer {
        Ok(_) => 0,
        Err(error) => {
            println!("    iommu: {error}");
            error.status()
        }
    }
}

fn play<U: Unit>(unit: U, cache: Arc<Cache>) -> Result<(), Box<dyn Error>>
where
    Domain<Vmm<U>>: Send + Sync,
{
    let format = VtdSecondLevel::new(3, true, true).expect("39 bits");
    // So that the host is asked whose memory it is; and the guest's mappings take 16 MiB of tables
    // at most.
    let config = Config::new(2).policy(Policy::Deferred).tables(4096);
    let host = Vmm(std::marker::PhantomData);
    let domain = Domain::new(host, config, Unmanaged, format, Pages, [(unit, DomainId(1))])?;
    let _attachment = domain.attach(0, DeviceId(0x0008), false)?; // the disk
    let domain = Arc::new(domain);
    let mut iommu = Mappings::new(Arc::clone(&domain), Bounds::bits(39));
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY as usize)])?;
    let disk = IommuMemory::new(memory.clone(), Translator::new(domain, cache), true, ());

    let (iova, phys) = (0x4_0000_0000u64, 0x12_3000u64);
    let status = serve(&mut iommu, &map_request(iova, iova + 0xfff, phys, 3));
    println!("  guest: MAP {iova:#x} -> {phys:#x}, status {status}");
    disk.write_slice(b"a sector of data", GuestAddress(iova + 0x200))?;
    let mut sector = [0; 16];
    memory.read_slice(&mut sector, GuestAddress(phys + 0x200))?;
    println!("  guest: the disk has written {:?}", String::from_utf8_lossy(&sector));

    let status = serve(&mut iommu, &unmap_request(iova, iova + 0xfff));
    println!("  guest: UNMAP, status {status}; the page is used for a key now");
    memory.write_slice(b"the private key!", GuestAddress(phys + 0x200))?;
    match disk.read_slice(&mut sector, GuestAddress(iova + 0x200)) {
        Ok(()) => println!("  disk:  reads {:?}  <-- stale", String::from_utf8_lossy(&sector)),
        Err(error) => println!("  disk:  {error}"),
    }
    Ok(())
}

fn nonsense() -> Result<(), Box<dyn Error>> {
    let cache = Arc::new(Cache::default());
    let format = VtdSecondLevel::new(3, true, true).expect("39 bits");
    let host = Vmm(std::marker::PhantomData);
    let config = Config::new(2).policy(Policy::Deferred);
    let domain = Domain::new(host, config, Unmanaged, format, Pages, [(cache, DomainId(1))])?;
    let mut iommu = Mappings::new(Arc::new(domain), Bounds::bits(39));
    let requests = [
        ("MAP of four pages", map_request(0x10_0000, 0x10_3fff, 0x8000, 3)),
        ("UNMAP of the second of them", unmap_request(0x10_1000, 0x10_1fff)),
        ("MAP over the last of them", map_request(0x10_3000, 0x10_4fff, 0, 3)),
        ("MAP of memory that it has not", map_request(0x20_0000, 0x20_0fff, MEMORY, 3)),
        ("MAP of the window of interrupts", map_request(0xfee0_0000, 0xfee0_0fff, 0, 3)),
        ("MAP of everything", map_request(0, u64::MAX, 0, 3)),
        ("UNMAP of everything", unmap_request(0, u64::MAX)),
    ];
    for (what, request) in requests {
        println!("  guest: {what}");
        println!("    status {}", serve(&mut iommu, &request));
    }
    println!("  {} mappings are left", iommu.len());
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("The cache is a unit of the domain:");
    let cache = Arc::new(Cache::default());
    play(Arc::clone(&cache), cache)?;
    println!("\nA hypervisor that does not tell its cache:");
    play(Forgetful::default(), Arc::new(Cache::default()))?;
    println!("\nA guest that asks for nonsense:");
    nonsense()
}
