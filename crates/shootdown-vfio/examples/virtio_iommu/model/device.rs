//! The device: what it does with requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use shootdown_dma::Rights;
use shootdown_dma::domain::{Config, DmaAddr, MapError};
use shootdown_dma::iova::Unmanaged;
use shootdown_dma::table::MapErrorKind;
use shootdown_vfio::user::{Backend, BackendError, MapAtError, Space};
use virtio_queue::{DescriptorChain, Queue, QueueT};
use vm_memory::{
    GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MemoryRegionAddress,
};

use super::platform::Platform;
use super::request::{
    ATTACH_BYPASS, LONGEST, MAP_READ, MAP_WRITE, RESERVED_PROPERTY, Request, Status, TAIL,
    reserved_property,
};

/// Bytes for properties in the answer to PROBE: twenty reserved ranges.
pub const PROBE_SIZE: usize = 20 * RESERVED_PROPERTY;
/// The last number of a domain.
pub const LAST_DOMAIN: u32 = 0xffff;
/// Bytes of a page, less one.
const MASK: u64 = 0xfff;
/// Where PCs' devices write to raise interrupts: no IOMMU translates it.
const INTERRUPTS: (u64, u64) = (0xfee0_0000, 0xfeef_ffff);

type GuestSpace<B> = Space<B, Unmanaged>;

/// A domain of the guest: it is there as long as some endpoint is attached to it.
struct Domain<B: Backend> {
    space: GuestSpace<B>,
    /// All of the guest's memory is mapped one to one, and nothing else can be.
    bypass: bool,
    endpoints: usize,
    /// What MAP has mapped: first and last address. The memory of one may lie in pieces in the
    /// process, each of which is a mapping of the space's.
    mapped: BTreeMap<u64, u64>,
}

/// What a guest may use.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Mappings of a domain at a time.
    pub mappings: usize,
    /// Domains at a time.
    pub domains: usize,
}

/// A virtio-iommu device.
pub struct Device<P: Platform> {
    pub platform: P,
    memory: Arc<GuestMemoryMmap>,
    limits: Limits,
    /// And the domain that each is attached to.
    endpoints: BTreeMap<u32, Option<u32>>,
    domains: BTreeMap<u32, Domain<P::Backend>>,
    /// A space without mappings: the next domain's.
    spare: Option<GuestSpace<P::Backend>>,
    /// First and last address that the kernel offers, and what it does not in between.
    input: (u64, u64),
    holes: Vec<(u64, u64)>,
    page_sizes: u64,
}

type Outcome = Result<(), Status>;

/// What the guest hears of what the space says.
fn status_of(error: MapAtError) -> Status {
    match error {
        MapAtError::Invalid | MapAtError::Overlap => Status::Invalid,
        MapAtError::Unaligned | MapAtError::Outside => Status::Range,
        MapAtError::Kernel(BackendError::Entries | BackendError::Memory)
        | MapAtError::Domain(MapError::Table(MapErrorKind::NoMemory)) => Status::NoMemory,
        MapAtError::Kernel(BackendError::Fault) => Status::Fault,
        _ => Status::Device,
    }
}

impl<P: Platform> Device<P> {
    /// One with these endpoints behind it, for a guest with this memory.
    pub fn new(
        mut platform: P,
        memory: Arc<GuestMemoryMmap>,
        endpoints: &[u32],
        limits: Limits,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let spare = new_space(&mut platform)?;
        let windows = spare.windows();
        let bytes = |page: u64| page << 12;
        let holes = windows.holes().iter();
        let holes = holes.map(|hole| (bytes(hole.first()), bytes(hole.last()) | MASK)).collect();
        Ok(Self {
            input: (bytes(windows.first()), bytes(windows.last()) | MASK),
            holes,
            page_sizes: spare.backend().page_sizes(),
            platform,
            memory,
            limits,
            endpoints: endpoints.iter().map(|endpoint| (*endpoint, None)).collect(),
            domains: BTreeMap::new(),
            spare: Some(spare),
        })
    }

    /// The configuration space (5.13.4).
    pub fn config(&self) -> Vec<u8> {
        let mut config = Vec::with_capacity(40);
        // No smaller pages than the spaces have.
        config.extend((self.page_sizes & !MASK).to_le_bytes());
        config.extend(self.input.0.to_le_bytes());
        config.extend(self.input.1.to_le_bytes());
        config.extend(0u32.to_le_bytes());
        config.extend(LAST_DOMAIN.to_le_bytes());
        config.extend((PROBE_SIZE as u32).to_le_bytes());
        config.extend([0; 4]); // endpoints that are not attached reach nothing
        config
    }

    /// Answers the requests that are in the queue, and says how many these were.
    pub fn serve(&mut self, queue: &mut Queue) -> usize {
        let memory = Arc::clone(&self.memory);
        let mut count = 0;
        while let Some(chain) = queue.pop_descriptor_chain(&*memory) {
            let head = chain.head_index();
            let written = self.answer(&memory, chain).unwrap_or(0);
            if queue.add_used(&*memory, head, written).is_err() {
                break;
            }
            count += 1;
        }
        count
    }

    /// Answers one, and says how many bytes were written. `None`: it can't be read, or there is no
    /// room for a status; nothing was written.
    fn answer(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: DescriptorChain<&GuestMemoryMmap>,
    ) -> Option<u32> {
        use std::io::{Read, Write};
        let mut reader = chain.clone().reader(memory).ok()?;
        let mut writer = chain.writer(memory).ok()?;
        let mut bytes = [0; LONGEST];
        let len = reader.available_bytes().min(LONGEST);
        reader.read_exact(&mut bytes[..len]).ok()?;
        let request = Request::parse(&bytes[..len])?;
        let room = writer.available_bytes().checked_sub(TAIL)?;
        let (properties, outcome) = match request {
            Request::Probe { endpoint } => match self.probe(endpoint, room) {
                Ok(properties) => (properties, Ok(())),
                // The tail stands where it would stand behind properties.
                Err(status) => (vec![0; room.min(PROBE_SIZE)], Err(status)),
            },
            request => (Vec::new(), self.carry_out(request)),
        };
        let status = outcome.err().unwrap_or(Status::Ok);
        writer.write_all(&properties).ok()?;
        writer.write_all(&[status as u8, 0, 0, 0]).ok()?;
        u32::try_from(properties.len() + TAIL).ok()
    }

    fn carry_out(&mut self, request: Request) -> Outcome {
        match request {
            Request::Attach { reserved: true, .. } => Err(Status::Invalid),
            Request::Attach { domain, endpoint, flags, .. } => self.attach(domain, endpoint, flags),
            Request::Detach { domain, endpoint } => {
                match self.endpoints.get(&endpoint) {
                    None => return Err(Status::NoEntry),
                    Some(attached) if *attached != Some(domain) => return Err(Status::Invalid),
                    Some(_) => {}
                }
                self.detach(endpoint, domain)
            }
            Request::Map { domain, start, end, phys, flags } => {
                self.map(domain, (start, end), phys, flags)
            }
            Request::Unmap { domain, start, end } => self.unmap(domain, (start, end)),
            Request::Probe { .. } => Ok(()),
        }
    }

    fn attach(&mut self, number: u32, endpoint: u32, flags: u32) -> Outcome {
        if flags & !ATTACH_BYPASS != 0 {
            return Err(Status::Invalid);
        }
        let attached = *self.endpoints.get(&endpoint).ok_or(Status::NoEntry)?;
        if number > LAST_DOMAIN {
            return Err(Status::Range);
        }
        let bypass = flags & ATTACH_BYPASS != 0;
        if self.domains.get(&number).is_some_and(|domain| domain.bypass != bypass) {
            return Err(Status::Invalid);
        }
        match attached {
            Some(before) if before == number => return Ok(()),
            Some(before) => self.detach(endpoint, before)?,
            None => {}
        }
        if !self.domains.contains_key(&number) {
            let domain = self.new_domain(bypass)?;
            self.domains.insert(number, domain);
        }
        let domain = self.domains.get_mut(&number).ok_or(Status::Device)?;
        let connected = self.platform.connect(endpoint, Some(domain.space.backend()));
        if connected.is_err() {
            self.end_if_unused(number);
            return Err(Status::Unsupported);
        }
        domain.endpoints += 1;
        self.endpoints.insert(endpoint, Some(number));
        Ok(())
    }

    /// Takes an endpoint out of its domain, which ends with the last of them.
    fn detach(&mut self, endpoint: u32, number: u32) -> Outcome {
        self.platform.connect(endpoint, None).map_err(|_| Status::Device)?;
        self.endpoints.insert(endpoint, None);
        if let Some(domain) = self.domains.get_mut(&number) {
            domain.endpoints -= 1;
        }
        self.end_if_unused(number);
        Ok(())
    }

    fn end_if_unused(&mut self, number: u32) {
        if self.domains.get(&number).is_none_or(|domain| domain.endpoints != 0) {
            return;
        }
        if let Some(domain) = self.domains.remove(&number) {
            // If the kernel refuses to unmap, the space is dropped and its file closed, which no
            // kernel refuses.
            if domain.space.unmap_within(DmaAddr(0), u64::MAX).is_ok() {
                self.spare = Some(domain.space);
            }
        }
    }

    fn new_domain(&mut self, bypass: bool) -> Result<Domain<P::Backend>, Status> {
        if self.domains.len() >= self.limits.domains {
            return Err(Status::NoMemory);
        }
        let space = match self.spare.take() {
            Some(space) => space,
            None => new_space(&mut self.platform).map_err(|_| Status::NoMemory)?,
        };
        let domain = Domain { space, bypass, endpoints: 0, mapped: BTreeMap::new() };
        if bypass {
            for region in self.memory.iter() {
                let first = region.start_addr().0;
                let (start, end) = (first.max(MASK + 1), first + (region.len() - 1)); // not page 0
                let mapped =
                    put(&self.memory, &domain.space, (start, end), start, Rights::ReadWrite);
                mapped.map_err(|_| Status::Unsupported)?;
            }
        }
        Ok(domain)
    }

    fn map(&mut self, number: u32, (start, end): (u64, u64), phys: u64, flags: u32) -> Outcome {
        let domain = self.domains.get_mut(&number).ok_or(Status::NoEntry)?;
        let rights = match flags {
            _ if domain.bypass => return Err(Status::Invalid),
            MAP_READ => Rights::Read,
            MAP_WRITE => Rights::Write,
            _ if flags == MAP_READ | MAP_WRITE => Rights::ReadWrite,
            _ => return Err(Status::Invalid),
        };
        check(start, end)?;
        if phys & MASK != 0 {
            return Err(Status::Range);
        }
        // What lies in between and is reserved, the space refuses.
        if start < self.input.0 || end > self.input.1 {
            return Err(Status::Range);
        }
        let before = domain.mapped.range(..=end).next_back();
        if before.is_some_and(|(_, last)| *last >= start) {
            return Err(Status::Invalid);
        }
        if domain.mapped.len() >= self.limits.mappings {
            return Err(Status::NoMemory);
        }
        put(&self.memory, &domain.space, (start, end), phys, rights)?;
        domain.mapped.insert(start, end);
        Ok(())
    }

    fn unmap(&mut self, number: u32, (start, end): (u64, u64)) -> Outcome {
        let domain = self.domains.get_mut(&number).ok_or(Status::NoEntry)?;
        if domain.bypass {
            return Err(Status::Invalid);
        }
        check(start, end)?;
        let cut = |at: u64, beyond: &dyn Fn(u64, u64) -> bool| {
            let found = domain.mapped.range(..=at).next_back();
            found.is_some_and(|(first, last)| at <= *last && beyond(*first, *last))
        };
        if cut(start, &|first, _| first < start) || cut(end, &|_, last| last > end) {
            return Err(Status::Range);
        }
        // 2^64 bytes are one too many to be counted: of the last page nothing is mapped.
        let bytes = (end - start).saturating_add(1);
        let unmapped = domain.space.unmap_within(DmaAddr(start), bytes);
        // Where it fails half way, the rest is as it was.
        let left = |first: u64| domain.space.mapped().any(|m| m.at.0 == first);
        let gone = domain.mapped.range(start..=end).map(|(first, _)| *first);
        let gone: Vec<u64> = gone.filter(|first| unmapped.is_ok() || !left(*first)).collect();
        gone.iter().for_each(|first| {
            domain.mapped.remove(first);
        });
        unmapped.map(drop).map_err(|_| Status::Device)
    }

    /// The properties of an endpoint, in `room` bytes.
    fn probe(&self, endpoint: u32, room: usize) -> Result<Vec<u8>, Status> {
        if !self.endpoints.contains_key(&endpoint) {
            return Err(Status::NoEntry);
        }
        if room < PROBE_SIZE {
            return Err(Status::Invalid);
        }
        let holes = self.holes.iter().take(PROBE_SIZE / RESERVED_PROPERTY);
        let property = |hole: &(u64, u64)| reserved_property(hole.0, hole.1, *hole == INTERRUPTS);
        let mut properties: Vec<u8> = holes.flat_map(property).collect();
        properties.resize(PROBE_SIZE, 0);
        Ok(properties)
    }

    /// What the driver does when it begins again: no endpoint is attached, no domain is there.
    pub fn reset(&mut self) {
        let attached = self.endpoints.iter().filter_map(|(e, domain)| Some((*e, (*domain)?)));
        let attached: Vec<(u32, u32)> = attached.collect();
        for (endpoint, domain) in attached {
            let _ = self.detach(endpoint, domain);
        }
    }
}

fn new_space<P: Platform>(
    platform: &mut P,
) -> Result<GuestSpace<P::Backend>, Box<dyn std::error::Error>> {
    // What a guest has mapped takes 16 MiB of tables at most.
    let config = Config::new(1).tables(4096);
    Ok(Space::new(platform.space()?, (), config, |_| Some(Unmanaged))?)
}

/// Whole pages, from the first to the last byte.
fn check(start: u64, end: u64) -> Outcome {
    if end < start {
        return Err(Status::Invalid);
    }
    if start & MASK != 0 || end & MASK != MASK { Err(Status::Range) } else { Ok(()) }
}

/// Maps the guest's memory from `phys` on, piece by piece as it lies in the process: all or
/// nothing.
fn put<B: Backend>(
    memory: &GuestMemoryMmap,
    space: &GuestSpace<B>,
    (start, end): (u64, u64),
    phys: u64,
    rights: Rights,
) -> Outcome {
    let mut at = start;
    let mut outcome = Ok(());
    while at <= end {
        let piece = (phys.checked_add(at - start).ok_or(Status::Invalid))
            .and_then(|phys| piece_of(memory, phys, end - at).ok_or(Status::Fault));
        let mapped = piece.and_then(|(host, more)| {
            // SAFETY: the guest's memory is there as long as the device is, whose platform holds
            // the kernel's address spaces; devices may use all of it, as the guest's CPUs do.
            let mapped = unsafe { space.map_at(DmaAddr(at), host, more + 1, rights) };
            mapped.map_err(status_of).map(|()| more)
        });
        match mapped {
            Ok(more) => at += more + 1,
            Err(status) => {
                outcome = Err(status);
                break;
            }
        }
    }
    if outcome.is_err() && at != start {
        // What can't be undone stays out of use, and the next request there tries again.
        space.unmap_within(DmaAddr(start), at - start).map_err(|_| Status::Device)?;
    }
    outcome
}

/// Where the guest's memory lies in the process, and how many bytes follow there: no more than
/// `most`.
fn piece_of(memory: &GuestMemoryMmap, phys: u64, most: u64) -> Option<(*mut u8, u64)> {
    let region = memory.find_region(GuestAddress(phys))?;
    let offset = phys - region.start_addr().0;
    let host = region.get_host_address(MemoryRegionAddress(offset)).ok()?;
    Some((host, most.min(region.len() - 1 - offset)))
}
