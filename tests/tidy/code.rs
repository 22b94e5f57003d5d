//! The scanner: separates the code of a source file from comments and literals, and finds its words
//! and functions. It has tests, because a rule that matches nothing would always pass.

/// Returns the source with comments and literals blanked. Line numbers stay the same.
pub(super) fn code_of(source: &str) -> String {
    let text: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < text.len() {
        let end = match text[at] {
            '/' if text.get(at + 1) == Some(&'/') => line_end(&text, at),
            '/' if text.get(at + 1) == Some(&'*') => comment_end(&text, at),
            '"' => string_end(&text, at),
            'r' if !in_word(&text, at) => raw_string_end(&text, at).unwrap_or(at),
            '\'' => char_end(&text, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            code.push(text[at]);
            at += 1;
        } else {
            code.extend(
                text[at..end]
                    .iter()
                    .map(|&c| if c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    code
}

/// Returns whether the character at `at` continues a word (`for"` begins no raw string). The
/// prefixes `b` and `c` of a raw string do not count.
fn in_word(text: &[char], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map(|index| text[index]);
    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if matches!(before(1), Some('b' | 'c')) {
        word(before(2))
    } else {
        word(before(1))
    }
}

fn line_end(text: &[char], at: usize) -> usize {
    (at..text.len())
        .find(|&i| text[i] == '\n')
        .unwrap_or(text.len())
}

fn comment_end(text: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i + 1 < text.len() {
        match (text[i], text[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    text.len()
}

fn string_end(text: &[char], at: usize) -> usize {
    let mut i = at + 1;
    while i < text.len() && text[i] != '"' {
        i += if text[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(text.len())
}

fn raw_string_end(text: &[char], at: usize) -> Option<usize> {
    let hashes = text[at + 1..].iter().take_while(|&&c| c == '#').count();
    if text.get(at + 1 + hashes) != Some(&'"') {
        return None;
    }
    let closes = |i: usize| {
        text[i] == '"'
            && text[i + 1..]
                .iter()
                .take(hashes)
                .filter(|&&c| c == '#')
                .count()
                == hashes
    };
    (at + 2 + hashes..text.len())
        .find(|&i| closes(i))
        .map(|i| i + 1 + hashes)
}

/// Returns the end of a character literal, or `None` for a lifetime.
fn char_end(text: &[char], at: usize) -> Option<usize> {
    if text.get(at + 1) == Some(&'\\') {
        return (at + 3..text.len())
            .find(|&i| text[i] == '\'')
            .map(|i| i + 1);
    }
    (text.get(at + 2) == Some(&'\'')).then_some(at + 3)
}

/// Returns the words of the code, each with its index.
pub(super) fn words(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut start = None;
    for (index, c) in code.char_indices().chain([(code.len(), ' ')]) {
        let inside = c.is_alphanumeric() || c == '_';
        match start {
            None if inside => start = Some(index),
            Some(from) if !inside => {
                found.push((from, &code[from..index]));
                start = None;
            }
            _ => {}
        }
    }
    found
}

pub(super) fn line_of(code: &str, index: usize) -> usize {
    code[..index].matches('\n').count() + 1
}

/// Returns the line, name and length in lines of each function with a body.
pub(super) fn functions(code: &str) -> Vec<(usize, &str, usize)> {
    let all = words(code);
    let mut found = Vec::new();
    for (position, (index, word)) in all.iter().enumerate() {
        let Some((name_at, name)) = all.get(position + 1).filter(|_| *word == "fn") else {
            continue;
        };
        // `fn(u8) -> u8` is a type.
        if !code[index + 2..*name_at].trim().is_empty() {
            continue;
        }
        if let Some(end) = body_end(code, *name_at) {
            let line = line_of(code, *index);
            found.push((line, *name, line_of(code, end) - line + 1));
        }
    }
    found
}

/// Returns the index of the brace that closes the body of the function whose name is at `from`, or
/// `None` for a declaration.
fn body_end(code: &str, from: usize) -> Option<usize> {
    let (mut parentheses, mut braces) = (0, 0);
    for (offset, c) in code[from..].char_indices() {
        match c {
            '(' | '[' => parentheses += 1,
            ')' | ']' => parentheses -= 1,
            ';' if parentheses == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 && parentheses == 0 {
                    return Some(from + offset);
                }
            }
            _ => {}
        }
    }
    None
}

#[test]
fn comments_and_literals_are_no_code() {
    let source = "a /* b /* c */ d */ \"e \\\" f\" r#\"g \" h\"# 'i' '\\'' j::<'k> // l\nm";
    let code = code_of(source);
    let seen: Vec<&str> = words(&code).into_iter().map(|(_, word)| word).collect();
    assert_eq!(seen, ["a", "j", "k", "m"]);
    assert_eq!(code.lines().count(), 2);
}

#[test]
fn functions_are_measured_from_their_name_to_their_brace() {
    let code = "trait T { fn declared(&self);\n fn given(&self) {\n } }\nfn long<F>(f: F, g: fn(u8)) -> [u8; 2]\nwhere F: Fn()\n{\n if a { b }\n}\n";
    let found = functions(code);
    assert_eq!(found, [(2, "given", 2), (4, "long", 5)]);
}
