//! `ckptfs mcp`: the verbs as tools of an agent (Model Context Protocol), on stdin and stdout.
//!
//! Each tool sends the request of the verb of the same name, and implements nothing beyond it. Only
//! the form differs: arguments are validated against a schema and bounded; answers are bounded and
//! report the size of the omitted part. stdout carries only the protocol: the output of the verbs
//! goes to memory ([`ckptfs_ui::output::Out::to_memory`]).

mod branches;
mod json_lines;
mod params;
mod read_tools;
mod results;
mod server;
mod write_tools;

use std::path::PathBuf;

use rmcp::ServiceExt;

use ckptfs_api::{Code, StateName, TreePath, VerbResult};
use ckptfs_sys as sys;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome, error, hinted};
use ckptfs_ui::locate::{self, ServedTree};
use ckptfs_ui::tree_path::in_tree;

/// Maximum number of paths in one call.
const PATHS_MAX: usize = 1000;

/// Serve the verbs as tools for an agent on stdin and stdout (Model Context Protocol)
///
/// The agent starts the server. The tools make, list and compare checkpoints, read past files,
/// restore, and manage branches of the tree that contains the working directory, or DIR of -C. The
/// server exits at the end of stdin.
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(_: Args, context: &mut Context) -> Outcome {
    let seat = McpContext {
        dir: context.dir.clone(),
        agent: agent(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .on("the runtime")?;
    let served = runtime.block_on(async {
        let stdio = (json_lines::stdin(), tokio::io::stdout());
        let running = match server::Server::new(seat).serve(stdio).await {
            Ok(running) => running,
            // The client disconnected before it sent a message: no error.
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(why) => return Err(error(Code::Protocol, why.to_string())),
        };
        running
            .waiting()
            .await
            .map(drop)
            .map_err(|why| error(Code::Internal, why.to_string()))
    });
    // The thread that reads stdin cannot be interrupted.
    runtime.shutdown_background();
    Ok(served?)
}

/// Returns the process that started this server: its PID and start time.
fn agent() -> Option<(u32, u64)> {
    // PID 1 adopts the child of a dead parent; 0 means a parent in another PID namespace.
    let pid = Some(std::os::unix::process::parent_id()).filter(|pid| *pid > 1)?;
    let start = sys::process_starttime(i32::try_from(pid).ok()?).ok()?;
    Some((pid, start))
}

/// The working directory of a server and its client.
struct McpContext {
    /// Argument of `-C`.
    dir: Option<PathBuf>,
    /// See [`agent`]; `None`: it has already exited.
    agent: Option<(u32, u64)>,
}

impl McpContext {
    /// Connects to the daemon of the tree. Each call looks it up again, because the tree may be
    /// mounted later.
    fn served(&self) -> VerbResult<ServedTree> {
        locate::served(self.dir.as_deref())
    }

    /// Returns the agent in the form that `restore --only-by` accepts.
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

/// Parses the paths of an agent: absolute, or relative to the top of the tree as in answers.
///
/// # Errors
/// `unknown-path`: outside of the tree; `usage`: too many.
fn paths_of(served: &ServedTree, paths: &[String]) -> VerbResult<Vec<TreePath>> {
    if paths.len() > PATHS_MAX {
        return Err(hinted(
            Code::Usage,
            format!("{} paths are too many", paths.len()),
            format!("name {PATHS_MAX} at most, or the directories that they are in"),
        ));
    }
    paths.iter().map(|path| path_of(served, path)).collect()
}

fn path_of(served: &ServedTree, path: &str) -> VerbResult<TreePath> {
    if path.contains('\0') {
        return Err(error(Code::UnknownPath, "a path cannot contain NUL"));
    }
    in_tree(&served.root, &served.root, path.as_ref())
}

/// Defaults to the newest checkpoint made on request.
fn state_or_latest(state: Option<String>) -> StateName {
    StateName(state.unwrap_or_else(|| "latest".to_owned()))
}
