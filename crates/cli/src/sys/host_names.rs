//! Addresses of host names.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// The addresses of a host, with this port.
pub fn addresses_of(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    use_built_in_services()?;
    Ok((host, port).to_socket_addrs()?.collect())
}

/// glibc loads a service of /etc/nsswitch.conf (`resolve`, `mymachines`, `mdns4_minimal`) as a module of the machine,
/// and with it the machine's libc.so.6. A second C library crashes a static program. `files` and `dns` are part of a
/// static glibc from 2.34 on (nss/nss_module.c), and the file isn't read again after this call (nss/nss_database.c).
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
fn use_built_in_services() -> io::Result<()> {
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const libc::c_char, services: *const libc::c_char) -> libc::c_int;
    }
    static REFUSED: std::sync::OnceLock<libc::c_int> = std::sync::OnceLock::new();
    // SAFETY: both texts are NUL-terminated, and glibc copies what it keeps (nss.h). It writes the list without its
    // lock: every lookup of this program waits here for the first call to end.
    let refused = REFUSED.get_or_init(|| unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) });
    // Both words are valid, so only memory can be missing.
    if *refused == 0 { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}

/// A dynamic program may load the services that the machine configures.
#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
fn use_built_in_services() -> io::Result<()> {
    Ok(())
}
