//! Words that are only there to be known of: who has seen a write to one knows all that its writer
//! knew and passed on.

use super::view::raise;
use super::{Location, Message, SharedMemory};

impl SharedMemory {
    /// The CPU writes such a word. Under [`Memory::Weak`](super::Memory::Weak) only.
    pub fn mark(&mut self, cpu: u8, location: Location) {
        let history = &mut self.histories[location as usize - 1];
        history.messages.push(Message { value: 0, view: (0, 0) });
        history.writes += 1;
        raise(&mut self.observers[cpu as usize].now, location, history.writes);
    }

    /// Has the CPU seen the last write to it?
    pub fn knows(&self, cpu: u8, location: Location) -> bool {
        self.choices(cpu, location) == 1
    }
}
