//! Slices of tensors by rank: tensor, expert and pipeline parallelism. Pure.
