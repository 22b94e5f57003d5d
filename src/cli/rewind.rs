//! `ckptfs rewind`: back to the state before a prompt of a coding agent.

use std::collections::BTreeSet;
use std::io;

use serde::Serialize;

use super::agent::labels::{self, Prompt};
use super::agent::{self, process};
use super::restore;
use ckptfs_api::display::word;
use ckptfs_api::{
    Code, ListCheckpoints, OnlyBy, REWIND_PROCESS, RestoreOptions, Restored, RestoredOnly,
    StateName, VerbError, VerbResult,
};
use ckptfs_sys as sys;
use ckptfs_ui::changes;
use ckptfs_ui::changes_by_process;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome, hinted};
use ckptfs_ui::interrupt::Interrupt;
use ckptfs_ui::locate::{self, ServedTree};
use ckptfs_ui::output::{Out, Role, can_ask, width};
use ckptfs_ui::time;

/// Limit of the listed prompts.
const LISTED_MAX: usize = 50;
/// Characters of a session's name in a list.
const SESSION_CHARS: usize = 8;
const USAGE_STATUS: u8 = 2;

/// Take back what a coding agent did since a prompt
///
/// Only the changes of the agent's own processes are reverted; concurrent changes of others stay.
/// It is one operation, which `ckptfs undo` reverts. Without arguments the prompts are listed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rewind to before this prompt: its number in the list, a prefix of its id, or -1 for the
    /// session's last, -2 for the one before
    #[arg(value_name = "PROMPT", allow_negative_numbers = true)]
    prompt: Option<String>,
    /// The session; without PROMPT all its changes are reverted
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    /// The changes to revert: those of the session, or all of the tree
    #[arg(
        long,
        value_enum,
        value_name = "WHOSE",
        default_value_t = CodeOf::Session,
        hide_default_value = true
    )]
    code_of: CodeOf,
    /// Only list the changes
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    listed: changes::ListAllArg,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

/// `--code-of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum CodeOf {
    /// Changes of the session's processes
    Session,
    /// All changes, of any process
    All,
}

/// Output of `--json`.
#[derive(Serialize)]
struct Rewound<'a> {
    prompt: &'a Prompt,
    #[serde(flatten)]
    done: &'a RestoredOnly,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    // By this name, later searches do not attribute the changes of this process to another author.
    sys::name_process(REWIND_PROCESS);
    let mut served = locate::served(context.dir())?;
    let all = served.client.ask(ListCheckpoints)?;
    let prompts: Vec<Prompt> = all.iter().filter_map(labels::prompt).collect();
    if prompts.is_empty() {
        return Err(no_prompt(&agent::install::installed(context, &served.root)).into());
    }
    let prompt = chosen(&args, &prompts, context)?.clone();
    let who = match args.code_of {
        CodeOf::All => None,
        CodeOf::Session => Some(processes(&prompt, &prompts, &context.out)?),
    };
    let planned = ask(&mut served, &prompt, who.as_deref(), None)?;
    let nothing = planned.restored.changes.is_empty();
    if !context.out.json {
        changes_by_process::warn_shared(&context.out, &planned);
        args.listed
            .print(&mut context.out, &planned.restored.changes)?;
    }
    if args.dry_run || nothing {
        return tell(&prompt, &planned, context);
    }
    context.out.flush()?;
    let count = changes::count(planned.restored.changes.len() as u64);
    let question = format!("Rewind to before \"{}\" ({count})?", prompt.text);
    context.out.go_on(
        args.yes || context.out.json,
        &question,
        "nothing was changed",
    )?;
    let interrupt = Interrupt::gives_up(&served.client)?;
    let done = ask(
        &mut served,
        &prompt,
        who.as_deref(),
        Some((&interrupt, &context.out)),
    )?;
    restore::warn(&done.restored, &context.out);
    restore::warn_of_holders(&served.root, &done.restored, &context.out);
    tell(&prompt, &done, context)?;
    interrupt.end(&context.out)?;
    restore::told(&done.restored)
}

/// Returns the error for a tree without prompts; `installed`: agents with hooks.
fn no_prompt(installed: &[&str]) -> VerbError {
    match installed {
        [] => hinted(
            Code::UnknownCheckpoint,
            "no prompt of an agent is known here",
            "have an agent tell ckptfs of its prompts: ckptfs agent install claude-code",
        ),
        agents => hinted(
            Code::UnknownCheckpoint,
            format!("no prompt has come yet from {}", agents.join(" or ")),
            "the hooks are installed: each prompt from now on can be rewound to. An agent that was running before has to be restarted",
        ),
    }
}

/// Requests the rewind, or without `to_do` a dry run.
fn ask(
    served: &mut ServedTree,
    prompt: &Prompt,
    who: Option<&str>,
    to_do: Option<(&Interrupt, &Out)>,
) -> Result<RestoredOnly, Failure> {
    let to = StateName(prompt.checkpoint.to_string());
    let Some(who) = who else {
        let options = RestoreOptions {
            to,
            paths: Vec::new(),
            dry_run: to_do.is_none(),
            times: None,
        };
        let restored = match to_do {
            Some((interrupt, out)) => {
                interrupt.ask(&mut served.client, options, "rewinding", out)?
            }
            None => served.client.ask(options)?,
        };
        return Ok(only(restored));
    };
    let options = OnlyBy {
        to: Some(to),
        who: who.to_owned(),
        past_rewinds: true,
        of_user: prompt.of_user,
        dry_run: to_do.is_none(),
        ..OnlyBy::default()
    };
    match to_do {
        Some((interrupt, out)) => interrupt.ask(&mut served.client, options, "rewinding", out),
        None => match served.client.ask(options) {
            // The session has changed nothing.
            Err(why) if why.code == Code::UnknownProcess => Ok(only(Restored {
                restored: ckptfs_api::CheckpointId(prompt.checkpoint),
                guard: None,
                changes: Vec::new(),
                unknown: Vec::new(),
                dropped: Vec::new(),
                mounted: Vec::new(),
                split: Vec::new(),
                dry_run: true,
                duration_us: 0,
            })),
            planned => Ok(planned?),
        },
    }
}

fn only(restored: Restored) -> RestoredOnly {
    RestoredOnly {
        restored,
        shared: Vec::new(),
    }
}

/// Prints the result of the rewind, or of the dry run.
fn tell(prompt: &Prompt, done: &RestoredOnly, context: &mut Context) -> Outcome {
    let restored = &done.restored;
    let count = changes::count(restored.changes.len() as u64);
    context.out.answer(&Rewound { prompt, done }, |out| {
        let line = match restored.guard {
            Some(guard) => format!(
                "rewound to before \"{}\": {count}; the previous state is checkpoint {guard}; to take this back: ckptfs undo",
                prompt.text
            ),
            None if restored.changes.is_empty() => "nothing to take back".to_owned(),
            None => format!("rewinding to before \"{}\" would make {count}", prompt.text),
        };
        out.text_line(&line)
    })
}

/// Returns the prompt of the arguments.
fn chosen<'a>(
    args: &Args,
    prompts: &'a [Prompt],
    context: &mut Context,
) -> Result<&'a Prompt, Failure> {
    let session = match &args.session {
        Some(session) => Some(named_session(session, prompts)?),
        None => None,
    };
    let Some(text) = &args.prompt else {
        let Some(session) = session else {
            return listed(prompts, context);
        };
        // The newest is first.
        let mut of_session = prompts.iter();
        let first = of_session.rfind(|prompt| prompt.is_of_session_of(session));
        return first.ok_or_else(|| unknown(&session.session).into());
    };
    if let Some(back) = text.strip_prefix('-') {
        let session = match session {
            Some(session) => session,
            None => meant_session(prompts)?,
        };
        let back: usize = back.parse().unwrap_or(0);
        let mut of_session = prompts
            .iter()
            .filter(|prompt| prompt.is_of_session_of(session));
        let found = back.checked_sub(1).and_then(|back| of_session.nth(back));
        return found.ok_or_else(|| unknown(text).into());
    }
    let of_session = |prompt: &&Prompt| session.is_none_or(|of| prompt.is_of_session_of(of));
    let by_number = |prompt: &&Prompt| text.parse() == Ok(prompt.checkpoint);
    let by_id = |prompt: &&Prompt| !text.is_empty() && prompt.prompt.starts_with(text.as_str());
    let those = prompts.iter().filter(of_session);
    let own = those.clone().filter(is_own).find(by_id);
    let found = those.clone().find(by_number).or(own);
    found
        .or_else(|| those.clone().find(by_id))
        .ok_or_else(|| unknown(text).into())
}

fn unknown(text: &str) -> VerbError {
    hinted(
        Code::UnknownCheckpoint,
        format!("there is no prompt {text:?}"),
        "to list them: ckptfs rewind",
    )
}

/// Reports whether a prompt is not from another user, who can choose any name.
fn is_own(prompt: &&Prompt) -> bool {
    prompt.of_user.is_none()
}

/// Returns a prompt of the session with this name, or of the only one with this prefix. Sessions of
/// other users count only if no other session matches.
fn named_session<'a>(name: &str, prompts: &'a [Prompt]) -> VerbResult<&'a Prompt> {
    let known = sessions(prompts);
    for own in [true, false] {
        let of_these = || known.iter().copied().filter(|known| is_own(known) == own);
        let begins = || of_these().filter(|known| known.session.starts_with(name));
        let whole = || of_these().filter(|known| known.session == name);
        let found = match (whole().count(), begins().count()) {
            (1, _) => whole().next(),
            (0, 1) => begins().next(),
            (0, 0) => continue,
            _ => None,
        };
        if let Some(found) = found {
            return Ok(found);
        }
        break;
    }
    Err(hinted(
        Code::UnknownCheckpoint,
        format!("no session {name:?} is known, or several sessions begin with it"),
        format!("sessions: {}", told(&known)),
    ))
}

/// Returns the newest prompt of each session, the newest first.
fn sessions(prompts: &[Prompt]) -> Vec<&Prompt> {
    let mut known: Vec<&Prompt> = Vec::new();
    for prompt in prompts {
        if !known.iter().any(|one| one.is_of_session_of(prompt)) {
            known.push(prompt);
        }
    }
    known
}

/// Formats a list of sessions.
fn told(sessions: &[&Prompt]) -> String {
    let all: Vec<String> = sessions.iter().map(|one| one.session_told()).collect();
    all.join(", ")
}

/// Returns a prompt of the default session: the one that runs this command, or the only one.
/// Sessions of other users count only if no other session exists.
fn meant_session(prompts: &[Prompt]) -> VerbResult<&Prompt> {
    let ancestors = process::ancestors();
    let calls = |prompt: &&Prompt| {
        let process = prompt.process.as_ref();
        process.is_some_and(|process| ancestors.contains(process))
    };
    if let Some(own) = prompts.iter().filter(is_own).find(calls) {
        return Ok(own);
    }
    let mut known = sessions(prompts);
    if known.iter().any(is_own) {
        known.retain(is_own);
    }
    match known.as_slice() {
        [only] => Ok(only),
        [first, ..] => Err(hinted(
            Code::Usage,
            format!("there are {} sessions: {}", known.len(), told(&known)),
            format!(
                "choose one: ckptfs rewind -1 --session {}",
                word(&first.session)
            ),
        )),
        [] => Err(unknown("-1")),
    }
}

/// Lists the prompts, and asks the user to choose one.
fn listed<'a>(prompts: &'a [Prompt], context: &mut Context) -> Result<&'a Prompt, Failure> {
    let shown: Vec<&Prompt> = prompts.iter().take(LISTED_MAX).collect();
    context.out.answer(&shown, |out| print(out, &shown))?;
    context.out.flush()?;
    if prompts.len() > shown.len() {
        let more = prompts.len() - shown.len();
        context.out.talk(&format!("and {more} older ones"));
    }
    if context.out.json || !can_ask() {
        context.out.talk("choose one: `ckptfs rewind NUMBER`, with a number from the first column, or `ckptfs rewind -1` for the session's last prompt");
        return Err(Failure::Status(USAGE_STATUS));
    }
    let answer = asked("Rewind to before which one (number; Enter for none)?")?;
    if answer.is_empty() {
        context.out.talk("nothing was changed");
        return Err(Failure::No);
    }
    let found = prompts
        .iter()
        .find(|prompt| answer.parse() == Ok(prompt.checkpoint));
    found.ok_or_else(|| unknown(&answer).into())
}

fn asked(question: &str) -> io::Result<String> {
    use io::Write;
    write!(io::stderr(), "{question} ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

fn print(out: &mut Out, prompts: &[&Prompt]) -> io::Result<()> {
    let ids = width(prompts, |prompt| prompt.checkpoint.to_string());
    for prompt in prompts {
        let id = out.paint(Role::Id, &format!("{:>ids$}", prompt.checkpoint));
        let session: String = prompt.session.chars().take(SESSION_CHARS).collect();
        let agent = prompt.agent.as_deref().unwrap_or("agent");
        let user = prompt.of_user.map(|user| format!(" of user {user}"));
        let whose = format!("{agent} {session}{}", user.unwrap_or_default());
        let whose = out.text(&whose).into_owned();
        let text = out.text(&prompt.text).into_owned();
        let line = format!(
            "{id}  {}  {}  {text}",
            time::local(&prompt.created),
            out.paint(Role::Faint, &whose)
        );
        out.line(&line)?;
    }
    Ok(())
}

/// Returns the processes of the session since the prompt.
fn processes(prompt: &Prompt, prompts: &[Prompt], out: &Out) -> VerbResult<String> {
    let since = || {
        prompts
            .iter()
            .filter(|one| one.checkpoint >= prompt.checkpoint)
    };
    let own: BTreeSet<&str> = since()
        .filter(|one| one.is_of_session_of(prompt))
        .filter_map(|one| one.process.as_deref())
        .collect();
    if own.is_empty() {
        return Err(hinted(
            Code::UnknownProcess,
            format!("the process of session {:?} is not known", prompt.session),
            format!(
                "to restore the whole tree: ckptfs rewind --code-of all {}",
                word(prompt.checkpoint)
            ),
        ));
    }
    // Includes sessions whose last prompt is older: their later changes are also reverted.
    let others: BTreeSet<&str> = prompts
        .iter()
        .filter(|one| one.of_user == prompt.of_user && one.session != prompt.session)
        .filter(|one| one.process.as_deref().is_some_and(|one| own.contains(one)))
        .map(|one| one.session.as_str())
        .collect();
    if !others.is_empty() {
        let others: Vec<&str> = others.into_iter().collect();
        out.warn(&format!(
            "session {} ran in the same process: what it changed since is taken back too",
            others.join(", ")
        ));
    }
    let own: Vec<&str> = own.into_iter().collect();
    Ok(own.join(","))
}
