//! `ckptfs branch conflicts`.

use std::io::Write;

use super::super::context::Context;
use super::super::error::Outcome;
use super::super::locate;
use crate::engine::api::{Conflict, ListConflicts};

/// List the paths that more than one branch has changed, or a branch and this tree
///
/// One line for each: the path, and who. Known while they work, from what each has recorded since
/// its base.
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(Args {}: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let all = served.client.ask(ListConflicts)?;
    context.out.answer(&all, |out| {
        for Conflict {
            path,
            branches,
            parent,
        } in &all
        {
            let mut line = out.name(&path.0).into_owned();
            let here = parent.then_some("this tree");
            let who: Vec<&str> = branches.iter().map(String::as_str).chain(here).collect();
            write!(line, "\t{}", who.join(", "))?;
            line.push(b'\n');
            out.bytes(&line)?;
        }
        Ok(())
    })
}
