//! What differs, by process: `--by process` of `status` and `diff`, and what `restore --only-by`
//! and `show` say of processes.

use std::io;

use super::changes;
use super::error::Outcome;
use super::output::{Out, Role};
use crate::engine::api::Change;
use crate::engine::api::attribution::{ByProcess, OpenAtCut, ProcessInfo, RestoredOnly};

/// By what changes can be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// By the process that changed them
    Process,
}

/// `name[pid]`, with the names that it had later.
pub fn label(process: &ProcessInfo) -> String {
    if process.pid == 0 {
        return "unknown".into();
    }
    let names: Vec<&str> = std::iter::once(&process.name)
        .chain(&process.also)
        .map(String::as_str)
        .filter(|name| !name.is_empty())
        .collect();
    if names.is_empty() {
        format!("process {}", process.pid)
    } else {
        format!("{}[{}]", names.join("/"), process.pid)
    }
}

/// Prints it as it is wanted.
pub fn tell(out: &mut Out, all: &ByProcess) -> Outcome {
    out.answer(all, |out| print(out, all))
}

/// Prints one list per process, the one with most paths first, and at the end what nobody is known
/// to have changed. A path that several changed is in each one's list, with the others.
fn print(out: &mut Out, all: &ByProcess) -> io::Result<()> {
    let mut order: Vec<(usize, &ProcessInfo)> = all.processes.iter().enumerate().collect();
    order
        .sort_by_key(|(_, process)| (std::cmp::Reverse(process.paths), process.pid, process.start));
    for (at, process) in order {
        head(out, &label(process), &process.cgroup, process.paths)?;
        for one in all.changes.iter().filter(|one| one.by.contains(&at)) {
            let mut also: Vec<String> = one
                .by
                .iter()
                .filter(|by| **by != at)
                .filter_map(|by| all.processes.get(*by))
                .map(label)
                .collect();
            also.extend(one.others.then(|| "others".to_owned()));
            line(out, &one.change, &also)?;
        }
    }
    let unknown: Vec<_> = all.changes.iter().filter(|one| one.by.is_empty()).collect();
    if !unknown.is_empty() {
        head(out, "by unknown processes", "", unknown.len() as u64)?;
        for one in unknown {
            let also = if one.others {
                vec!["others".to_owned()]
            } else {
                Vec::new()
            };
            line(out, &one.change, &also)?;
        }
    }
    Ok(())
}

fn head(out: &mut Out, name: &str, cgroup: &str, paths: u64) -> io::Result<()> {
    let group = if cgroup.is_empty() {
        String::new()
    } else {
        format!("  {cgroup}")
    };
    let text = out
        .text(&format!("{name}{group}  {}", changes::count(paths)))
        .into_owned();
    let text = out.paint(Role::Id, &text);
    out.line(&text)
}

fn line(out: &mut Out, change: &Change, also: &[String]) -> io::Result<()> {
    let mut line = changes::line(out, change);
    if !also.is_empty() {
        let text = out
            .text(&format!("  (also {})", also.join(", ")))
            .into_owned();
        line.extend_from_slice(out.paint(Role::Faint, &text).as_bytes());
    }
    out.bytes(&[b"  ", line.as_slice(), b"\n"].concat())
}

/// Tells on stderr what stays although the process changed it.
pub fn warn_shared(out: &Out, restored: &RestoredOnly) {
    for shared in &restored.shared {
        let path = String::from_utf8_lossy(&shared.path.0).into_owned();
        let why = if shared.by.is_empty() {
            "it cannot be taken back without changes of others".to_owned()
        } else {
            format!("{} changed it too", shared.by.join(", "))
        };
        out.warn(&format!("{path} is left as it is: {why}"));
    }
}

/// What was open for writing, as `show` tells it.
pub fn print_open(out: &mut Out, open: &OpenAtCut) -> io::Result<()> {
    let total = open.files.len() as u64 + open.more;
    let title = out.paint(Role::Faint, "open      ");
    out.line(&format!("{title} {total} for writing"))?;
    for file in &open.files {
        let path = out.name(&file.path.0).into_owned();
        let by = out.text(&label(&file.by)).into_owned();
        let by = out.paint(Role::Faint, &by);
        out.bytes(&[b"    ", path.as_slice(), b"  ", by.as_bytes(), b"\n"].concat())?;
    }
    if open.more > 0 {
        out.line(&format!("    and {} more", open.more))?;
    }
    Ok(())
}
