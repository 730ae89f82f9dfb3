//! The machine and the C library: the clock since boot, and versions.

pub fn boottime_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec; the clock exists since Linux 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The version of glibc that this program itself runs with; `None` if its C library is another one, or if it is static.
pub fn own_glibc() -> Option<String> {
    // SAFETY: the name is NUL-terminated. What dlsym finds under it is the function that glibc documents, which returns
    // a static string (gnu_get_libc_version(3)).
    unsafe {
        let function = libc::dlsym(libc::RTLD_DEFAULT, c"gnu_get_libc_version".as_ptr());
        if function.is_null() {
            return None;
        }
        let function: extern "C" fn() -> *const libc::c_char = std::mem::transmute(function);
        Some(std::ffi::CStr::from_ptr(function()).to_string_lossy().into_owned())
    }
}

/// Major and minor number of the kernel, and its release as text.
pub fn kernel() -> Option<(u32, u32, String)> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    Some((numbers.next()?, numbers.next()?, release.trim().to_string()))
}
