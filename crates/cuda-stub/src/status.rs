//! Results of the driver that this stub returns, with their names and texts.
//!
//! Numbers and names are those of NVIDIA's `cuda.h`.

/// Status returned by a function of the driver: 0, or an error.
pub(crate) type Status = u32;

/// Result inside this crate; the error is never `SUCCESS`.
pub(crate) type Outcome<T = ()> = Result<T, Status>;

macro_rules! statuses {
    // `_` for a status that only a fault returns.
    ($($name:tt = $value:literal, $named:literal, $text:literal;)*) => {
        $(pub(crate) const $name: Status = $value;)*

        /// Returns name and text, both ending in a zero byte; `None` for a number that the driver
        /// does not know.
        pub(crate) fn describe(status: Status) -> Option<(&'static str, &'static str)> {
            match status {
                $($value => Some((concat!($named, "\0"), concat!($text, "\0"))),)*
                _ => None,
            }
        }
    };
}

statuses! {
    SUCCESS = 0, "CUDA_SUCCESS", "no error";
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error";
    STUB_LIBRARY = 34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    OPERATING_SYSTEM = 304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY", "device not ready";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    CONTEXT_IS_DESTROYED = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed";
    ALREADY_REGISTERED = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped";
    NOT_REGISTERED = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region";
    _ = 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
    _ = 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
    _ = 802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized";
    _ = 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination";
    _ = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
    STREAM_CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
}
