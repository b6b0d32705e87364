//! Exported C functions, with names and types as in NVIDIA's `cuda.h`, and the conversion of their
//! values.
//!
//! All unsafe code of the exports is here: the types of arguments that are read or written through,
//! and the macro that defines a function. The files below state for each function its precondition
//! and the code it calls.

#![expect(
    unsafe_code,
    reason = "exported C functions, which read and write where their callers point"
)]

mod batch;
mod inspect;
mod machine;
mod memory;
mod rows;
mod work;

use std::ffi::{CStr, c_char, c_void};

use crate::status::{INVALID_VALUE, Outcome};

/// Output argument of a function. The caller promises that it is null or writable.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value. `INVALID_VALUE` for null.
    fn put(self, value: T) -> Outcome {
        self.check()?;
        // SAFETY: not null, and the C caller promises that such a value may be written here.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Checks for null before work that would otherwise have to be undone.
    fn check(&self) -> Outcome {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }

    /// Writes the value unless the pointer is null.
    fn put_if_wanted(self, value: T) {
        // A null pointer means that the caller does not want the value.
        let _ = self.put(value);
    }
}

impl<T: Copy> Out<T> {
    /// Returns the present value of an argument that is both read and written. `INVALID_VALUE` for
    /// null.
    fn get(&self) -> Outcome<T> {
        In(self.0.cast_const()).get()
    }
}

impl Out<c_void> {
    fn of<T>(self) -> Out<T> {
        Out(self.0.cast())
    }
}

impl Out<c_char> {
    /// Writes a text with a zero byte at its end, cut to `len` bytes.
    fn put_text(self, text: &str, len: usize) -> Outcome {
        let room = len.checked_sub(1).ok_or(INVALID_VALUE)?;
        let bytes = &text.as_bytes()[..text.len().min(room)];
        for (index, byte) in bytes.iter().chain(&[0]).enumerate() {
            Out(self.0.wrapping_add(index)).put(c_char::from_ne_bytes([*byte]))?;
        }
        Ok(())
    }
}

/// Input argument of a function, a value or a text. The caller promises that it is null or
/// readable.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the value. `INVALID_VALUE` for null.
    fn get(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and the C caller promises that such a value is here.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads `count` values. `INVALID_VALUE` for null.
    fn list(self, count: usize) -> Outcome<Vec<T>> {
        (0..count)
            .map(|index| Self(self.0.wrapping_add(index)).get())
            .collect()
    }
}

impl In<c_char> {
    fn text(&self) -> Outcome<&str> {
        self.get()?;
        // SAFETY: not null, and the C caller promises a text with a zero byte at its end that stays
        // valid for this call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| INVALID_VALUE)
    }
}

/// Defines functions of the driver: the precondition of each, its C declaration, and a closure over
/// the locked driver and the current device.
macro_rules! driver_functions {
    ($(
        $need:ident fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:expr;
    )*) => {
        $(
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name($($argument: $type),*) -> crate::status::Status {
                crate::driver::call(stringify!($name), crate::driver::Need::$need, $body)
            }
        )*

        /// Returns the address of the function with this exact name, or null if it is not in this
        /// file.
        pub(super) fn address(name: &str) -> *mut std::ffi::c_void {
            match name {
                $(stringify!($name) => ($name as *const ()).cast_mut().cast(),)*
                _ => std::ptr::null_mut(),
            }
        }
    };
}
use driver_functions;

/// Defines the inspection functions, which work at any time. In a forked child they return -1 and
/// do nothing.
macro_rules! inspecting_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name($($argument: $type),*) -> $result {
                if crate::driver::is_child() {
                    return -1;
                }
                $body
            }
        )*
    };
}
use inspecting_functions;

/// Returns the exported function with this exact name, or null.
fn address(name: &str) -> *mut c_void {
    let found = [
        batch::address(name),
        machine::address(name),
        memory::address(name),
        rows::address(name),
        work::address(name),
    ];
    found
        .into_iter()
        .find(|address| !address.is_null())
        .unwrap_or(std::ptr::null_mut())
}
