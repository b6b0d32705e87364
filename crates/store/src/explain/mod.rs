//! Explanations of failed requests: `failure` and `context` have the facts, and the tables of
//! `rules` and `transport_rules`, with those of the protocols, say what to report.

pub(crate) mod context;
pub(crate) mod failure;
pub(crate) mod rules;
mod transport_rules;
