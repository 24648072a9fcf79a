#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| shootdown_fuzz::run("hunt_program", data));
