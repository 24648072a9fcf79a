//! Ordinary builds hold nothing of the mutants: neither their names nor the switch that turns one on.
#![cfg(not(loom))]

/// Is the text, spelt backwards so that it is not itself in the program, part of it?
fn program_holds(program: &[u8], backwards: &str) -> bool {
    let text: Vec<u8> = backwards.bytes().rev().collect();
    program.windows(text.len()).any(|w| w == text)
}

#[test]
fn an_ordinary_build_holds_no_mutant() {
    // The fact keeps the library linked in.
    assert!(shootdown::Facts::X86_64_MINIMUM.check().is_ok());
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(program_holds(&program, "tnatum_on_sdloh_dliub_yranidro_na"), "names are found");
    for text in [
        "ecnef-tuohtiw-hctiws",
        "ecneFtuohtiWhctiwS",
        "hsulf-tuohtiw-rehtag",
        "hsulFtuohtiWrehtaG",
        "EVITCA::tnatum",
    ] {
        assert!(!program_holds(&program, text), "{text}");
    }
}
