//! The leader of a node and its ranks, in every interleaving of their messages: no rank reads bytes
//! of another region. Needs a build with `--cfg loom`.

#![cfg(loom)]

mod node;

use loom::model::Builder;
use node::read_by_two_ranks;

/// One preemption: with two, the four threads have more interleavings than fit in ten minutes.
fn model_of_node(killed: [bool; 2]) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(1);
    builder.check(move || read_by_two_ranks(2, killed));
}

#[test]
fn shared_memory_is_filled_again_only_once_no_rank_shows_it() {
    model_of_node([false, false]);
}

#[test]
fn shared_memory_of_killed_rank_is_never_filled_again() {
    model_of_node([false, true]);
}
