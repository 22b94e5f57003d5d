//! Links debug builds for Linux without PIE: the bounds of tests/it/bounds apply to whole
//! processes, and the loader would relocate over a megabyte. A release remains PIE, and a static
//! binary requires PIE.

fn main() {
    let is_static = std::env::var("CARGO_CFG_TARGET_FEATURE")
        .is_ok_and(|features| features.split(',').any(|one| one == "crt-static"));
    if !is_static
        && std::env::var("PROFILE").is_ok_and(|profile| profile == "debug")
        && std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
    {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    println!("cargo::rerun-if-changed=src/build.rs");
}
