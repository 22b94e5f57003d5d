//! Generates Rust code from csi.proto, with a compiler in Rust that needs no installation.

fn main() {
    // The bounds of tests/it/bounds apply to whole processes, and the loader would relocate over a
    // megabyte for each debug build. A release remains PIE, and a static binary requires PIE.
    let is_static = std::env::var("CARGO_CFG_TARGET_FEATURE")
        .is_ok_and(|features| features.split(',').any(|one| one == "crt-static"));
    if !is_static
        && std::env::var("PROFILE").is_ok_and(|profile| profile == "debug")
        && std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
    {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
    println!("cargo::rerun-if-changed=src/csi/csi.proto");
    println!("cargo::rerun-if-changed=src/csi/build.rs");
    #[cfg(feature = "csi")]
    generate();
}

#[cfg(feature = "csi")]
fn generate() {
    let files = protox::compile(["csi.proto"], ["src/csi"])
        .expect("csi.proto is that of the specification");
    // Calls that are not implemented return UNIMPLEMENTED. Clients are for the tests.
    let builder = tonic_prost_build::configure()
        .build_transport(false)
        .generate_default_stubs(true);
    builder
        .compile_fds(files)
        .expect("code is written to OUT_DIR");
}
