//! x
#[derive(Debug, clap::Args)]
pub struct Args {}
pub fn run(_args: Args, _context: &mut super::Context) -> super::error::Outcome { Ok(()) }
