//! How the library is linked.

fn main() {
    // It stays where it is once it is loaded: threads may be in its hooks, and pointers to them cached, whatever dlclose is
    // told.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Its hooks are libc's names. Loaded late it stands behind libc, and what it calls malloc must be its own all the same.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
