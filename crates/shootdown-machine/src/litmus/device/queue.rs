//! Commands of the IOMMU, in its queue and when they take effect.

use super::{Access, Command, Io};
use crate::litmus::machine::{Breakage, Machine, State};
use crate::litmus::program::{Op, Place};
use crate::litmus::test::Arch;

/// A command in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Queued {
    command: Command,
    executed: bool,
    /// Accesses that go by what it removed, and are not over.
    outstanding: u32,
}

/// The bit of a device's access in masks.
const fn bit(device: usize, at: usize) -> u32 {
    1 << (device * super::MAX_CODE + at)
}

impl Io {
    /// A command is in the queue, and its tail is written.
    pub fn enqueue(&mut self, command: Command) {
        self.queue.push(Queued { command, executed: false, outstanding: 0 });
    }

    /// An access of a device is over.
    pub fn over(&mut self, device: usize, at: usize) {
        for queued in &mut self.queue {
            queued.outstanding &= !bit(device, at);
        }
        self.trim();
    }

    /// What is done is not looked at again.
    fn trim(&mut self) {
        let open = |queued: &Queued| !queued.executed || queued.outstanding != 0;
        let done = self.queue.iter().position(open).unwrap_or(self.queue.len());
        self.queue.drain(..done);
    }

    /// Places in the queue whose commands may take effect now.
    pub fn ready(&self, arch: Arch) -> Vec<usize> {
        let is_wait = |queued: &&Queued| matches!(queued.command, Command::Wait { .. });
        let is_fence =
            |queued: &&Queued| matches!(queued.command, Command::Wait { fence: true, .. });
        let may = |at: &usize| {
            let before = &self.queue[..*at];
            let Queued { command, executed, .. } = self.queue[*at];
            // A wait that is no fence says nothing about waits behind it either.
            let commands = || before.iter().filter(|queued| !is_wait(queued));
            let all_executed = || commands().all(|queued| queued.executed);
            let fenced = before.iter().filter(is_fence).any(|queued| !queued.executed);
            let ready = match command {
                Command::Wait { drain, .. } => {
                    all_executed() && (!drain || commands().all(|queued| queued.outstanding == 0))
                }
                // VT-d keeps the order of IOTLB and device commands in the queue; the others want a
                // fence between.
                Command::Device { .. } => arch != Arch::X86_64 || all_executed(),
                _ => true,
            };
            !executed && !fenced && ready
        };
        (0..self.queue.len()).filter(may).collect()
    }

    /// The command at this place takes effect; a wait gives what it stores.
    pub fn execute(machine: &Machine<'_>, state: &mut State, at: usize) -> Option<Command> {
        let Self { queue, .. } = &mut state.io;
        queue[at].executed = true;
        let command = queue[at].command;
        if let Command::Wait { .. } = command {
            state.io.trim();
            return Some(command);
        }
        state.io.queue[at].outstanding = state.io.in_flight(machine, command);
        state.io.forget(machine, command);
        state.io.refresh(machine, &state.words);
        state.io.trim();
        None
    }

    fn forget(&mut self, machine: &Machine<'_>, command: Command) {
        let number = |page: u8| machine.page_number(page);
        match machine.options.breakage {
            Breakage::ForgetsToInvalidate if !self.forgot => {
                self.forgot = true;
                return;
            }
            Breakage::FlushesAll => {
                self.leaves.clear();
                self.walks.clear();
                self.absent.clear();
                self.devices.iter_mut().for_each(|device| device.cache.clear());
                return;
            }
            _ => {}
        }
        match command {
            Command::Page { page, root, leaf: leaves_only, .. } => {
                let page = number(page);
                self.leaves.retain(|leaf| leaf.root != root || !leaf.has(page));
                self.absent.remove(&(root, page));
                self.walks.retain(|way| leaves_only || way.root != root || !way.covers(page));
            }
            Command::Domain { root } => {
                self.leaves.retain(|leaf| leaf.root != root);
                self.absent.retain(|(of, _)| *of != root);
                self.walks.retain(|way| way.root != root);
            }
            Command::Device { device, page } => {
                let page = number(page);
                self.devices[usize::from(device)].cache.retain(|leaf| !leaf.has(page));
            }
            Command::Wait { .. } => {}
        }
    }

    /// Accesses that were translated by what a command removes.
    fn in_flight(&self, machine: &Machine<'_>, command: Command) -> u32 {
        if machine.options.breakage == Breakage::ImpatientSync {
            return 0;
        }
        let mut mask = 0;
        for (number, (device, of)) in self.devices.iter().zip(&machine.test.devices).enumerate() {
            for (at, access) in device.accesses.iter().enumerate() {
                let Access::Held { own, .. } = *access else { continue };
                let (Op::Load { place, .. } | Op::Store { place, .. }) = of.code[at].op else {
                    continue;
                };
                let Place::Page(page) = place else { continue };
                let same = |other: u8| machine.page_number(other) == machine.page_number(page);
                let meant = match command {
                    Command::Page { page, root, drain, .. } => {
                        drain && !own && root == of.root && same(page)
                    }
                    Command::Domain { root } => !own && root == of.root,
                    Command::Device { device, page } => {
                        own && usize::from(device) == number && same(page)
                    }
                    Command::Wait { .. } => false,
                };
                if meant {
                    mask |= bit(number, at);
                }
            }
        }
        mask
    }
}
