//! The `ckptfs` program, a wrapper around the library.

fn main() -> std::process::ExitCode {
    ckptfs::main()
}
