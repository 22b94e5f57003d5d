//! Shell quoting of names in suggested commands, plurals, and sizes.
//!
//! Names of files, tags and mounts are untrusted. In a suggested command a name must remain one
//! word, so that a pasted command executes nothing else.

use std::fmt::Display;

/// Quotes a text as one word of a shell command (POSIX, 2.2.2), only if necessary.
pub fn word(text: impl Display) -> String {
    let text = text.to_string();
    let plain = |char: char| {
        char.is_ascii_alphanumeric()
            || "_@%+=:,./-".contains(char)
            || (!char.is_ascii() && char.is_alphanumeric())
    };
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns a count with its noun: "1 file", "2 files".
pub fn count(count: impl TryInto<u64>, one: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        many => format!("{many} {one}s"),
    }
}

/// Units above the byte, each 1024 times the previous one.
const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];

/// Formats a size with one decimal place: `1023 B`, `1.5 KiB`, `2.0 GiB`.
pub fn bytes(bytes: u64) -> String {
    let mut unit = None;
    let (mut whole, mut tenths) = (bytes, 0);
    for next in UNITS {
        if whole < 1024 {
            break;
        }
        (whole, tenths, unit) = (whole / 1024, whole % 1024 * 10 / 1024, Some(next));
    }
    match unit {
        Some(unit) => format!("{whole}.{tenths} {unit}"),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, count, word};

    #[test]
    fn sizes_change_their_unit_at_1024() {
        assert_eq!(
            [0, 1023, 1024, 1536, 1 << 20, (1 << 30) * 5 / 2].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "2.5 GiB"]
        );
        assert_eq!(bytes(u64::MAX), "16383.9 PiB");
    }

    #[test]
    fn one_thing_is_not_many() {
        assert_eq!(count(0_u32, "file"), "0 files");
        assert_eq!(count(1_usize, "file"), "1 file");
        assert_eq!(count(2_u64, "file"), "2 files");
    }

    #[test]
    fn whatever_a_name_is_a_shell_takes_it_for_one_word() {
        for plain in ["/srv/a-b_c.d", "v1:src/é", "@{10}".trim_end_matches("{10}")] {
            assert_eq!(word(plain), plain);
        }
        for name in [
            "",
            "a b",
            "x; rm -rf ~",
            "$(id)",
            "`id`",
            "it's",
            "'; id; '",
            "a\nid\n",
            "\x1b[2J",
            "~root",
            "a*",
            "#1",
            "&",
            "é\u{202e}b",
        ] {
            let quoted = word(name);
            let output = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {quoted}")])
                .output()
                .expect("sh");
            assert_eq!(String::from_utf8_lossy(&output.stdout), name, "{quoted}");
        }
    }
}
