//! Explanations of failed requests: `failure` has the facts, and the tables of `rules` and
//! `transport_rules`, before those of the protocols, say what to report.

pub(crate) mod failure;
pub(crate) mod rules;
mod transport_rules;
