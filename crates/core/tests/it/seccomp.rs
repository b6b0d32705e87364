//! System calls that are refused, as the filter of a container refuses them.

#![expect(unsafe_code, reason = "seccomp filters have no safe wrapper")]

/// Makes the system call with this number fail with `errno` on this thread and the threads that it
/// starts.
pub(crate) fn refuse(call: libc::c_long, errno: i32) {
    let number = |number: libc::c_long| u32::try_from(number).expect("positive");
    let filter = |code, jump_true, jump_false, k| libc::sock_filter {
        code,
        jt: jump_true,
        jf: jump_false,
        k,
    };
    // Load the number of the system call; return the error if it is this one, else allow the call.
    let mut program = [
        filter(0x20, 0, 0, 0),
        filter(0x15, 0, 1, number(call)),
        filter(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | number(errno.into())),
        filter(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: takes only numbers; affects this thread and the threads that it starts.
    let plain = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: `program` points to four instructions that outlive the call.
    let seccomp = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    assert_eq!((plain, seccomp), (0, 0), "seccomp works without privileges");
}
