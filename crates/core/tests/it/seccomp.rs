//! System calls that are refused, as the filter of a container refuses them.

#![expect(unsafe_code, reason = "seccomp filters have no safe wrapper")]

/// Makes the system call with this number fail with `errno` on this thread and the threads that it
/// starts.
pub(crate) fn refuse(call: libc::c_long, errno: i32) {
    install(&[], call, errno);
}

/// Returns an instruction of a filter.
pub(crate) fn instruction(code: u16, jump_true: u8, jump_false: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: jump_true,
        jf: jump_false,
        k,
    }
}

/// As [`refuse`], for calls that `only` does not skip: instructions before the four of every
/// filter, the last of which allows the call.
pub(crate) fn install(only: &[libc::sock_filter], call: libc::c_long, errno: i32) {
    let number = |number: libc::c_long| u32::try_from(number).expect("positive");
    // Load the number of the system call; return the error if it is this one, else allow the call.
    let mut program = only.to_vec();
    program.extend([
        instruction(0x20, 0, 0, 0),
        instruction(0x15, 0, 1, number(call)),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | number(errno.into())),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]);
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("short"),
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
