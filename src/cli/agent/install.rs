//! `ckptfs agent install`, `uninstall` and `status`.
//!
//! All files are checked, and all changes printed, before the first is made. Each file is replaced
//! by a rename, with a copy of its old content next to it.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use similar::TextDiff;

use super::agents::{ALL, Agent, Scope};
use super::files::{self, SettingsFile};
use super::settings;
use ckptfs_api::display::word;
use ckptfs_api::{Code, VerbResult};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Outcome, error};
use ckptfs_ui::locate::{self, TreeLocation};
use ckptfs_ui::output::Out;

/// The agent, and the scope.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The agent
    #[arg(value_name = "AGENT", value_enum)]
    agent: Agent,
    /// In the settings of this directory, for all users of it (the default)
    #[arg(long, conflicts_with = "user")]
    project: bool,
    /// In your own settings, for every directory
    #[arg(long)]
    user: bool,
    /// Only show the changes
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// The agents to show.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Only this agent
    #[arg(value_name = "AGENT", value_enum)]
    agent: Option<Agent>,
}

/// Direction of the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallAction {
    Install,
    Uninstall,
}

/// A file, and its future content.
struct PlannedEdit {
    path: PathBuf,
    place: SettingsFile,
    /// `None`: the file is removed.
    text: Option<String>,
}

/// Output of `--json`.
#[derive(Serialize)]
struct InstallReport {
    agent: &'static str,
    files: Vec<DoneFile>,
    dry_run: bool,
}

#[derive(Serialize)]
struct DoneFile {
    path: PathBuf,
    change: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    backup: Option<PathBuf>,
}

/// State of an agent in one scope, in the output of `status --json`.
#[derive(Serialize)]
struct HookState {
    agent: &'static str,
    scope: &'static str,
    state: &'static str,
    file: PathBuf,
}

pub fn run(args: &Args, way: InstallAction, context: &mut Context) -> Outcome {
    let scope = scope(args.user, context)?;
    let planned = match way {
        InstallAction::Install => to_install(args.agent, &scope)?,
        InstallAction::Uninstall => to_uninstall(args.agent, &scope)?,
    };
    if !context.out.json {
        for one in &planned {
            show(one, &mut context.out)?;
        }
        context.out.flush()?;
    }
    let mut done = InstallReport {
        agent: args.agent.name(),
        files: Vec::new(),
        dry_run: args.dry_run,
    };
    for one in planned {
        done.files.push(one.carry_out(args.dry_run, scope.root())?);
    }
    if context.out.json {
        return Ok(context.out.json(&done)?);
    }
    tell(&done, way, &context.out);
    if way == InstallAction::Install && !args.dry_run {
        advise(args.agent, &scope, &context.out)?;
    }
    Ok(())
}

/// Prints a summary.
fn tell(done: &InstallReport, way: InstallAction, out: &Out) {
    let changed = done.files.iter().filter(|file| file.change != "none");
    let changed: Vec<String> = changed
        .map(|file| file.path.display().to_string())
        .collect();
    let what = match (changed.is_empty(), way, done.dry_run) {
        (true, InstallAction::Install, _) => "is already installed; nothing was changed".to_owned(),
        (true, InstallAction::Uninstall, _) => {
            "has no hooks of ckptfs here; nothing was changed".to_owned()
        }
        (false, _, true) => format!("would change {}", changed.join(", ")),
        (false, _, false) => format!("changed {}", changed.join(", ")),
    };
    out.talk(&format!("{}: {what}", done.agent));
    for backup in done.files.iter().filter_map(|file| file.backup.as_ref()) {
        out.talk(&format!("its previous content is in {}", backup.display()));
    }
}

/// Prints the remaining steps after an installation.
fn advise(agent: Agent, scope: &Scope, out: &Out) -> Outcome {
    if agent == Agent::Codex {
        out.talk("Codex asks once whether you trust these hooks: /hooks");
    }
    if let Scope::Project(dir) = scope
        && !matches!(
            locate::at_once(dir)?,
            TreeLocation::Served(_) | TreeLocation::Foreign { .. }
        )
    {
        let dir = dir.display();
        out.talk(&format!(
            "{dir} is not mounted, and the hooks do nothing until it is: ckptfs mount {}",
            word(&dir)
        ));
    }
    Ok(())
}

pub fn status(args: &StatusArgs, context: &mut Context) -> Outcome {
    let mut states = Vec::new();
    let (project, user) = (scope(false, context)?, scope(true, context).ok());
    let agents = ALL
        .into_iter()
        .filter(|agent| args.agent.is_none_or(|asked| asked == *agent));
    for agent in agents {
        states.push(state(agent, &project, "project"));
        states.extend(user.as_ref().map(|user| state(agent, user, "user")));
    }
    context.out.answer(&states, |out| {
        for one in &states {
            let line = format!(
                "{:<11}  {:<7}  {:<13}  {}",
                one.agent,
                one.scope,
                one.state,
                one.file.display()
            );
            out.text_line(&line)?;
        }
        Ok(())
    })
}

/// Returns the agents that have the hooks, in the working directory, in the mounted directory, or
/// for this user.
pub fn installed(context: &Context, mount: &Path) -> Vec<&'static str> {
    let mounted = Ok(Scope::Project(mount.to_owned()));
    let scopes = [scope(false, context), mounted, scope(true, context)];
    let has = |agent: &Agent| {
        let mut scopes = scopes.iter().flatten();
        scopes.any(|scope| state(*agent, scope, "").state != "not installed")
    };
    ALL.into_iter().filter(has).map(Agent::name).collect()
}

fn state(agent: Agent, scope: &Scope, name: &'static str) -> HookState {
    let command = command(agent);
    let settings = agent.settings(scope, &command, None);
    let own = agent.own_files(scope, &command);
    let (file, has, any) = match (settings.first(), own.last()) {
        (Some(known), _) => {
            let text = text_at(&known.path, scope).unwrap_or_default();
            let (has, any) = (settings::has(&text, known), settings::has_any(&text, known));
            (known.path.clone(), has, any)
        }
        (None, Some(plugin)) => {
            let text = text_at(&plugin.path, scope);
            let has = text.as_ref() == Some(&plugin.content);
            (plugin.path.clone(), has, text.is_some())
        }
        (None, None) => (scope.root().to_owned(), false, false),
    };
    let state = match (has, any) {
        (true, _) => "installed",
        (false, true) => "outdated",
        (false, false) => "not installed",
    };
    HookState {
        agent: agent.name(),
        scope: name,
        state,
        file,
    }
}

/// Reads a file, if possible.
fn text_at(path: &Path, scope: &Scope) -> Option<String> {
    files::look(path, scope).ok()?.text
}

/// Returns the scope.
fn scope(user: bool, context: &Context) -> VerbResult<Scope> {
    if !user {
        return Ok(Scope::Project(locate::start(context.dir())?));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    home.filter(|home| home.is_absolute())
        .map(Scope::User)
        .ok_or_else(|| {
            error(
                Code::NotFound,
                "HOME is not set, so your settings cannot be found",
            )
        })
}

fn to_install(agent: Agent, scope: &Scope) -> VerbResult<Vec<PlannedEdit>> {
    let command = command(agent);
    let mut planned = Vec::new();
    let mcp = super::super::has_verb("mcp").then(mcp);
    for wanted in agent.settings(scope, &command, mcp) {
        let place = files::look(&wanted.path, scope)?;
        let text = Some(settings::with(place.text.as_deref(), &wanted)?);
        planned.push(PlannedEdit {
            path: wanted.path,
            place,
            text,
        });
    }
    for own in agent.own_files(scope, &command) {
        planned.push(PlannedEdit {
            place: files::look(&own.path, scope)?,
            path: own.path,
            text: Some(own.content),
        });
    }
    Ok(planned)
}

fn to_uninstall(agent: Agent, scope: &Scope) -> VerbResult<Vec<PlannedEdit>> {
    let command = command(agent);
    let mut planned = Vec::new();
    for known in agent.settings(scope, &command, Some(mcp())) {
        let place = files::look(&known.path, scope)?;
        let Some(text) = &place.text else {
            continue;
        };
        let text = settings::without(text, &known)?;
        planned.push(PlannedEdit {
            path: known.path,
            place,
            text,
        });
    }
    for own in agent.own_files(scope, &command) {
        let place = files::look(&own.path, scope)?;
        if place.text.is_some() {
            planned.push(PlannedEdit {
                place,
                path: own.path,
                text: None,
            });
        }
    }
    Ok(planned)
}

/// Returns the entry of the MCP server, for agents that support one.
fn mcp() -> Value {
    json!({ "command": "ckptfs", "args": ["mcp"] })
}

/// Returns the command for the hooks of an agent: by name if that leads to this very program, so
/// that settings can be shared; else by path.
fn command(agent: Agent) -> String {
    let own = std::env::current_exe().and_then(|own| own.canonicalize());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join("ckptfs"))
        .find_map(|program| program.canonicalize().ok());
    let program = match own {
        Ok(own) if found.as_ref() != Some(&own) => word(own.display()).to_string(),
        _ => "ckptfs".to_owned(),
    };
    format!("{program} agent hook --agent {}", agent.name())
}

/// Prints the difference.
fn show(one: &PlannedEdit, out: &mut Out) -> Outcome {
    let before = one.place.text.as_deref().unwrap_or_default();
    let after = one.text.as_deref().unwrap_or_default();
    let shown = one.path.display().to_string();
    let nothing = "/dev/null".to_owned();
    let header = (
        one.place.text.as_ref().map_or(&nothing, |_| &shown),
        one.text.as_ref().map_or(&nothing, |_| &shown),
    );
    let diff = TextDiff::from_lines(before, after);
    let diff = diff.unified_diff().header(header.0, header.1).to_string();
    for line in diff.lines() {
        out.text_line(line)?;
    }
    Ok(())
}

impl PlannedEdit {
    fn carry_out(self, dry_run: bool, root: &Path) -> VerbResult<DoneFile> {
        let change = match (&self.place.text, &self.text) {
            (before, after) if before == after => "none",
            (None, _) => "made",
            (_, None) => "removed",
            _ => "changed",
        };
        let backup = match &self.text {
            _ if dry_run || change == "none" => None,
            Some(text) => self.place.replace(text, true)?,
            None => {
                self.place.remove(root)?;
                None
            }
        };
        Ok(DoneFile {
            path: self.path,
            change,
            backup,
        })
    }
}
