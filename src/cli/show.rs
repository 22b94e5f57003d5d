//! `ckptfs show`.

mod content;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::executor;
use ckptfs_api::{Code, ShowCheckpoint, StateName};
use ckptfs_sys::Kind;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Outcome, hinted};
use ckptfs_ui::{details, names, past};

/// Show a checkpoint, or a file or directory in it
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A number, a tag, or `latest`; with `:PATH` the content of that file, or the names in that
    /// directory
    #[arg(value_name = "ID[:PATH]", default_value = "latest")]
    id: OsString,
    /// With :PATH: print mode, size and time of the file, or of each name in the directory
    #[arg(short, long)]
    long: bool,
    /// With :PATH: end each name with NUL and escape nothing
    #[arg(short = 'z', conflicts_with_all = ["json", "long"])]
    nul: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    if !args.nul {
        context.out.page();
    }
    let mut source = executor::history(context.dir())?;
    let state = StateName(args.id.to_string_lossy().into_owned());
    let checkpoint = match source.ask(ShowCheckpoint { state }) {
        Err(unknown)
            if unknown.code == Code::UnknownCheckpoint && args.id.as_bytes().contains(&b':') =>
        {
            return print_past(&args, context);
        }
        checkpoint => checkpoint?,
    };
    if args.long || args.nul {
        let hint = format!("ckptfs show -l {}:PATH", checkpoint.id);
        return Err(hinted(
            Code::Usage,
            "--long and -z list a path in a checkpoint",
            hint,
        )
        .into());
    }
    context
        .out
        .answer(&checkpoint, |out| details::print(out, &checkpoint))
}

/// Prints a file or a directory as it was.
fn print_past(args: &Args, context: &mut Context) -> Outcome {
    let found = past::find(context.dir(), &args.id)?;
    let stat = found.tree.stat(&found.path);
    let kind = stat.map_err(|cause| found.failed(cause))?.kind;
    let (long, nul) = (args.long, args.nul);
    if kind == Kind::Dir || long || nul {
        let format = names::Format { long, nul };
        return names::print(&found, kind, format, &mut context.out);
    }
    content::print(&found, &args.id.to_string_lossy(), &mut context.out)
}
