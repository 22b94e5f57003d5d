//! The `ckptfs` program, a wrapper around the library.

fn main() -> std::process::ExitCode {
    ckptfs_cli::main()
}
