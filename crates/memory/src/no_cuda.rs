//! Stand-in for the CUDA driver in a build without the feature `cuda`: no context can be opened, so
//! the other methods are unreachable.

#![expect(unsafe_code, reason = "the signatures of the real ones")]
#![expect(
    clippy::missing_safety_doc,
    clippy::len_without_is_empty,
    reason = "the real ones have it"
)]

#[path = "cuda/facts.rs"]
mod facts;

use std::convert::Infallible;

pub use self::facts::{DeviceFacts, DriverFacts, FreeMemory};
use crate::error::{Error, ErrorKind, Result};

/// Declares a type that has no values, with functions that take one or a context.
macro_rules! absent {
    ($type:ident {
        $(new $([$new_unsafe:tt])? $new:ident($($new_argument:ty),*) -> $created:ty;)*
        $($([$unsafe:tt])? fn $method:ident($($argument:ty),*) -> $returned:ty;)*
    }) => {
        /// Stand-in for the type of the same name with the feature `cuda`.
        #[derive(Clone, Debug)]
        pub struct $type(Infallible);

        impl $type {
            $(
                /// Never called.
                pub $($new_unsafe)? fn $new(context: &Context, $(_: $new_argument),*) -> $created {
                    match context.0 {}
                }
            )*
            $(
                /// Never called.
                pub $($unsafe)? fn $method(&self, $(_: $argument),*) -> $returned {
                    match self.0 {}
                }
            )*
        }
    };
}

absent!(Context {
    fn available_memory() -> Result<u64>;
    fn bind() -> Result<Bound>;
    fn facts() -> DeviceFacts;
    fn free_memory() -> Result<FreeMemory>;
    fn is_lost(&Error) -> bool;
    fn numa_node() -> Option<u32>;
    fn ordinal() -> usize;
    fn synchronize() -> Result<()>;
});

absent!(Bound {});

absent!(Stream {
    new new() -> Result<Self>;
    [unsafe] fn copy_in(u64, &[u8]) -> Result<()>;
    fn synchronize() -> Result<()>;
    fn wait(&Event) -> Result<()>;
});

absent!(Event {
    new new() -> Result<Self>;
    new timed() -> Result<Self>;
    fn has_fired() -> Result<bool>;
    fn record(&Stream) -> Result<()>;
    [unsafe] fn record_foreign(u64) -> Result<()>;
    fn seconds_since(&Self) -> Option<f64>;
    fn wait() -> Result<()>;
});

absent!(Allocation {
    new new(usize, &Stream) -> Result<Option<Self>>;
    fn address() -> u64;
    fn len() -> usize;
});

absent!(Pinned {
    new [unsafe] register(*mut u8, usize) -> Result<Self>;
});

impl Context {
    /// Returns an error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`].
    pub fn open(_ordinal: usize) -> Result<Self> {
        Err(no_cuda())
    }
}

impl Pinned {
    /// Never called.
    #[must_use]
    pub fn end(self) -> bool {
        match self.0 {}
    }
}

/// Returns an error: this build has no driver.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`].
pub fn driver() -> Result<DriverFacts> {
    Err(no_cuda())
}

/// Does nothing: there is no memory to free.
pub fn free_leftovers() {}

/// Never called.
pub fn wait_for_freed(context: &Context, _is_over: &dyn Fn() -> bool) -> Result<()> {
    match context.0 {}
}

fn no_cuda() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "tload was built without the feature `cuda`",
    )
    .with_hint("use ‹device=cpu›, or a build with that feature")
}
