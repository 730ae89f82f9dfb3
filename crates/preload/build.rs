//! Sets the linker's options for the library.

fn main() {
    // dlclose must not unmap the library: threads may be inside its hooks, and other code caches pointers to them.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The hooks have libc's names. A library that is loaded late comes after libc in the search order, yet its own
    // calls of malloc must reach its own hook.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
