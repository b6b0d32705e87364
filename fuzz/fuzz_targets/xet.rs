//! The target `xet` of `tload::testing::fuzz`, under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tload::testing::fuzz::run("xet", input));
