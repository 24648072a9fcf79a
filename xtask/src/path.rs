//! The way of a function that succeeds: from its entry to RET without a call.
//!
//! What fails in a wrapper calls a function elsewhere, so the way without a call is the one that
//! succeeds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, Instruction, IntelFormatter, Mnemonic,
    Register,
};

/// The code of a function, decoded from where it begins: instructions by their offsets.
pub struct Function {
    instructions: BTreeMap<u64, Instruction>,
    size: u64,
    /// Jumps that end in another section.
    leaves: BTreeSet<u64>,
}

/// What a function costs when it succeeds, without what it has as a function: RET, and the stack
/// pointer's way down at its beginning and up at its end.
pub struct Success {
    pub instructions: Vec<Instruction>,
    /// Conditional jumps that are not taken.
    pub not_taken: usize,
    /// Conditional jumps that are taken, and jumps without a condition.
    pub taken: usize,
    /// Bytes of the whole way, with RET and the stack pointer's.
    whole: u64,
}

impl Success {
    pub fn bytes(&self) -> usize {
        self.instructions.iter().map(Instruction::len).sum()
    }

    /// As assembly text, one instruction a line.
    pub fn listing(&self) -> String {
        let mut formatter = IntelFormatter::new();
        let mut text = String::new();
        for instruction in &self.instructions {
            text.push_str("    ");
            formatter.format(instruction, &mut text);
            text.push('\n');
        }
        text
    }
}

/// Executes with a VMCS or a VMCB, or calls who does: may fault.
pub fn is_wrapped(instruction: &Instruction) -> bool {
    sets_flags(instruction)
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Vmload
                | Mnemonic::Vmsave
                | Mnemonic::Stgi
                | Mnemonic::Clgi
                | Mnemonic::Invlpga
                | Mnemonic::Vmmcall
                | Mnemonic::Vmfunc
        )
}

/// An instruction of VMX that can fail otherwise than by a fault: CF and ZF say so.
pub fn sets_flags(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Vmxon
            | Mnemonic::Vmxoff
            | Mnemonic::Vmclear
            | Mnemonic::Vmptrld
            | Mnemonic::Vmptrst
            | Mnemonic::Vmread
            | Mnemonic::Vmwrite
            | Mnemonic::Invept
            | Mnemonic::Invvpid
            | Mnemonic::Vmcall
    )
}

/// Makes room on the stack.
fn descends(instruction: &Instruction) -> bool {
    let sub =
        instruction.mnemonic() == Mnemonic::Sub && instruction.op0_register() == Register::RSP;
    sub || instruction.mnemonic() == Mnemonic::Push
}

/// Gives it back.
fn ascends(instruction: &Instruction) -> bool {
    let add =
        instruction.mnemonic() == Mnemonic::Add && instruction.op0_register() == Register::RSP;
    add || instruction.mnemonic() == Mnemonic::Pop
}

impl Function {
    /// Decodes code. `relocated` are the offsets of what the linker fills in.
    pub fn new(code: &[u8], relocated: &[u64]) -> Self {
        let instructions: BTreeMap<u64, Instruction> =
            Decoder::with_ip(64, code, 0, DecoderOptions::NONE)
                .into_iter()
                .map(|instruction| (instruction.ip(), instruction))
                .collect();
        let leaves = relocated
            .iter()
            .filter_map(|at| instructions.range(..=at).next_back())
            .map(|(ip, _)| *ip)
            .collect();
        Self { instructions, size: code.len() as u64, leaves }
    }

    /// The offsets of the instructions that may fault.
    pub fn wrapped(&self) -> BTreeSet<u64> {
        let all = self.instructions.values();
        all.filter(|instruction| is_wrapped(instruction)).map(Instruction::ip).collect()
    }

    /// Bytes that are not on the way that succeeds.
    pub fn outside(&self, success: &Success) -> u64 {
        self.size - success.whole
    }

    /// The shortest way to RET without a call; `None` if every way calls.
    pub fn success(&self) -> Option<Success> {
        let mut before: BTreeMap<u64, u64> = BTreeMap::new();
        let mut queue = VecDeque::from([0]);
        let mut seen = BTreeSet::from([0]);
        while let Some(at) = queue.pop_front() {
            let instruction = self.instructions.get(&at)?;
            if instruction.flow_control() == FlowControl::Return {
                return Some(self.way(at, &before));
            }
            for next in self.after(instruction) {
                if seen.insert(next) {
                    before.insert(next, at);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// Where execution may go on.
    fn after(&self, instruction: &Instruction) -> Vec<u64> {
        let target =
            (!self.leaves.contains(&instruction.ip())).then(|| instruction.near_branch_target());
        match instruction.flow_control() {
            FlowControl::Next => vec![instruction.next_ip()],
            // A hypercall is a call to the decoder.
            _ if is_wrapped(instruction) => vec![instruction.next_ip()],
            FlowControl::UnconditionalBranch => target.into_iter().collect(),
            FlowControl::ConditionalBranch => {
                [instruction.next_ip()].into_iter().chain(target).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The way that ends with the RET at `end`.
    fn way(&self, end: u64, before: &BTreeMap<u64, u64>) -> Success {
        let mut offsets = vec![end];
        while let Some(at) = offsets.last().and_then(|at| before.get(at)) {
            offsets.push(*at);
        }
        offsets.reverse();
        let mut way: Vec<Instruction> = offsets.iter().map(|at| self.instructions[at]).collect();
        let whole = way.iter().map(|instruction| instruction.len() as u64).sum();
        let (mut taken, mut not_taken) = (0, 0);
        for pair in way.windows(2) {
            let goes_on = pair[0].next_ip() == pair[1].ip();
            match pair[0].flow_control() {
                FlowControl::ConditionalBranch if goes_on => not_taken += 1,
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => taken += 1,
                _ => {}
            }
        }
        way.pop();
        // As many at the end as at the beginning, and those are the function's own.
        let down = way.iter().take_while(|instruction| descends(instruction)).count();
        let up = way.iter().rev().take_while(|instruction| ascends(instruction)).count();
        way.truncate(way.len() - up);
        way.drain(..down.min(way.len()));
        Success { instructions: way, not_taken, taken, whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SUB RSP, 8; VMREAD RAX, RDI; JBE +5; ADD RSP, 8; RET; then CALL, JMP back to ADD.
    const CODE: [u8; 22] = [
        0x48, 0x83, 0xec, 8, 0x0f, 0x78, 0xf8, 0x76, 5, 0x48, 0x83, 0xc4, 8, 0xc3, 0xe8, 0, 0, 0,
        0, 0xeb, 0xf4, 0x90,
    ];

    #[test]
    fn the_way_without_a_call_is_found_and_the_frame_is_not_counted() {
        let function = Function::new(&CODE, &[15]);
        let success = function.success().unwrap();
        let names: Vec<_> = success.instructions.iter().map(Instruction::mnemonic).collect();
        assert_eq!(names, [Mnemonic::Vmread, Mnemonic::Jbe]);
        assert_eq!((success.not_taken, success.taken, success.bytes()), (1, 0, 5));
        assert_eq!(function.outside(&success), 8);
        assert_eq!(function.wrapped(), BTreeSet::from([4]));
    }

    #[test]
    fn a_jump_over_a_call_is_one_that_is_taken() {
        // VMXOFF; JE +5; CALL; RET.
        let code = [0x0f, 0x01, 0xc4, 0x74, 5, 0xe8, 0, 0, 0, 0, 0xc3];
        let success = Function::new(&code, &[6]).success().unwrap();
        assert_eq!((success.not_taken, success.taken), (0, 1));
        // Without the jump every way calls.
        let code = [0x0f, 0x01, 0xc4, 0xe8, 0, 0, 0, 0, 0xc3];
        assert!(Function::new(&code, &[4]).success().is_none());
    }

    #[test]
    fn a_jump_to_another_section_is_not_followed() {
        // VMCALL; JBE to elsewhere (the linker fills it in); RET.
        let code = [0x0f, 0x01, 0xc1, 0x0f, 0x86, 0, 0, 0, 0, 0xc3];
        let success = Function::new(&code, &[5]).success().unwrap();
        assert_eq!((success.not_taken, success.taken), (1, 0));
    }
}
