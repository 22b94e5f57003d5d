//! Key bindings, those of lazygit where it has the same functions.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{App, FilePane, InputAction, ListState, Pane, Popup};
use super::cli_command::CliCommand;
use ckptfs_api::{TreePath, VerbResult};
use ckptfs_sys::Kind;

/// Number of lines per page.
const PAGE_LINES: isize = 20;

/// The help of `?`.
pub const KEYS: &[(&str, &str)] = &[
    (
        "j k, arrows",
        "down and up; g and G: the first and the last; Ctrl-d and Ctrl-u: a page",
    ),
    (
        "Tab, h l",
        "the next pane; 1 2 3: checkpoints, files, what is in them",
    ),
    (
        "Enter",
        "go into: what a checkpoint changed, a directory, a file",
    ),
    ("Esc", "back"),
    ("t", "all files of the checkpoint, or what it changed"),
    (
        "d",
        "compare with the tree as it is now, or with the checkpoint before",
    ),
    ("v", "versions of the selected file; Esc: all checkpoints"),
    (
        "r",
        "restore the selected file, or among checkpoints the whole tree; asks first",
    ),
    ("b", "make a branch that begins as the selected checkpoint"),
    ("c", "make a checkpoint"),
    ("T", "tag the selected checkpoint"),
    ("z Z", "undo, redo; asks first"),
    ("q", "quit"),
];

/// Handles a key.
///
/// # Errors
/// Those of the requested action.
pub fn press(app: &mut App, key: KeyEvent) -> VerbResult<()> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    if control && key.code == KeyCode::Char('c') {
        app.quits = true;
        return Ok(());
    }
    if let Some(popup) = app.popup.take() {
        return answer(app, popup, key.code);
    }
    match key.code {
        KeyCode::Char('q') => app.quits = true,
        KeyCode::Char('?') => app.popup = Some(Popup::Keys),
        KeyCode::Char('d') if control => step(app, PAGE_LINES),
        KeyCode::Char('u') if control => step(app, -PAGE_LINES),
        KeyCode::PageDown => step(app, PAGE_LINES),
        KeyCode::PageUp => step(app, -PAGE_LINES),
        KeyCode::Char('j') | KeyCode::Down => step(app, 1),
        KeyCode::Char('k') | KeyCode::Up => step(app, -1),
        KeyCode::Char('g') | KeyCode::Home => step(app, isize::MIN),
        KeyCode::Char('G') | KeyCode::End => step(app, isize::MAX),
        KeyCode::Tab | KeyCode::Char('l') | KeyCode::Right => turn(app, 1),
        KeyCode::BackTab | KeyCode::Char('h') | KeyCode::Left => turn(app, -1),
        KeyCode::Char('1') => to_pane(app, Pane::Checkpoints),
        KeyCode::Char('2') => to_pane(app, Pane::Files),
        KeyCode::Char('3') => to_pane(app, Pane::Main),
        KeyCode::Enter => return enter(app),
        KeyCode::Esc | KeyCode::Backspace => return back(app),
        KeyCode::Char('t') => toggle_tree(app),
        KeyCode::Char('d') => {
            app.to_live = !app.to_live;
            app.state_changed();
        }
        KeyCode::Char('v') => return versions(app),
        key => return act(app, key),
    }
    Ok(())
}

/// Handles the keys of modifying commands, which require a confirmation or an input.
fn act(app: &mut App, key: KeyCode) -> VerbResult<()> {
    let id = app.state().map(|state| state.id);
    let word = |what, then| Popup::Word {
        what,
        typed: String::new(),
        then,
    };
    match (key, id) {
        // Without a selected file, do not restore the whole tree.
        (KeyCode::Char('r'), Some(_)) if app.pane != Pane::Checkpoints && app.path().is_none() => {
            app.said = "select a file".to_owned();
        }
        (KeyCode::Char('r'), Some(id)) => {
            let deed = CliCommand::new(["restore", &id.to_string()]).with_path(app.path().as_ref());
            return confirm(app, deed);
        }
        (KeyCode::Char('r' | 'T'), None) => app.said = "select a checkpoint".to_owned(),
        (KeyCode::Char('z'), _) => return confirm(app, CliCommand::new(["undo"])),
        (KeyCode::Char('Z'), _) => return confirm(app, CliCommand::new(["redo"])),
        (KeyCode::Char('b'), id) => {
            app.popup = Some(word("name of the branch", InputAction::Branch(id)))
        }
        (KeyCode::Char('T'), Some(id)) => app.popup = Some(word("tag", InputAction::Tag(id))),
        (KeyCode::Char('c'), _) => {
            app.popup = Some(word("note (may be empty)", InputAction::Checkpoint))
        }
        _ => {}
    }
    Ok(())
}

fn step(app: &mut App, by: isize) {
    match app.pane {
        Pane::Checkpoints => {
            app.row.step(by, app.rows.len());
            app.state_changed();
        }
        Pane::Files => {
            app.file.step(by, app.files_len());
            app.file_changed();
        }
        Pane::Main => {
            let last = app.main.len().saturating_sub(1);
            app.scroll = app.scroll.saturating_add_signed(by).min(last);
        }
    }
}

fn turn(app: &mut App, by: isize) {
    let panes = [Pane::Checkpoints, Pane::Files, Pane::Main];
    let at = panes.iter().position(|pane| *pane == app.pane).unwrap_or(0);
    let next = (at as isize + by).rem_euclid(panes.len() as isize);
    to_pane(
        app,
        panes
            .get(next.unsigned_abs())
            .copied()
            .unwrap_or(Pane::Main),
    );
}

fn to_pane(app: &mut App, pane: Pane) {
    app.pane = pane;
    if pane != Pane::Main {
        app.file_changed();
    }
}

fn enter(app: &mut App) -> VerbResult<()> {
    match (app.pane, &app.files, app.path()) {
        (Pane::Checkpoints, ..) => to_pane(app, Pane::Files),
        (Pane::Files, FilePane::Tree { .. }, Some(path)) if app.file_kind() == Some(Kind::Dir) => {
            app.file = ListState::default();
            app.file_changed();
            return app.open(path);
        }
        (Pane::Files, ..) => to_pane(app, Pane::Main),
        (Pane::Main, ..) => {}
    }
    Ok(())
}

fn back(app: &mut App) -> VerbResult<()> {
    match (app.pane, &app.files) {
        (Pane::Main, _) => to_pane(app, Pane::Files),
        (Pane::Files, FilePane::Tree { dir, .. }) if !dir.0.is_empty() => {
            let above = dir.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            let above = TreePath(dir.0.get(..above).unwrap_or_default().to_vec());
            app.file = ListState::default();
            app.file_changed();
            return app.open(above);
        }
        (Pane::Files, _) => to_pane(app, Pane::Checkpoints),
        (Pane::Checkpoints, _) if app.versions_of.is_some() => {
            app.versions_of = None;
            return app.load();
        }
        (Pane::Checkpoints, _) => {}
    }
    Ok(())
}

fn toggle_tree(app: &mut App) {
    app.files = match app.files {
        FilePane::Changes(_) => FilePane::Tree {
            dir: TreePath(Vec::new()),
            entries: Vec::new(),
        },
        FilePane::Tree { .. } => FilePane::Changes(Vec::new()),
    };
    app.state_changed();
}

fn versions(app: &mut App) -> VerbResult<()> {
    let Some(path) = app.path() else {
        app.said = "select a file".to_owned();
        return Ok(());
    };
    app.versions_of = Some(path);
    app.files = FilePane::Changes(Vec::new());
    app.pane = Pane::Checkpoints;
    app.load()
}

/// Displays the dry run of a command and asks for a confirmation.
fn confirm(app: &mut App, deed: CliCommand) -> VerbResult<()> {
    let (can, would) = deed.dry().run(&app.program, app.history.root())?;
    app.popup = Some(if can {
        Popup::Confirm { deed, would }
    } else {
        Popup::Told(would)
    });
    Ok(())
}

/// Runs a command and displays its output.
fn carry_out(app: &mut App, deed: &CliCommand) -> VerbResult<()> {
    let (done, mut told) = deed.run(&app.program, app.history.root())?;
    match told.pop() {
        None => app.said = deed.shown(),
        Some(only) if done && told.is_empty() => app.said = only,
        Some(last) => {
            told.push(last);
            app.popup = Some(Popup::Told(told));
        }
    }
    app.load()
}

fn answer(app: &mut App, popup: Popup, key: KeyCode) -> VerbResult<()> {
    match (popup, key) {
        (Popup::Keys | Popup::Told(_), _) | (_, KeyCode::Esc) => {}
        (Popup::Confirm { deed, .. }, KeyCode::Char('y') | KeyCode::Enter) => {
            return carry_out(app, &deed);
        }
        (Popup::Confirm { .. }, KeyCode::Char('n' | 'q')) => {}
        (Popup::Word { typed, then, .. }, KeyCode::Enter) => return with_word(app, &typed, &then),
        (
            Popup::Word {
                what,
                mut typed,
                then,
            },
            key,
        ) => {
            match key {
                KeyCode::Char(char) => typed.push(char),
                KeyCode::Backspace => drop(typed.pop()),
                _ => {}
            }
            app.popup = Some(Popup::Word { what, typed, then });
        }
        (popup, _) => app.popup = Some(popup),
    }
    Ok(())
}

fn with_word(app: &mut App, typed: &str, then: &InputAction) -> VerbResult<()> {
    let deed = match then {
        InputAction::Branch(Some(id)) => {
            CliCommand::new(["branch", "create", "--at", &id.to_string(), "--", typed])
        }
        InputAction::Branch(None) => CliCommand::new(["branch", "create", "--", typed]),
        InputAction::Tag(id) => CliCommand::new(["tag", "--", &id.to_string(), typed]),
        InputAction::Checkpoint if typed.is_empty() => CliCommand::new(["checkpoint"]),
        InputAction::Checkpoint => CliCommand::new(["checkpoint", &format!("--message={typed}")]),
    };
    carry_out(app, &deed)
}
