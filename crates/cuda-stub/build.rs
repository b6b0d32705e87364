//! Gives the cdylib the driver's soname: once a process has opened it by path, the dynamic loader
//! returns that copy for every later `dlopen("libcuda.so")`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_TARGET_OS").is_some_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    }
}
