//! Lists of checkpoints, one line each, and lists that fit the height of the terminal.

use crate::error::Outcome;
use crate::graph::Graph;
use crate::output::{Out, Role};
use crate::{changes, time};
use ckptfs_api::{CheckpointInfo, Reason};

/// The number of lines that are shown on any terminal, however small.
const SHOWN_MIN: usize = 8;

/// Returns the part of a list that fits on the terminal with `other` lines, and a line with the
/// number of remaining items and the option that shows them. Without an option or a terminal,
/// returns all.
pub fn fitting<'a, T>(
    out: &Out,
    all: &'a [T],
    other: usize,
    option: Option<&str>,
) -> (&'a [T], Option<String>) {
    let Some((rows, option)) = out.rows().zip(option) else {
        return (all, None);
    };
    // Includes the returned line, and that of the shell's prompt.
    let room = rows.saturating_sub(other + 2).max(SHOWN_MIN);
    // The line takes as much room as a single remaining item.
    match all.split_at_checked(room) {
        Some((shown, rest)) if rest.len() > 1 => {
            let more = format!("... and {} more ({option} shows them)", rest.len());
            (shown, Some(out.paint(Role::Faint, &more)))
        }
        _ => (all, None),
    }
}

/// Prints one line for each checkpoint.
pub fn print_checkpoints(checkpoints: &[CheckpointInfo], out: &mut Out) -> Outcome {
    Printer::default().print(checkpoints, out)
}

/// Prints one line for each checkpoint, in columns as wide as the widest value so far.
#[derive(Default)]
pub struct Printer {
    graph: Option<Graph>,
    id_width: usize,
    count_width: usize,
}

impl Printer {
    /// Returns a printer that draws a graph of the checkpoints before the lines.
    pub fn new(graph: Option<Graph>) -> Printer {
        Printer {
            graph,
            ..Printer::default()
        }
    }

    /// Prints checkpoints, a line each.
    pub fn print(&mut self, checkpoints: &[CheckpointInfo], out: &mut Out) -> Outcome {
        for checkpoint in checkpoints {
            self.id_width = self.id_width.max(checkpoint.id.to_string().len());
            self.count_width = self.count_width.max(count(checkpoint).len());
        }
        for checkpoint in checkpoints {
            let mut line = line(out, checkpoint, self.id_width, self.count_width);
            if let Some(graph) = &mut self.graph {
                let (above, before) = graph.next(checkpoint.id, checkpoint.parent);
                for joins in above {
                    out.line(&joins)?;
                }
                line.insert_str(0, &before);
            }
            out.line(&line)?;
        }
        Ok(())
    }
}

/// Formats the number of changes as in `diff`, or as counted by the operations if a comparison
/// would take long.
fn count(checkpoint: &CheckpointInfo) -> String {
    match checkpoint.changes {
        Some(exact) => changes::count(exact),
        None => changes::count(checkpoint.dirty),
    }
}

fn line(out: &Out, checkpoint: &CheckpointInfo, id_width: usize, count_width: usize) -> String {
    let id = out.paint(
        Role::Id,
        &format!("{:>id_width$}", checkpoint.id.to_string()),
    );
    let created = time::local(&checkpoint.created);
    format!(
        "{id}  {created}  {:>count_width$}{}",
        count(checkpoint),
        remarks(out, checkpoint)
    )
}

/// Formats the tags, the restore that it guards, and the first line of the note.
pub fn remarks(out: &Out, checkpoint: &CheckpointInfo) -> String {
    let mut line = String::new();
    if !checkpoint.tags.is_empty() {
        let tags = checkpoint.tags.join(", ");
        line.push_str(&format!(
            "  {}",
            out.paint(Role::Tag, &format!("[{}]", out.text(&tags)))
        ));
    }
    if let Reason::Guard { restored } = checkpoint.reason {
        let what = if restored == checkpoint.id {
            "  (before a merge)".to_owned()
        } else {
            format!("  (before the restore of {restored})")
        };
        line.push_str(&out.paint(Role::Faint, &what));
    }
    if let Reason::Auto { trigger } = checkpoint.reason {
        line.push_str(&out.paint(Role::Faint, &format!("  (auto:{})", trigger.name())));
    }
    match checkpoint.pinned.as_deref() {
        Some("") => line.push_str(&out.paint(Role::Notice, "  (pinned)")),
        Some(reason) => line.push_str(&out.paint(
            Role::Notice,
            &format!(
                "  (pinned: {})",
                out.text(reason.lines().next().unwrap_or_default())
            ),
        )),
        None => {}
    }
    if checkpoint.has_dropped {
        line.push_str(&out.paint(Role::Faint, "  (some dropped)"));
    }
    if !checkpoint.atomic {
        line.push_str(&out.paint(Role::Bad, "  (not atomic)"));
    }
    if let Some(first) = checkpoint.note.lines().next() {
        line.push_str(&format!("  {}", out.text(first)));
    }
    line
}
