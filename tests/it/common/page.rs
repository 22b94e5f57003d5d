//! Documentation pages with executable commands: in blocks of ` ```console `, a line that begins
//! with `$ ` is a command and the following lines are its output. `...` matches any text within a
//! line; alone, it matches any lines.

/// A command and its expected output.
#[derive(Debug, PartialEq, Eq)]
pub struct ConsoleStep {
    pub command: String,
    /// The expected output, line by line.
    pub said: Vec<String>,
}

/// Returns the commands of a page, in order.
pub fn steps(page: &str) -> Vec<ConsoleStep> {
    let (mut steps, mut inside): (Vec<ConsoleStep>, bool) = (Vec::new(), false);
    for line in page.lines() {
        if line.starts_with("```") {
            assert!(
                inside || line == "```console",
                "a page has console blocks only: {line}"
            );
            inside = !inside;
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            steps.push(ConsoleStep {
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

/// Returns whether a line matches a pattern, in which `...` matches any text.
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

/// Returns whether the output matches the expected one.
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
