//! Tables in Markdown.

/// Formats a table; every row must have as many cells as the head.
pub fn table<H: AsRef<str>>(head: &[H], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(head.iter().map(AsRef::as_ref).collect());
    text += &line(vec!["---"; head.len()]);
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}
