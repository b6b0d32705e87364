//! Values that a forked child process must not free.
//!
//! Freeing a tensor takes a lock of the memory pool, and freeing a checkpoint in an object store
//! takes locks of the request threads. A thread of the parent may hold one at the moment of the
//! fork, and that thread does not exist in the child to release it: the child would wait forever.
//! So a child leaks its copies.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use tload::internal::process_id;

/// A value that is dropped only by the process that created it.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    process: u32,
    /// `None` only while being dropped.
    value: Option<T>,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            process: process_id(),
            value: Some(value),
        }
    }

    /// Returns whether another process created the value, and this one is its child.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != process_id()
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
        if self.is_inherited() {
            let _left_alone = ManuallyDrop::new(self.value.take());
        }
    }
}
