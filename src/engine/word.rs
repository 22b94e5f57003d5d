//! Names in commands that a person may paste, and how many there are of a thing.
//!
//! A name is chosen by whoever made the file, the tag, the mount. In a command that is shown it
//! must stay one word, whatever it is: pasted, it is no second command.

use std::fmt::Display;

/// A text as one word of a shell's command line (POSIX, 2.2.2): as it is if nothing in it means
/// anything to a shell.
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

/// So many things, as one says it: "1 file", "2 files".
pub fn count(count: impl TryInto<u64>, one: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        many => format!("{many} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::{count, word};

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
