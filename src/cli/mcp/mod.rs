//! `ckptfs mcp`: the verbs as tools of an agent (Model Context Protocol), on stdin and stdout.
//!
//! Each tool asks the daemon what the verb of its name asks. Nothing is done here that a verb does
//! not do; what is different is the form: arguments are checked against a schema and bounded,
//! answers are bounded too and say what was left out. stdout has the protocol and nothing else: what
//! the verbs would print goes to memory ([`super::output::Out::to_memory`]).

mod answers;
mod asked;
mod branches;
mod change;
mod limited;
mod look;
mod server;

use std::path::PathBuf;

use rmcp::ServiceExt;

use super::context::Context;
use super::error::{On, Outcome, error, hinted};
use super::locate::{self, Served};
use super::tree_path::in_tree;
use crate::engine::api::{Code, StateName, TreePath, VerbResult};
use crate::sys;

/// One call names no more paths than this.
const PATHS_MAX: usize = 1000;

/// Serve the tools of an agent on stdin and stdout (Model Context Protocol)
///
/// An agent starts it, and uses it for checkpoints, diffs, past files, restores and branches of the
/// tree that contains the working directory, or DIR of -C. It exits at the end of stdin.
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(_: Args, context: &mut Context) -> Outcome {
    let seat = Seat {
        dir: context.dir.clone(),
        agent: agent(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .on("the runtime")?;
    let served = runtime.block_on(async {
        let stdio = (limited::stdin(), tokio::io::stdout());
        let running = match server::Server::new(seat).serve(stdio).await {
            Ok(running) => running,
            // It went before it said a word: there is nobody to tell.
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(why) => return Err(error(Code::Protocol, why.to_string())),
        };
        running
            .waiting()
            .await
            .map(drop)
            .map_err(|why| error(Code::Internal, why.to_string()))
    });
    // stdin is read by a thread that nothing can wake.
    runtime.shutdown_background();
    Ok(served?)
}

/// Whoever started this server: its process, and when that began in clock ticks since boot.
fn agent() -> Option<(u32, u64)> {
    // 1 has taken over from a parent that is gone; 0 is in a namespace that is not ours.
    let pid = Some(std::os::unix::process::parent_id()).filter(|pid| *pid > 1)?;
    let start = sys::process_starttime(i32::try_from(pid).ok()?).ok()?;
    Some((pid, start))
}

/// Where a server works, and for whom.
struct Seat {
    /// Of `-C`.
    dir: Option<PathBuf>,
    /// See [`agent`]; `None`: it is gone already.
    agent: Option<(u32, u64)>,
}

impl Seat {
    /// The daemon of the tree. It is looked for anew by each call: the tree may be mounted later.
    fn served(&self) -> VerbResult<Served> {
        locate::served(self.dir.as_deref())
    }

    /// The agent, as `restore --only-by` names a process.
    fn me(&self) -> VerbResult<String> {
        let (pid, start) = self.agent.ok_or_else(|| {
            hinted(
                Code::UnknownProcess,
                "the process that started this server has exited, so your changes cannot be told from others'",
                "name the paths, and set only_by_me: false",
            )
        })?;
        Ok(format!("pid:{pid}@{start}"))
    }
}

/// Paths of an agent: absolute, or from the top of the tree, as answers have them.
///
/// # Errors
/// `unknown-path`: outside of the tree; `usage`: too many.
fn paths_of(served: &Served, paths: &[String]) -> VerbResult<Vec<TreePath>> {
    if paths.len() > PATHS_MAX {
        return Err(hinted(
            Code::Usage,
            format!("{} paths are too many", paths.len()),
            format!("name {PATHS_MAX} at most, or the directories that they are in"),
        ));
    }
    paths.iter().map(|path| path_of(served, path)).collect()
}

fn path_of(served: &Served, path: &str) -> VerbResult<TreePath> {
    if path.contains('\0') {
        return Err(error(Code::UnknownPath, "a path cannot contain NUL"));
    }
    in_tree(&served.root, &served.root, path.as_ref())
}

/// The newest checkpoint that somebody asked for, unless another state is named.
fn state_or_latest(state: Option<String>) -> StateName {
    StateName(state.unwrap_or_else(|| "latest".to_owned()))
}
