//! A guest: its driver puts requests into a virtqueue, and reads what the device has written.

use std::sync::Arc;

use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use super::device::{Device, Limits, PROBE_SIZE};
use super::platform::{Platform, Reach};
use super::request::{ATTACH_BYPASS, MAP_READ, MAP_WRITE, Status, TAIL};

/// Its memory: two regions that abut for the guest, and not for the hypervisor; then a hole.
pub const BORDER: u64 = 32 << 20;
pub const MEMORY: u64 = 64 << 20;
/// Devices that are passed on to it.
pub const ENDPOINTS: [u32; 2] = [0x08, 0x10];

pub const READ_WRITE: u32 = MAP_READ | MAP_WRITE;

/// Where the queue and its requests lie.
const QUEUE: u64 = 0x10_0000;
const ENTRIES: u16 = 16;
const AVAILABLE: u64 = QUEUE + 0x1000;
const USED: u64 = QUEUE + 0x2000;
const REQUEST: u64 = QUEUE + 0x3000;
const ANSWER: u64 = QUEUE + 0x4000;

const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;

pub struct Guest<P: Platform> {
    pub device: Device<P>,
    pub memory: Arc<GuestMemoryMmap>,
    queue: Queue,
    requests: u16,
}

/// What the device has written: nothing, or so many bytes.
pub type Answer = Option<Vec<u8>>;

impl<P: Platform> Guest<P> {
    pub fn new(platform: P, limits: Limits) -> Result<Self, Box<dyn std::error::Error>> {
        let regions = [
            (GuestAddress(0), BORDER as usize),
            (GuestAddress(BORDER), (MEMORY - BORDER) as usize),
        ];
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&regions)?);
        let mut queue = Queue::new(ENTRIES)?;
        queue.set_size(ENTRIES);
        queue.set_desc_table_address(Some(QUEUE as u32), Some(0));
        queue.set_avail_ring_address(Some(AVAILABLE as u32), Some(0));
        queue.set_used_ring_address(Some(USED as u32), Some(0));
        queue.set_ready(true);
        let device = Device::new(platform, Arc::clone(&memory), &ENDPOINTS, limits)?;
        Ok(Self { device, memory, queue, requests: 0 })
    }

    /// Sends a request, in two pieces, for which the device may write `room` bytes.
    pub fn send(&mut self, request: &[u8], room: usize) -> Answer {
        let memory = &*self.memory;
        let write = |bytes: &[u8], at| memory.write_slice(bytes, GuestAddress(at)).expect("memory");
        let half = request.len() / 2;
        let pieces = [
            (REQUEST, half, NEXT),
            (REQUEST + half as u64, request.len() - half, if room == 0 { 0 } else { NEXT }),
            (ANSWER, room, DEVICE_WRITES),
        ];
        write(request, REQUEST);
        write(&vec![0xff; room], ANSWER);
        for (n, (at, len, flags)) in (0u16..).zip(pieces) {
            let mut descriptor = at.to_le_bytes().to_vec();
            descriptor.extend((len as u32).to_le_bytes());
            descriptor.extend(flags.to_le_bytes());
            descriptor.extend((n + 1).to_le_bytes());
            write(&descriptor, QUEUE + u64::from(n) * 16);
        }
        let slot = u64::from(self.requests % ENTRIES);
        write(&0u16.to_le_bytes(), AVAILABLE + 4 + slot * 2);
        self.requests = self.requests.wrapping_add(1);
        write(&self.requests.to_le_bytes(), AVAILABLE + 2);

        assert_eq!(self.device.serve(&mut self.queue), 1);
        let used: u32 = memory.read_obj(GuestAddress(USED + 4 + slot * 8 + 4)).expect("memory");
        let mut answer = vec![0; used as usize];
        memory.read_slice(&mut answer, GuestAddress(ANSWER)).expect("memory");
        (used != 0).then_some(answer)
    }

    /// Sends one whose answer is a status.
    fn ask(&mut self, kind: u8, words: &[&[u8]]) -> Result<(), Status> {
        let mut request = vec![kind, 0xaa, 0xbb, 0xcc]; // what is reserved here is ignored
        words.iter().for_each(|word| request.extend(*word));
        status(self.send(&request, TAIL))
    }

    pub fn attach_with(&mut self, domain: u32, endpoint: u32, flags: u32) -> Result<(), Status> {
        self.ask(
            1,
            &[&domain.to_le_bytes(), &endpoint.to_le_bytes(), &flags.to_le_bytes(), &[0; 4]],
        )
    }

    pub fn attach(&mut self, domain: u32, endpoint: u32) -> Result<(), Status> {
        self.attach_with(domain, endpoint, 0)
    }

    pub fn attach_bypass(&mut self, domain: u32, endpoint: u32) -> Result<(), Status> {
        self.attach_with(domain, endpoint, ATTACH_BYPASS)
    }

    pub fn attach_reserved(&mut self, domain: u32, endpoint: u32) -> Result<(), Status> {
        self.ask(1, &[&domain.to_le_bytes(), &endpoint.to_le_bytes(), &[0; 4], &[0, 1, 0, 0]])
    }

    pub fn detach(&mut self, domain: u32, endpoint: u32) -> Result<(), Status> {
        // What is reserved here is ignored too.
        self.ask(2, &[&domain.to_le_bytes(), &endpoint.to_le_bytes(), &[7; 8]])
    }

    pub fn map(
        &mut self,
        domain: u32,
        (start, end): (u64, u64),
        phys: u64,
        flags: u32,
    ) -> Result<(), Status> {
        let [start, end, phys] = [start, end, phys].map(u64::to_le_bytes);
        self.ask(3, &[&domain.to_le_bytes(), &start, &end, &phys, &flags.to_le_bytes()])
    }

    pub fn unmap(&mut self, domain: u32, (start, end): (u64, u64)) -> Result<(), Status> {
        self.ask(4, &[&domain.to_le_bytes(), &start.to_le_bytes(), &end.to_le_bytes(), &[0; 4]])
    }

    /// The properties of an endpoint, for which there are so many bytes.
    pub fn probe(&mut self, endpoint: u32, room: usize) -> Result<Vec<u8>, Status> {
        let mut request = vec![5, 0, 0, 0];
        request.extend(endpoint.to_le_bytes());
        request.extend([9; 64]); // reserved, and ignored
        let mut answer = self.send(&request, room + TAIL).expect("an answer");
        let tail = answer.split_off(answer.len() - TAIL);
        status(Some(tail)).map(|()| answer)
    }

    /// The same with as many as the device has said.
    pub fn probe_all(&mut self, endpoint: u32) -> Result<Vec<u8>, Status> {
        self.probe(endpoint, PROBE_SIZE)
    }

    /// Does the endpoint reach this memory of the guest's at an address, or nothing?
    pub fn expect(&self, endpoint: u32, at: u64, phys: Option<u64>) {
        let expected = phys.map_or(Reach::Nothing, |phys| {
            let host = self.memory.get_host_address(GuestAddress(phys)).expect("memory");
            Reach::Memory(host as u64)
        });
        let found = self.device.platform.reaches(endpoint, at);
        assert!(
            found == expected || found == Reach::Unknown,
            "{at:#x}: {found:?}, not {expected:?}"
        );
    }
}

/// What an answer of a tail says.
pub fn status(answer: Answer) -> Result<(), Status> {
    let answer = answer.expect("an answer");
    assert_eq!(answer[1..], [0; 3], "reserved");
    let known = [
        Status::Unsupported,
        Status::Device,
        Status::Invalid,
        Status::Range,
        Status::NoEntry,
        Status::Fault,
        Status::NoMemory,
    ];
    match answer[0] {
        0 => Ok(()),
        code => Err(*known.iter().find(|status| **status as u8 == code).expect("a status")),
    }
}
