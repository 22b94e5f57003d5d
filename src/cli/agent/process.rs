//! The process of the agent that called a hook.

use ckptfs_sys as sys;

/// Programs that only run a command for another program.
const SHELLS: [&str; 14] = [
    "sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "mksh", "csh", "tcsh", "busybox", "env",
    "timeout", "xargs",
];
/// Limit of the shells between the agent and its hook.
const SHELLS_MAX: usize = 8;

/// Returns the nearest ancestor of this process that is not a shell, as `PID@START`. In this form
/// `--only-by` of `restore` accepts a process and its children. `None` if it cannot be found.
pub fn agent() -> Option<String> {
    let mut pid = std::os::unix::process::parent_id();
    for _ in 0..SHELLS_MAX {
        let facts = sys::facts_of(pid).ok()?;
        if !is_shell(&facts.name) {
            return Some(format!("{}@{}", facts.pid, facts.start));
        }
        pid = facts.parent;
    }
    None
}

/// Returns the ancestors of this process, as `PID@START`, the nearest first.
pub fn ancestors() -> Vec<String> {
    let parent = |pid: &u32| sys::facts_of(*pid).ok().map(|facts| facts.parent);
    std::iter::successors(Some(std::os::unix::process::parent_id()), parent)
        .take(64)
        .filter_map(|pid| sys::facts_of(pid).ok())
        .map(|facts| format!("{}@{}", facts.pid, facts.start))
        .collect()
}

fn is_shell(name: &str) -> bool {
    SHELLS.contains(&name.trim_start_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_shell_is_a_shell_and_this_process_has_ancestors() {
        assert!(is_shell("-bash") && is_shell("sh") && !is_shell("node"));
        assert!(!ancestors().is_empty());
    }
}
