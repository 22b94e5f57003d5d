//! The tools with the descriptions that an agent reads, and the form of their errors.

use std::sync::Arc;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::IntoCallToolResult;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock};
use rmcp::{ErrorData, Json, ServerHandler, tool, tool_handler, tool_router};
use tokio::sync::Semaphore;

use super::{McpContext, branches, params, read_tools, results, write_tools};
use ckptfs_api::{Code, VerbError, VerbResult};
use ckptfs_ui::error::error;
use ckptfs_ui::output::escape;

/// Maximum number of concurrent calls; further ones wait.
const WORKING_MAX: usize = 4;

/// The MCP server of an agent.
pub struct Server {
    seat: Arc<McpContext>,
    turns: Arc<Semaphore>,
    tools: ToolRouter<Server>,
}

/// Error of a tool.
pub struct ToolError(VerbError);

impl IntoCallToolResult for ToolError {
    /// Returns a tool result instead of a protocol error, so that the agent reads it.
    fn into_call_tool_result(self) -> Result<CallToolResponse, ErrorData> {
        let VerbError {
            code,
            message,
            hint,
        } = self.0;
        let code = serde_json::to_value(&code).unwrap_or_default();
        let code = code.as_str().unwrap_or("internal");
        let message = escape(message.as_bytes());
        let text = match hint {
            Some(hint) => format!("{message} ({code})\nHint: {}", escape(hint.as_bytes())),
            None => format!("{message} ({code})"),
        };
        Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into())
    }
}

impl Server {
    pub fn new(seat: McpContext) -> Server {
        Server {
            seat: Arc::new(seat),
            turns: Arc::new(Semaphore::new(WORKING_MAX)),
            tools: Server::tool_router(),
        }
    }

    /// Runs a tool on a thread that may block.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&McpContext) -> VerbResult<T> + Send + 'static,
    ) -> Result<Json<T>, ToolError> {
        // The semaphore is never closed.
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let seat = Arc::clone(&self.seat);
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&seat)
        });
        match done.await {
            Ok(answer) => answer.map(Json).map_err(ToolError),
            Err(why) => Err(ToolError(error(Code::Internal, why.to_string()))),
        }
    }
}

#[tool_router]
impl Server {
    /// Show the mounted tree, and the paths that differ from the newest checkpoint
    #[tool(annotations(title = "Status", read_only_hint = true, open_world_hint = false))]
    async fn status(
        &self,
        Parameters(asked): Parameters<params::Status>,
    ) -> Result<Json<results::Status>, ToolError> {
        self.work(move |seat| read_tools::status(seat, asked)).await
    }

    /// Make a checkpoint of the whole tree, including ignored and untracked files. Takes an
    /// instant, regardless of the size of the tree. Make one before risky changes
    #[tool(annotations(
        title = "Make a checkpoint",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn checkpoint(
        &self,
        Parameters(asked): Parameters<params::Checkpoint>,
    ) -> Result<Json<results::CheckpointResult>, ToolError> {
        self.work(move |seat| write_tools::checkpoint(seat, asked))
            .await
    }

    /// List checkpoints, newest first
    #[tool(annotations(
        title = "List checkpoints",
        read_only_hint = true,
        open_world_hint = false
    ))]
    async fn log(
        &self,
        Parameters(asked): Parameters<params::Log>,
    ) -> Result<Json<results::Log>, ToolError> {
        self.work(move |seat| read_tools::log(seat, asked)).await
    }

    /// List the paths that changed between two checkpoints, or since one, optionally with a patch
    #[tool(annotations(title = "Compare", read_only_hint = true, open_world_hint = false))]
    async fn diff(
        &self,
        Parameters(asked): Parameters<params::Diff>,
    ) -> Result<Json<results::Diff>, ToolError> {
        self.work(move |seat| read_tools::diff(seat, asked)).await
    }

    /// Read a file at a checkpoint, without changing anything
    #[tool(annotations(
        title = "Read a past file",
        read_only_hint = true,
        open_world_hint = false
    ))]
    async fn read_past(
        &self,
        Parameters(asked): Parameters<params::ReadPast>,
    ) -> Result<Json<results::FileContent>, ToolError> {
        self.work(move |seat| read_tools::read_past(seat, asked))
            .await
    }

    /// List the versions of a path, newest first, optionally with those that contain a text, to
    /// find a version to read or restore
    #[tool(annotations(
        title = "Find a version",
        read_only_hint = true,
        open_world_hint = false
    ))]
    async fn find_version(
        &self,
        Parameters(asked): Parameters<params::FindVersion>,
    ) -> Result<Json<results::Versions>, ToolError> {
        self.work(move |seat| read_tools::find_version(seat, asked))
            .await
    }

    /// Restore the tree, or some paths of it, to a checkpoint. Unless only_by_me is false, only
    /// your own changes since then are reverted; those of others stay. A checkpoint of the current
    /// tree is made first, and `undo` reverts the restore
    #[tool(annotations(
        title = "Restore",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn restore(
        &self,
        Parameters(asked): Parameters<params::Restore>,
    ) -> Result<Json<results::Restored>, ToolError> {
        self.work(move |seat| write_tools::restore(seat, asked))
            .await
    }

    /// Undo the last operations on the history, including those of others: restores, merges, tags,
    /// dropped branches. Nothing is destroyed: `ckptfs redo` reverts the undo
    #[tool(annotations(
        title = "Undo",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn undo(
        &self,
        Parameters(asked): Parameters<params::Undo>,
    ) -> Result<Json<results::Undone>, ToolError> {
        self.work(move |seat| write_tools::undo(seat, asked)).await
    }

    /// Make a branch: a writable copy of this tree with all of its files, in another directory.
    /// Changes there do not affect this tree until they are merged
    #[tool(annotations(
        title = "Make a branch",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn branch_create(
        &self,
        Parameters(asked): Parameters<params::BranchCreate>,
    ) -> Result<Json<results::BranchMade>, ToolError> {
        self.work(move |seat| branches::create(seat, asked)).await
    }

    /// List the branches of this tree with the number of paths that each changed
    #[tool(annotations(
        title = "List branches",
        read_only_hint = true,
        open_world_hint = false
    ))]
    async fn branch_list(
        &self,
        Parameters(_): Parameters<params::NoParams>,
    ) -> Result<Json<results::Branches>, ToolError> {
        self.work(branches::list).await
    }

    /// List the paths that several branches, or a branch and this tree, have changed so far
    #[tool(annotations(title = "Conflicts", read_only_hint = true, open_world_hint = false))]
    async fn branch_conflicts(
        &self,
        Parameters(asked): Parameters<params::BranchConflicts>,
    ) -> Result<Json<results::Conflicts>, ToolError> {
        self.work(move |seat| branches::conflicts(seat, asked))
            .await
    }

    /// Merge the changes of a branch into this tree, line by line. If there are conflicts, nothing
    /// is changed unless `conflicts` selects a resolution. `undo` reverts the merge
    #[tool(annotations(
        title = "Merge a branch",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn branch_merge(
        &self,
        Parameters(asked): Parameters<params::BranchMerge>,
    ) -> Result<Json<results::Merged>, ToolError> {
        self.work(move |seat| branches::merge(seat, asked)).await
    }

    /// Unmount an unused branch and move it to the trash, from which `undo` or `ckptfs branch
    /// restore` recovers it until the next gc
    #[tool(annotations(
        title = "Drop a branch",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn branch_drop(
        &self,
        Parameters(asked): Parameters<params::BranchDrop>,
    ) -> Result<Json<results::Dropped>, ToolError> {
        self.work(move |seat| branches::drop(seat, asked)).await
    }
}

#[tool_handler(
    router = self.tools,
    name = "ckptfs",
    instructions = "Instant checkpoints of the directory you work in, every file of it: make one before anything risky, compare, read files as they were, and take back what you changed. Paths are absolute, or from the top of the tree."
)]
impl ServerHandler for Server {}
