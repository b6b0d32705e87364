//! Harness for tests: locates the built driver, and controls the one that a process has opened.
//!
//! This module never uses the crate's own statics: in a test's executable they are not the
//! driver's.

#![expect(unsafe_code, reason = "opens the library and calls its C functions")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::LazyLock;

const FILE: &str = "libtload_cuda_stub.so";

/// Returns the path of the built driver: beside the running executable or one or two directories
/// above it, where cargo puts it.
///
/// # Panics
///
/// When it is in none of these places: `cargo build -p tload-cuda-stub` builds it.
pub fn library() -> PathBuf {
    let executable = std::env::current_exe().expect("a process knows its executable");
    let folders: Vec<_> = executable.ancestors().skip(1).take(3).collect();
    // `deps` first: cargo keeps that copy up to date for crates that depend on this one, and the
    // other only when it builds this crate itself.
    let found = folders
        .iter()
        .flat_map(|folder| [folder.join("deps").join(FILE), folder.join(FILE)])
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        let folders: Vec<_> = folders.iter().map(|folder| folder.display()).collect();
        no_library(&format!("{folders:?}"))
    })
}

#[expect(clippy::panic, reason = "documented: a test cannot go on without it")]
fn no_library(folders: &str) -> ! {
    panic!("{FILE} is in none of {folders}; cargo build -p tload-cuda-stub makes it")
}

/// Creates a temporary directory with the driver under its usual names, `libcuda.so` and
/// `libcuda.so.1`, for `LD_LIBRARY_PATH` of child processes. Dropping the value removes it.
///
/// # Panics
///
/// As [`library`] does, and when there is no room for temporary files.
pub fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("temporary folders can be made");
    for name in ["libcuda.so", "libcuda.so.1"] {
        link(&library(), &folder.path().join(name));
    }
    folder
}

fn link(library: &Path, name: &Path) {
    std::os::unix::fs::symlink(library, name).expect("a new folder takes links");
}

/// Driver opened by this process. A later `dlopen("libcuda.so")` returns the same one, by its name.
#[derive(Debug)]
pub struct Stub {
    library: NonNull<c_void>,
    set: extern "C" fn(*const c_char, *const c_char) -> c_int,
    live: extern "C" fn(*const c_char) -> i64,
    count: extern "C" fn(*const c_char) -> i64,
    violation: extern "C" fn(*mut c_char, usize) -> i64,
    reset: extern "C" fn() -> c_int,
    adopt: extern "C" fn(usize, usize, c_int) -> c_int,
    disown: extern "C" fn(usize) -> c_int,
}

// SAFETY: the library stays open for the life of the process, and `dlsym` may be called from any
// thread.
unsafe impl Send for Stub {}
// SAFETY: as above; the functions take a lock of their own.
unsafe impl Sync for Stub {}

static STUB: LazyLock<Stub> = LazyLock::new(|| Stub::open(&library()));

impl Stub {
    /// Opens the driver the first time. It is never closed.
    ///
    /// # Panics
    ///
    /// When it is not built or cannot be opened.
    pub fn load() -> &'static Self {
        &STUB
    }

    fn open(path: &Path) -> Self {
        let name = text(path.to_str().expect("a build folder has a UTF-8 name"));
        // SAFETY: the library is this crate's own; opening it runs nothing but the loader.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let library = NonNull::new(library).expect("the library was found, and needs nothing");
        let symbol = |name: &str| find(library, name).expect("exported by this crate");
        Self {
            library,
            // SAFETY: `export/inspect.rs` defines it with this type.
            set: unsafe { function(symbol("tload_cuda_stub_set")) },
            // SAFETY: as above.
            live: unsafe { function(symbol("tload_cuda_stub_live")) },
            // SAFETY: as above.
            count: unsafe { function(symbol("tload_cuda_stub_count")) },
            // SAFETY: as above.
            violation: unsafe { function(symbol("tload_cuda_stub_violation")) },
            // SAFETY: as above.
            reset: unsafe { function(symbol("tload_cuda_stub_reset")) },
            // SAFETY: as above.
            adopt: unsafe { function(symbol("tload_cuda_stub_adopt")) },
            // SAFETY: as above.
            disown: unsafe { function(symbol("tload_cuda_stub_disown")) },
        }
    }

    /// Returns the address of an exported function by its exact name; `None` if there is none.
    pub fn symbol(&self, name: &str) -> Option<NonNull<c_void>> {
        find(self.library, name)
    }

    /// Sets a setting at run time that the environment variable `TLOAD_CUDA_STUB_<KEY>` sets before
    /// the start.
    ///
    /// # Panics
    ///
    /// For an unknown key or an invalid value.
    pub fn set(&self, key: &str, value: &str) {
        let status = (self.set)(text(key).as_ptr(), text(value).as_ptr());
        assert_eq!(status, 0, "the stub's `{key}` cannot be `{value}`");
    }

    /// Returns the present number of `allocations`, `allocated_bytes`, `registrations`,
    /// `registered_bytes`, `host_allocations`, `streams`, `events`, `contexts` (retains), `pools`
    /// or `threads`.
    ///
    /// # Panics
    ///
    /// For any other name.
    pub fn live(&self, kind: &str) -> i64 {
        let count = (self.live)(text(kind).as_ptr());
        assert!(count >= 0, "the stub has no `{kind}`");
        count
    }

    /// Returns the number of calls of a function, by its exact name; or `calls` (of all of them),
    /// `violations`, `pageable_copies`, `pinned_copies`, `read_only_copies`, `copied_bytes`,
    /// `peak_allocated_bytes`, or `abandoned` (objects still alive at the last release of their
    /// context).
    pub fn count(&self, name: &str) -> i64 {
        (self.count)(text(name).as_ptr())
    }

    /// Returns the text of the last violation, or an empty string.
    pub fn last_violation(&self) -> String {
        let mut bytes = vec![0_u8; 4096];
        let len = (self.violation)(bytes.as_mut_ptr().cast(), bytes.len());
        assert!(len >= 0, "the stub does not work in a forked child");
        let text = CStr::from_bytes_until_nul(&bytes).expect("texts end in a zero byte");
        text.to_string_lossy().into_owned()
    }

    /// Resets counters, faults, delays and lost contexts, and returns settings to those of the
    /// environment. Live objects stay.
    pub fn reset(&self) {
        (self.reset)();
    }

    /// Treats memory of the caller, which must not move, as memory of a device: it stands for
    /// another library's allocation.
    ///
    /// # Panics
    ///
    /// For an unknown device, an empty range, and memory that is already in use.
    pub fn adopt(&self, start: *mut u8, len: usize, ordinal: i32) {
        let status = (self.adopt)(start.expose_provenance(), len, ordinal);
        assert_eq!(status, 0, "the stub cannot adopt this memory");
    }

    /// Ends [`Stub::adopt`] as the owner's free would: a violation while work may still use the
    /// memory.
    ///
    /// # Panics
    ///
    /// For memory that was not adopted.
    pub fn disown(&self, start: *mut u8) {
        let status = (self.disown)(start.expose_provenance());
        assert_eq!(status, 0, "the stub has not adopted this memory");
    }
}

fn text(text: &str) -> CString {
    CString::new(text).expect("no zero bytes inside")
}

fn find(library: NonNull<c_void>, name: &str) -> Option<NonNull<c_void>> {
    // SAFETY: the library is open and stays so; the name ends in a zero byte.
    NonNull::new(unsafe { libc::dlsym(library.as_ptr(), text(name).as_ptr()) })
}

/// Converts an address to a function pointer.
///
/// # Safety
///
/// `F` must be the type of the function at this address.
unsafe fn function<F: Copy>(address: NonNull<c_void>) -> F {
    assert_eq!(size_of::<F>(), size_of_val(&address), "a function pointer");
    // SAFETY: of the same size, and the caller promises a function of type `F`.
    unsafe { std::mem::transmute_copy(&address) }
}
