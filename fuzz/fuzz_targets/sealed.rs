//! The target `sealed` of `tload_testing::fuzz`, under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tload_testing::fuzz::run("sealed", input));
