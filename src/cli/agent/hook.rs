//! `ckptfs agent hook`: one event of an agent.
//!
//! The agent waits for it at every action, so it sends a single request to the daemon. It never
//! exits with status 2, which agents interpret as "forbidden". stdout is read by the agent: it is
//! empty, or in the agent's format.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::json;

use super::event::{AgentEventKind, Event};
use super::event_tree::CheckpointRoute;
use super::{event_tree, labels, prior_checkpoint, process, summary, worktree};
use ckptfs_api::{
    Change, ChangeKind, CheckpointId, CheckpointOptions, Code, OnlyBy, StateName, VerbResult,
};
use ckptfs_sys::Kind;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Outcome, error};
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::past;

/// Limit of an event, which may contain a whole file.
const INPUT_BYTES_MAX: u64 = 64 << 20;
/// Limit of the wait for the end of stdin.
const INPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// Read an agent's event from stdin and act on it; called by the hooks
///
/// Prints nothing, or output in the agent's format. Never exits with status 2, which would forbid
/// the agent's action.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The calling agent; it becomes a label of the checkpoint
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
}

impl Args {
    /// Parses the arguments of `agent hook`; ignores unknown ones.
    pub fn of(arguments: impl Iterator<Item = OsString>) -> Args {
        let (mut agent, mut is_next) = (None, false);
        for argument in arguments {
            let text = argument.to_string_lossy();
            if std::mem::take(&mut is_next) {
                agent = Some(text.into_owned());
            } else if let Some(name) = text.strip_prefix("--agent=") {
                agent = Some(name.to_owned());
            } else {
                is_next = text == "--agent";
            }
        }
        Args { agent }
    }
}

pub fn run(args: &Args, context: &mut Context) -> Outcome {
    let event = Event::read(&input()?)?;
    match event.what() {
        AgentEventKind::Other => return Ok(()),
        AgentEventKind::WorktreeCreate => return worktree::create(&event, context),
        AgentEventKind::WorktreeRemove => return worktree::remove(&event, context),
        AgentEventKind::After if !event.is_command() => return Ok(()),
        AgentEventKind::Prompt
        | AgentEventKind::Before
        | AgentEventKind::After
        | AgentEventKind::Stop => {}
    }
    match event_tree::of(&event)? {
        None => Ok(()),
        Some(CheckpointRoute::Served(mut served)) => act(args, &event, &mut served, context),
        Some(CheckpointRoute::Mount(root)) => {
            if event.what() == AgentEventKind::Prompt {
                let session = event.session.as_deref().unwrap_or("unknown");
                let process = process::agent();
                let name = labels::dir_name(session, process.as_deref(), &event.prompt_id());
                let at = root.join(past::snapdir_of_others(&root)).join(name);
                std::fs::create_dir(&at).on(at.display())?;
            }
            Ok(())
        }
    }
}

/// Handles an event in a tree whose daemon accepts this user.
fn act(args: &Args, event: &Event, served: &mut ServedTree, context: &mut Context) -> Outcome {
    let what = event.what();
    if what == AgentEventKind::After {
        return after(event, served, context);
    }
    let process = process::agent();
    let made = served.client.ask(CheckpointOptions {
        note: event.note(args.agent.as_deref(), process.as_deref()),
        if_changed: what != AgentEventKind::Prompt,
        ..CheckpointOptions::default()
    })?;
    if what == AgentEventKind::Before && event.is_command() {
        prior_checkpoint::remember(event, made.id);
    } else if what == AgentEventKind::Stop {
        prior_checkpoint::forget(event);
    }
    Ok(())
}

/// Reports the changes of a command to the agent, if they may be unintended.
fn after(event: &Event, served: &mut ServedTree, context: &mut Context) -> Outcome {
    let (Some(id), Some(process)) = (prior_checkpoint::recall(event), process::agent()) else {
        return Ok(());
    };
    let changes = changes_by(id, process, served)?;
    let Some(told) = summary::of(&changes) else {
        return Ok(());
    };
    let told = format!(
        "{told}. The tree before it is checkpoint {id}: `ckptfs diff {id}` compares, `ckptfs restore {id} PATH` brings back."
    );
    let answer = if event.name() == "postToolUse" {
        json!({ "additional_context": told })
    } else {
        json!({ "hookSpecificOutput": { "hookEventName": event.name(), "additionalContext": told } })
    };
    Ok(context.out.json(&answer)?)
}

/// Returns the changes by a process and its children since a checkpoint, as a restore would revert
/// them.
fn changes_by(id: CheckpointId, who: String, served: &mut ServedTree) -> VerbResult<Vec<Change>> {
    let asked = served.client.ask(OnlyBy {
        to: Some(StateName(id.to_string())),
        who,
        also_shared: true,
        dry_run: true,
        ..OnlyBy::default()
    });
    let found = match asked {
        // Nothing was changed, or the checkpoint is gone.
        Err(why) if [Code::UnknownProcess, Code::UnknownCheckpoint].contains(&why.code) => {
            return Ok(Vec::new());
        }
        found => found?,
    };
    let mut changes = found.restored.changes;
    // Paths that cannot be reverted without changes of others were changed all the same.
    changes.extend(found.shared.into_iter().map(|shared| {
        let path = served.root.join(OsStr::from_bytes(&shared.path.0));
        let is_there = path.symlink_metadata().is_ok();
        let how = if is_there {
            ChangeKind::Modified
        } else {
            ChangeKind::Added
        };
        Change::new(shared.path.0, how, Kind::File)
    }));
    Ok(changes)
}

/// Reads stdin to its end, with a time limit.
fn input() -> VerbResult<Vec<u8>> {
    if io::stdin().is_terminal() {
        return Err(error(
            Code::BadHook,
            "an agent's event is read from stdin, which is a terminal here",
        ));
    }
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("stdin".into())
        .spawn(move || {
            let mut said = Vec::new();
            let read = io::stdin()
                .lock()
                .take(INPUT_BYTES_MAX)
                .read_to_end(&mut said);
            // The receiver may have timed out.
            let _ = sender.send(read.map(|_| said));
        })
        .on("a thread")?;
    receiver
        .recv_timeout(INPUT_TIMEOUT)
        .map_err(|_| {
            error(
                Code::BadHook,
                format!("stdin was still open after {} s", INPUT_TIMEOUT.as_secs()),
            )
        })?
        .on("stdin")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_s_name_is_found_and_the_rest_left_out() {
        let agent = |all: &[&str]| Args::of(all.iter().map(OsString::from)).agent;
        assert_eq!(
            agent(&["--new", "-x", "--agent", "codex", "y"]).as_deref(),
            Some("codex")
        );
        assert_eq!(agent(&["--agent=gemini"]).as_deref(), Some("gemini"));
        assert_eq!((agent(&[]), agent(&["--agent"])), (None, None));
    }
}
