//! Changes by process: `--by process` of `status` and `diff`, and the process lists of `show` and
//! of `--only-by` of `restore`.

use std::io;

use crate::changes;
use crate::error::Outcome;
use crate::output::{Out, Role};
use ckptfs_api::{ByProcess, Change, OpenAtCut, ProcessInfo, RestoredOnly};

/// Grouping of a list of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// By the process that made the change
    Process,
}

/// Formats a process as `name[pid]`, with the names that it took later.
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

/// Prints changes by process, as text or JSON.
pub fn tell(out: &mut Out, all: &ByProcess) -> Outcome {
    out.answer(all, |out| print(out, all))
}

/// Prints one list per process, the process with most paths first, then the changes by unknown
/// processes. A path that several processes changed is in each list, with the other processes.
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

/// Warns about paths that are left unchanged although the process changed them.
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

/// Prints the files that were open for writing, for `show`.
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
