//! Writes every run of the AArch64 litmus tests as a trace in Casemate's format, and judges it.
//!
//! For each test that such a trace can express, each interleaving of its instructions gives one
//! file, `TEST-NUMBER.trace`, which Casemate's checkers read; here the automaton of
//! [`shootdown_machine::casemate`] judges it.
//!
//! ```sh
//! cargo run -p shootdown-machine --example casemate_traces -- DIR
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use shootdown_machine::casemate::judge;
use shootdown_machine::litmus::{Arch, Options, Test, embedded, traces};

fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1) else {
        eprintln!("casemate_traces: give the directory for the traces");
        return ExitCode::from(2);
    };
    match write_all(Path::new(&dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("casemate_traces: {}: {e}", dir.display());
            ExitCode::from(2)
        }
    }
}

fn write_all(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let (mut written, mut skipped) = (0, BTreeMap::<String, u32>::new());
    for file in embedded() {
        let test =
            Test::parse(file.path, file.text).expect("tests of this project are well-formed");
        if test.arch() != Arch::Aarch64 {
            continue;
        }
        let traces = match traces(&test, &Options::default()) {
            Ok(traces) => traces,
            Err(why) => {
                *skipped.entry(why.to_string()).or_default() += 1;
                continue;
            }
        };
        let mut verdicts = BTreeMap::<String, u32>::new();
        for (number, trace) in traces.iter().enumerate() {
            let name = format!("{}-{number}.trace", test.name().replace('/', "_"));
            let lines = trace.iter().enumerate().map(|(id, record)| record.line(id) + "\n");
            std::fs::write(dir.join(name), lines.collect::<String>())?;
            written += 1;
            let verdict = match judge(trace) {
                Ok(0) => "nothing was broken and made again".to_owned(),
                Ok(_) => "broken before made".to_owned(),
                Err((at, violation)) => format!("record {at}: {violation}"),
            };
            *verdicts.entry(verdict).or_default() += 1;
        }
        for (verdict, count) in verdicts {
            println!("{:<24} {count:>4}  {verdict}", test.name());
        }
    }
    for (why, count) in skipped {
        println!("{count} tests left out: {why}");
    }
    println!("{written} traces in {}", dir.display());
    Ok(())
}
