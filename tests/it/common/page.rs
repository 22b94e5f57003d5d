//! Pages of the documentation whose commands are run: blocks of ` ```console
//! `, in which a line that begins with `$ ` is a command and the lines after it what it says. `...`
//! stands for any text in a line; alone, for any lines.

/// A command and what it is to say, line by line.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// What is typed.
    pub command: String,
    /// What it says, line by line.
    pub said: Vec<String>,
}

/// The commands of a page, in order.
pub fn steps(page: &str) -> Vec<Step> {
    let (mut steps, mut inside): (Vec<Step>, bool) = (Vec::new(), false);
    for line in page.lines() {
        if line.starts_with("```") {
            assert!(
                inside || line == "```console",
                "a page has console blocks only: {line}"
            );
            inside = !inside;
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            steps.push(Step {
                command: command.to_owned(),
                said: Vec::new(),
            });
        } else if inside {
            steps
                .last_mut()
                .expect("a block begins with a command")
                .said
                .push(line.to_owned());
        }
    }
    steps
}

/// A line is as told, `...` standing for any text.
fn line_fits(told: &str, line: &str) -> bool {
    let mut parts = told.split("...");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether what was said is as told.
pub fn fits(told: &[String], lines: &[&str]) -> bool {
    match told.split_first() {
        None => lines.is_empty(),
        Some((any, rest)) if any == "..." => {
            (0..=lines.len()).any(|skip| fits(rest, &lines[skip..]))
        }
        Some((line, rest)) => lines
            .split_first()
            .is_some_and(|(first, others)| line_fits(line, first) && fits(rest, others)),
    }
}
