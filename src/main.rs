//! The `ckptfs` program; everything is in the library.

fn main() -> std::process::ExitCode {
    ckptfs::main()
}
