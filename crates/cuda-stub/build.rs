//! Names the cdylib as the driver is named: the dynamic loader then takes a copy that a process has opened by its path for every
//! later `dlopen("libcuda.so")`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_TARGET_OS").is_some_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    }
}
