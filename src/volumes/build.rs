//! Generates Rust code from csi.proto, with a compiler in Rust that needs no installation.

fn main() {
    println!("cargo::rerun-if-changed=csi.proto");
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "csi")]
    generate();
}

#[cfg(feature = "csi")]
fn generate() {
    let files =
        protox::compile(["csi.proto"], ["."]).expect("csi.proto is that of the specification");
    // Calls that are not implemented return UNIMPLEMENTED. Clients are for the tests.
    let builder = tonic_prost_build::configure()
        .build_transport(false)
        .generate_default_stubs(true);
    builder
        .compile_fds(files)
        .expect("code is written to OUT_DIR");
}
