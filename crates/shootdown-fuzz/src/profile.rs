//! Machine profiles: any text is a whole machine or an error in one sentence.

use shootdown_machine::{MAX_CPUS, Profile};

use crate::Bytes;

/// The bytes are a profile.
pub fn text(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        parse(text);
    }
}

/// What a figure may be changed to: values at which counts and times stop making sense.
const VALUES: [&str; 24] = [
    "0",
    "1",
    "2",
    "3",
    "5",
    "7",
    "64",
    "4095",
    "4096",
    "4097",
    "65535",
    "65536",
    "65537",
    "1048576",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "0.4",
    "0.5",
    "1e-9",
    "1e300",
    "-1",
    "nan",
    "inf",
];

/// The bytes are changes to the figures of a profile of the tree, as no fuzzer would get past the
/// sixty figures that a profile must have.
pub fn figures(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let text = match bytes.below(3) {
        0 => include_str!("../../../profiles/zen4.toml"),
        1 => include_str!("../../../profiles/haswell-ep-48.toml"),
        _ => include_str!("../../../profiles/generic-4096.toml"),
    };
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    while !bytes.is_empty() {
        let at = bytes.below(lines.len() as u64) as usize;
        match bytes.below(16) {
            0 => drop(lines.remove(at)),
            1 => lines[at] = lines[at].replacen("value", "cycles", 1),
            2 => lines[at] = lines[at].replacen("source", "assumed", 1),
            3 => lines[at] = lines[at].replacen("4k", "2m", 1),
            _ => {
                let new = VALUES[bytes.below(VALUES.len() as u64) as usize];
                lines[at] = with_value(&lines[at], new);
            }
        }
    }
    parse(&lines.join("\n"));
}

/// The line with its first figure replaced.
fn with_value(line: &str, new: &str) -> String {
    let Some(at) = line.find("value = ").map(|at| at + "value = ".len()) else {
        return line.to_owned();
    };
    let end = line[at..].find([',', ' ', '}']).map_or(line.len(), |end| at + end);
    format!("{}{new}{}", &line[..at], &line[end..])
}

fn parse(text: &str) {
    let profile = match Profile::parse("input.toml", text) {
        Ok(profile) => profile,
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("input.toml: "), "the file is named: {said}");
            return;
        }
    };
    profile.geometry().expect("a profile that was accepted has a TLB that can be built");
    for mitigations in [false, true] {
        let _ = profile.costs(mitigations);
    }
    let own = profile.topology.cpus.count();
    assert!((1..=MAX_CPUS).contains(&own));
    for cpus in [1, own, MAX_CPUS] {
        let topology = profile.topology(cpus);
        for cpu in [0, cpus / 2, cpus - 1] {
            assert!(topology.core(cpu) < cpus.next_multiple_of(topology.socket_cpus));
            assert!(topology.cache(cpu) < 64, "the engine tells 64 last-level caches apart");
            let _ = topology.group(cpu);
        }
    }
}
