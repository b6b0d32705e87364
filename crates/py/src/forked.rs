//! What a forked child must not free.
//!
//! Freeing a tensor takes a lock of the memory pool, freeing a checkpoint in an object store locks of the threads that ask it. A
//! thread of the parent may hold one at the moment of the fork, and that thread is not there in the child to let go: the child
//! would wait for ever. So a child leaves its copies alone.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::process;

/// A value that only the process that made it drops.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    process: u32,
    /// `None` only while being dropped.
    value: Option<T>,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            process: process::id(),
            value: Some(value),
        }
    }

    /// The process that made it.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("taken only in drop")
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            let _left_alone = ManuallyDrop::new(self.value.take());
        }
    }
}
