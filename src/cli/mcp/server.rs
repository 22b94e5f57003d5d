//! The tools by their names, with what an agent is told of each, and how a failure is told.

use std::sync::Arc;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::IntoCallToolResult;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock};
use rmcp::{ErrorData, Json, ServerHandler, tool, tool_handler, tool_router};
use tokio::sync::Semaphore;

use super::super::error::error;
use super::super::output::escape;
use super::{Seat, answers, asked, branches, change, look};
use crate::engine::api::{Code, VerbError, VerbResult};

/// Tools that work at once; others wait.
const WORKING_MAX: usize = 4;

/// Answers an agent.
pub struct Server {
    seat: Arc<Seat>,
    turns: Arc<Semaphore>,
    tools: ToolRouter<Server>,
}

/// Why a tool did not do what was asked.
pub struct Refused(VerbError);

impl IntoCallToolResult for Refused {
    /// An answer and no failure of the protocol, so that the agent reads it.
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
    pub fn new(seat: Seat) -> Server {
        Server {
            seat: Arc::new(seat),
            turns: Arc::new(Semaphore::new(WORKING_MAX)),
            tools: Server::tool_router(),
        }
    }

    /// Does it in a thread that may wait for the daemon.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Seat) -> VerbResult<T> + Send + 'static,
    ) -> Result<Json<T>, Refused> {
        // Nobody closes it.
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let seat = Arc::clone(&self.seat);
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&seat)
        });
        match done.await {
            Ok(answer) => answer.map(Json).map_err(Refused),
            Err(why) => Err(Refused(error(Code::Internal, why.to_string()))),
        }
    }
}

#[tool_router]
impl Server {
    /// What is mounted here, and which paths differ from the newest checkpoint
    #[tool(annotations(title = "Status", read_only_hint = true, open_world_hint = false))]
    async fn status(
        &self,
        Parameters(asked): Parameters<asked::Status>,
    ) -> Result<Json<answers::Status>, Refused> {
        self.work(move |seat| look::status(seat, asked)).await
    }

    /// Make a checkpoint of the whole tree, ignored and untracked files too: an instant, whatever the
    /// size. Make one before anything risky
    #[tool(annotations(
        title = "Make a checkpoint",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn checkpoint(
        &self,
        Parameters(asked): Parameters<asked::Checkpoint>,
    ) -> Result<Json<answers::Made>, Refused> {
        self.work(move |seat| change::checkpoint(seat, asked)).await
    }

    /// List checkpoints, newest first
    #[tool(annotations(
        title = "List checkpoints",
        read_only_hint = true,
        open_world_hint = false
    ))]
    async fn log(
        &self,
        Parameters(asked): Parameters<asked::Log>,
    ) -> Result<Json<answers::Log>, Refused> {
        self.work(move |seat| look::log(seat, asked)).await
    }

    /// Tell what changed between two checkpoints, or since one: the paths, and a patch if asked for
    #[tool(annotations(title = "Compare", read_only_hint = true, open_world_hint = false))]
    async fn diff(
        &self,
        Parameters(asked): Parameters<asked::Diff>,
    ) -> Result<Json<answers::Diff>, Refused> {
        self.work(move |seat| look::diff(seat, asked)).await
    }

    /// Read a file as it was at a checkpoint, without changing anything
    #[tool(annotations(
        title = "Read a past file",
        read_only_hint = true,
        open_world_hint = false
    ))]
    async fn read_past(
        &self,
        Parameters(asked): Parameters<asked::ReadPast>,
    ) -> Result<Json<answers::Past>, Refused> {
        self.work(move |seat| look::read_past(seat, asked)).await
    }

    /// List the versions of a path, newest first, and which of them contain a text: to find the one to
    /// read or to restore
    #[tool(annotations(
        title = "Find a version",
        read_only_hint = true,
        open_world_hint = false
    ))]
    async fn find_version(
        &self,
        Parameters(asked): Parameters<asked::FindVersion>,
    ) -> Result<Json<answers::Versions>, Refused> {
        self.work(move |seat| look::find_version(seat, asked)).await
    }

    /// Bring the tree, or some paths of it, back to an earlier state at a checkpoint. Unless only_by_me is false,
    /// only what you changed yourself since then is taken back, and what others did stays. A
    /// checkpoint of what is there now is made first, and `undo` takes the restore back
    #[tool(annotations(
        title = "Restore",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn restore(
        &self,
        Parameters(asked): Parameters<asked::Restore>,
    ) -> Result<Json<answers::Restored>, Refused> {
        self.work(move |seat| change::restore(seat, asked)).await
    }

    /// Undo the last operations on the history, of whomever: restores, merges, tags, dropped branches.
    /// Nothing is destroyed by it
    #[tool(annotations(
        title = "Undo",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn undo(
        &self,
        Parameters(asked): Parameters<asked::Undo>,
    ) -> Result<Json<answers::Undone>, Refused> {
        self.work(move |seat| change::undo(seat, asked)).await
    }

    /// Make a branch: a writable second tree beside this one, with all of its files. What is changed
    /// there does not show here until it is merged
    #[tool(annotations(
        title = "Make a branch",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn branch_create(
        &self,
        Parameters(asked): Parameters<asked::BranchCreate>,
    ) -> Result<Json<answers::BranchMade>, Refused> {
        self.work(move |seat| branches::create(seat, asked)).await
    }

    /// List the branches of this tree, and how much each has changed
    #[tool(annotations(
        title = "List branches",
        read_only_hint = true,
        open_world_hint = false
    ))]
    async fn branch_list(
        &self,
        Parameters(_): Parameters<asked::Nothing>,
    ) -> Result<Json<answers::Branches>, Refused> {
        self.work(branches::list).await
    }

    /// List what more than one branch has changed, or a branch and this tree, while they work
    #[tool(annotations(title = "Conflicts", read_only_hint = true, open_world_hint = false))]
    async fn branch_conflicts(
        &self,
        Parameters(asked): Parameters<asked::BranchConflicts>,
    ) -> Result<Json<answers::Conflicts>, Refused> {
        self.work(move |seat| branches::conflicts(seat, asked))
            .await
    }

    /// Do in this tree what was done in a branch, line by line. If both changed the same, nothing is
    /// changed unless `conflicts` says what to do. `undo` takes the merge back
    #[tool(annotations(
        title = "Merge a branch",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn branch_merge(
        &self,
        Parameters(asked): Parameters<asked::BranchMerge>,
    ) -> Result<Json<answers::Merged>, Refused> {
        self.work(move |seat| branches::merge(seat, asked)).await
    }

    /// Unmount a branch that nobody uses and move it to the trash, from where `undo`, or
    /// `ckptfs branch restore`, brings it back until the next gc
    #[tool(annotations(
        title = "Drop a branch",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn branch_drop(
        &self,
        Parameters(asked): Parameters<asked::BranchDrop>,
    ) -> Result<Json<answers::Dropped>, Refused> {
        self.work(move |seat| branches::drop(seat, asked)).await
    }
}

#[tool_handler(
    router = self.tools,
    name = "ckptfs",
    instructions = "Instant checkpoints of the directory you work in, every file of it: make one before anything risky, compare, read files as they were, and take back what you changed. Paths are absolute, or from the top of the tree."
)]
impl ServerHandler for Server {}
