//! Lists: of checkpoints, a line for each, and as long as the terminal is high.

use super::error::Outcome;
use super::graph::Graph;
use super::output::{Out, Role};
use super::{changes, time};
use crate::engine::api::CheckpointInfo;
use crate::store::record::Reason;

/// So many lines of a list are shown on however small a terminal.
const SHOWN_MIN: usize = 8;

/// What of a list fits on the terminal beside `other` lines, and the line that tells how many more
/// there are and which option shows them. All of it where there is no option, or no terminal.
pub fn fitting<'a, T>(
    out: &Out,
    all: &'a [T],
    other: usize,
    option: Option<&str>,
) -> (&'a [T], Option<String>) {
    let Some((rows, option)) = out.rows().zip(option) else {
        return (all, None);
    };
    // With the line that is given, and that of the shell's prompt.
    let room = rows.saturating_sub(other + 2).max(SHOWN_MIN);
    // The line takes as much room as the only one that it would tell of.
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

/// Prints one line for each checkpoint, in columns as wide as they had to be so far.
#[derive(Default)]
pub struct Printer {
    graph: Option<Graph>,
    id_width: usize,
    count_width: usize,
}

impl Printer {
    /// With a graph of where each comes from before the lines.
    pub fn new(graph: Option<Graph>) -> Printer {
        Printer {
            graph,
            ..Printer::default()
        }
    }

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

/// As many as `diff` tells; as the operations counted them, if it would take long to compare.
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

/// Tags, what it guards, and the note's first line.
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
