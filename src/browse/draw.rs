//! Rendering.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::app::{App, FilePane, ListState, Pane, Popup};
use super::keys::KEYS;
use ckptfs_api::ChangeKind;
use ckptfs_ui::output::escape;

/// Draws the whole screen.
pub fn draw(app: &mut App, frame: &mut Frame<'_>) {
    let [body, foot] =
        Layout::vertical([Constraint::Min(3), Constraint::Length(1)]).areas(frame.area());
    let [left, main] =
        Layout::horizontal([Constraint::Percentage(45), Constraint::Min(20)]).areas(body);
    let [rows, files] =
        Layout::vertical([Constraint::Percentage(55), Constraint::Min(3)]).areas(left);
    draw_rows(app, frame, rows);
    draw_files(app, frame, files);
    draw_main(app, frame, main);
    let hint = format!(
        "{}   Enter: in  Esc: back  t: tree  d: compare  v: versions  r: restore  z: undo  ?: keys  q: quit",
        app.said
    );
    frame.render_widget(Line::styled(hint, dim()), foot);
    if let Some(popup) = &app.popup {
        draw_popup(popup, frame, body);
    }
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// Returns the frame of a pane; the one with the focus is highlighted.
fn pane(title: String, focus: bool) -> Block<'static> {
    let style = if focus {
        Style::new().fg(Color::Green).add_modifier(Modifier::BOLD)
    } else {
        dim()
    };
    Block::bordered().title(title).border_style(style)
}

/// Returns the visible lines of a list, scrolled to include the selected one.
fn window<'l>(
    list: &mut ListState,
    lines: Vec<Line<'l>>,
    height: usize,
    focus: bool,
) -> Vec<Line<'l>> {
    list.top = list
        .top
        .min(list.selected)
        .max((list.selected + 1).saturating_sub(height));
    let selected = list.selected.saturating_sub(list.top);
    let mut shown: Vec<Line<'_>> = lines.into_iter().skip(list.top).take(height).collect();
    if let Some(line) = shown.get_mut(selected) {
        let how = if focus {
            Modifier::REVERSED
        } else {
            Modifier::UNDERLINED
        };
        line.style = line.style.add_modifier(how);
    }
    shown
}

fn inner_height(area: Rect) -> usize {
    usize::from(area.height.saturating_sub(2))
}

fn draw_rows(app: &mut App, frame: &mut Frame<'_>, area: Rect) {
    let title = match &app.versions_of {
        Some(path) => format!("1 Versions of {}", escape(&path.0)),
        None => "1 Checkpoints".to_owned(),
    };
    let focus = app.pane == Pane::Checkpoints;
    let lines = app.row_lines().into_iter().map(Line::raw).collect();
    let lines = window(&mut app.row, lines, inner_height(area), focus);
    frame.render_widget(Paragraph::new(lines).block(pane(title, focus)), area);
}

fn draw_files(app: &mut App, frame: &mut Frame<'_>, area: Rect) {
    let title = match &app.files {
        FilePane::Changes(changes) => {
            let what = if app.to_live {
                "to the tree as it is now"
            } else {
                "since the checkpoint before"
            };
            format!(
                "2 {} {what}",
                ckptfs_ui::changes::count(changes.len() as u64)
            )
        }
        FilePane::Tree { dir, .. } => format!("2 /{}", escape(&dir.0)),
    };
    let focus = app.pane == Pane::Files;
    let line = |(text, change): (String, Option<ChangeKind>)| {
        let color = match change {
            Some(ChangeKind::Added) => Style::new().fg(Color::Green),
            Some(ChangeKind::Deleted | ChangeKind::Unknown) => Style::new().fg(Color::Red),
            Some(_) => Style::new().fg(Color::Blue),
            None => Style::new(),
        };
        Line::styled(text, color)
    };
    let lines = app.file_lines().into_iter().map(line).collect();
    let lines = window(&mut app.file, lines, inner_height(area), focus);
    frame.render_widget(Paragraph::new(lines).block(pane(title, focus)), area);
}

fn draw_main(app: &App, frame: &mut Frame<'_>, area: Rect) {
    let is_patch = matches!(app.files, FilePane::Changes(_));
    let style = |line: &str| match line.as_bytes().first() {
        Some(b'+') if is_patch => Style::new().fg(Color::Green),
        Some(b'-') if is_patch => Style::new().fg(Color::Red),
        Some(b'@') if is_patch => Style::new().fg(Color::Cyan),
        _ => Style::new(),
    };
    let lines: Vec<Line<'_>> = app
        .main
        .iter()
        .skip(app.scroll)
        .take(inner_height(area))
        .map(|line| Line::styled(line.as_str(), style(line)))
        .collect();
    let block = pane(format!("3 {}", app.main_title), app.pane == Pane::Main);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_popup(popup: &Popup, frame: &mut Frame<'_>, area: Rect) {
    let (title, lines): (String, Vec<Line<'_>>) = match popup {
        Popup::Keys => {
            let line = |(key, does): &(&'static str, &'static str)| {
                Line::from(vec![
                    Span::styled(format!("{key:<12} "), Style::new().fg(Color::Cyan)),
                    Span::raw(*does),
                ])
            };
            ("Keys".to_owned(), KEYS.iter().map(line).collect())
        }
        Popup::Told(told) => (
            "Any key".to_owned(),
            told.iter().map(|line| Line::raw(line.as_str())).collect(),
        ),
        Popup::Confirm { deed, would } => {
            let question = Line::styled(
                format!("{}   y: do it, n: do not", deed.shown()),
                Style::new().fg(Color::Yellow),
            );
            let would = would.iter().rev().map(|line| Line::raw(line.as_str()));
            (
                "Would do".to_owned(),
                std::iter::once(question).chain(would).collect(),
            )
        }
        Popup::Word { what, typed, .. } => (
            (*what).to_owned(),
            vec![Line::raw(format!("{}_", escape(typed.as_bytes())))],
        ),
    };
    let height = u16::try_from(lines.len() + 2)
        .unwrap_or(u16::MAX)
        .min(area.height);
    let [_, middle, _] = Layout::vertical([
        Constraint::Fill(1),
        Constraint::Length(height),
        Constraint::Fill(1),
    ])
    .areas(area);
    let [_, middle, _] = Layout::horizontal([
        Constraint::Fill(1),
        Constraint::Percentage(80),
        Constraint::Fill(1),
    ])
    .areas(middle);
    frame.render_widget(Clear, middle);
    frame.render_widget(Paragraph::new(lines).block(pane(title, true)), middle);
}
