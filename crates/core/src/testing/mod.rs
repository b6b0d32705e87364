//! Conformance suites and simulated engines.
