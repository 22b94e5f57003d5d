//! The kernel's state of the threads of hung processes.

use crate::common::wait::seen;
use std::fmt::Write as _;
use std::fs;

/// Returns, for each process, its threads with their names, current system call and kernel stack.
pub fn of(processes: &[(String, u32)]) -> String {
    let mut text = String::new();
    for (name, pid) in processes {
        let _ = writeln!(text, "{name} ({pid})");
        for task in fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let state = read("stat")
                .rsplit_once(") ")
                .map(|(_, rest)| rest.chars().take(1).collect::<String>())
                .unwrap_or_default();
            let id = task.file_name();
            let _ = writeln!(
                text,
                "  {} {} {state} in {}",
                id.display(),
                read("comm").trim(),
                read("wchan").trim()
            );
            let _ = writeln!(text, "    call {}", read("syscall").trim());
            for line in read("stack").lines() {
                let _ = writeln!(text, "    {line}");
            }
        }
    }
    text
}

#[test]
fn a_thread_that_sleeps_is_shown() {
    let child = std::process::Command::new("sleep").arg("60").spawn();
    let mut child = child.expect("sleep is installed");
    crate::common::wait_until("it sleeps", || {
        fs::read_to_string(format!("/proc/{}/wchan", child.id()))
            .map(|at| seen(at.contains("sleep"), at))
            .expect("it is alive")
    });
    let text = of(&[("a sleeper".to_owned(), child.id())]);
    child
        .kill()
        .and_then(|()| child.wait())
        .expect("the child can be waited for");
    assert!(
        text.contains("a sleeper") && text.contains("nanosleep"),
        "{text}"
    );
}
