//! Kinds of errors: what the caller can do about them.

use super::named::named;

named! {
    /// Category of an error, chosen by what the caller can do about it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ErrorKind {
        /// A file, directory, shard or object does not exist: fix the path.
        NotFound = "not_found",
        /// It exists but may not be read: fix the permissions or credentials.
        PermissionDenied = "permission_denied",
        /// The bytes are not a valid checkpoint: get a good file.
        InvalidFormat = "invalid_format",
        /// The bytes do not match their digest: download the file again.
        Corrupt = "corrupt",
        /// A name or pattern selects no tensor: fix the name.
        NoSuchTensor = "no_such_tensor",
        /// The request is contradictory or impossible: fix the call.
        InvalidRequest = "invalid_request",
        /// This engine, kernel or build does not support the request: choose another.
        Unsupported = "unsupported",
        /// A limit, the machine's memory or the disk is too small: raise the limit or ask for less.
        OutOfMemory = "out_of_memory",
        /// The operating system failed a read: retry, or check the disk.
        Io = "io",
        /// An object store cannot be reached, or failed repeatedly: retry later, or look at network
        /// and server.
        Remote = "remote",
        /// The GPU or its driver failed: check the GPU, or start a new process.
        Device = "device",
        /// A file or object changed or shrank while it was read: load again when it is no longer
        /// written to.
        Changed = "changed",
        /// The load's deadline passed, or an object store did not respond in time.
        TimedOut = "timed_out",
        /// The caller cancelled the load.
        Cancelled = "cancelled",
        /// Another rank of the group did not join, disagrees, failed or is gone: look at that rank.
        Peer = "peer",
    }
    /// Every kind, so that bindings can prove that they map each of them.
    pub const ALL;
    /// Returns the kind's name in lower case with underscores, as reports and JSON show it.
    pub fn name;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_distinct_names() {
        let names: std::collections::HashSet<_> =
            ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ErrorKind::ALL.len());
    }
}
