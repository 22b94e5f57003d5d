//! String literals repeat no phrase and contain no text spliced into a word. A substitution over
//! many files leaves both errors.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use syn::parse::{Parse, ParseStream};
use syn::visit::{self, Visit};

use super::shape::is_test;
use super::{expect_none, files, read};

/// Maximum length, in words, of a repeated phrase.
const PHRASE_MAX: usize = 5;
/// Minimum length, in words, of a literal that is searched for in others. Shorter ones are ends of
/// sentences.
const SPLICE_MIN: usize = 4;

/// Prefixes that may precede a word and form another one.
const PREFIXES: [&str; 2] = ["re", "un"];

/// The string literals of the code, including those in macros.
#[derive(Default)]
struct Literals(Vec<String>);

impl Literals {
    fn keep(&mut self, literal: &syn::Lit) {
        match literal {
            syn::Lit::Str(text) => self.0.push(text.value()),
            syn::Lit::ByteStr(text) => self
                .0
                .push(String::from_utf8_lossy(&text.value()).into_owned()),
            _ => {}
        }
    }

    fn keep_all(&mut self, mut at: syn::buffer::Cursor<'_>) {
        while !at.eof() {
            if let Some((inside, _, _, after)) = at.any_group() {
                self.keep_all(inside);
                at = after;
            } else if let Some((literal, after)) = at.literal() {
                self.keep(&syn::Lit::new(literal));
                at = after;
            } else if let Some((_, after)) = at.token_tree() {
                at = after;
            }
        }
    }
}

impl Parse for Literals {
    fn parse(input: ParseStream<'_>) -> syn::Result<Literals> {
        let mut found = Literals::default();
        input.step(|cursor| {
            found.keep_all(*cursor);
            let mut end = *cursor;
            while let Some((_, after)) = end.token_tree() {
                end = after;
            }
            Ok(((), end))
        })?;
        Ok(found)
    }
}

impl<'ast> Visit<'ast> for Literals {
    fn visit_lit(&mut self, literal: &'ast syn::Lit) {
        self.keep(literal);
    }

    /// Doc comments are not literals.
    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if !attribute.path().is_ident("doc") {
            visit::visit_attribute(self, attribute);
        }
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        // Of macro arguments, only literals can be parsed.
        if let Ok(inside) = called.parse_body::<Literals>() {
            self.0.extend(inside.0);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }
}

fn literals(code: &str) -> Vec<String> {
    let mut found = Literals::default();
    found.visit_file(&syn::parse_file(code).unwrap());
    found.0
}

/// Splits a text where a sentence cannot continue: at lines and table columns.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split("  "))
}

/// Returns a word in lower case without trailing punctuation, or `None` for anything else.
fn word(written: &str) -> Option<String> {
    let bare = written.trim_end_matches([':', ';', ',', '.', '?']);
    let is_word = bare.len() > 1 && bare.chars().all(|c| c.is_alphabetic() || c == '\'');
    is_word.then(|| bare.to_lowercase())
}

/// Returns a phrase that occurs twice in a row. `ckptfs: ckptfs VERB` is a command and does not
/// count.
fn doubled(text: &str) -> Option<String> {
    let twice = |words: &[Option<String>]| {
        let (one, two) = words.split_at(words.len() / 2);
        let phrase: Option<Vec<&str>> = one.iter().map(Option::as_deref).collect();
        phrase
            .filter(|phrase| one == two && *phrase != ["ckptfs"])
            .map(|phrase| phrase.join(" "))
    };
    parts(text).find_map(|part| {
        let words: Vec<Option<String>> = part.split_whitespace().map(word).collect();
        let lengths = 1..=PHRASE_MAX;
        lengths
            .into_iter()
            .find_map(|length| words.windows(2 * length).find_map(twice))
    })
}

/// Returns pairs of literals of which the second contains the first, starting in the middle of a
/// word. The end of a longer word does not count.
fn splices<'a>(literals: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    // Keyed by their second and third words, which occur whole in the other literal.
    let mut pieces: HashMap<(&str, &str), Vec<&str>> = HashMap::new();
    for piece in literals.iter().copied() {
        let words: Vec<&str> = piece.split(' ').collect();
        let begins_in_a_word = words[0].chars().all(char::is_alphabetic) && !words[0].is_empty();
        if words.len() >= SPLICE_MIN && begins_in_a_word {
            pieces.entry((words[1], words[2])).or_default().push(piece);
        }
    }
    let mut found = Vec::new();
    for text in literals.iter().copied() {
        let words: Vec<&str> = text.split(' ').collect();
        for pair in words.windows(2) {
            for piece in pieces.get(&(pair[0], pair[1])).into_iter().flatten() {
                let before = text.find(piece).map_or("", |at| &text[..at]);
                let beginning = before.rsplit(|c: char| !c.is_alphabetic()).next();
                if beginning.is_some_and(|part| !part.is_empty() && !PREFIXES.contains(&part)) {
                    found.push((*piece, text));
                }
            }
        }
    }
    found
}

/// The literals of the program by file. Parsed once, because that takes seconds.
static PROGRAM: LazyLock<Vec<(String, Vec<String>)>> = LazyLock::new(|| {
    let shown = |path: PathBuf| path.display().to_string();
    let is_of_tests = |path: &String| path.ends_with("tests.rs") || path.contains("/tests/");
    let paths = files("src", "rs").into_iter().map(shown);
    paths
        .filter(|path| !is_of_tests(path))
        .map(|path| {
            let code = read(path.as_ref());
            (path, literals(&code))
        })
        .collect()
});

#[test]
fn no_text_says_a_phrase_twice() {
    let mut offences = Vec::new();
    for (path, literals) in PROGRAM.iter() {
        let twice = literals
            .iter()
            .filter_map(|text| Some((doubled(text)?, text)));
        offences.extend(twice.map(|(phrase, text)| format!("{path}: {phrase:?} in {text:?}")));
    }
    expect_none("no phrase is repeated", &offences);
}

#[test]
fn no_text_is_cut_into_a_word() {
    let all: Vec<&str> = PROGRAM
        .iter()
        .flat_map(|(_, found)| found)
        .map(String::as_str)
        .collect();
    let offences: Vec<String> = splices(&all)
        .iter()
        .map(|(piece, text)| format!("{piece:?} in {text:?}"))
        .collect();
    expect_none("no text begins inside a word of another", &offences);
}

/// Proves that both rules find the seven texts that one substitution broke.
#[test]
fn broken_texts_are_found() {
    let code = r#"
        /// This is is no literal.
        fn f() {
            "Prints what is kept, what is kept";
            hinted(format!("to list to list its versions: ckptfs log {}", word(&path)));
            out.talk(&format!("for for older ones: ckptfs ops --before {}", oldest.number));
            "run the run the merge again";
            let wrong = keys! { "retention.max-size", Both: "takes no more than this than this"; };
            [("checkpoint and fromSnapshot are the same option: give one of them: give one of them", 1)];
            "in ckptfs this is: ckptfs ";
            "to give a directory a history win ckptfs this is: ckptfs mount";
            "{} {} and 1 1: a a; (the) (the) with this ckptfs: ckptfs log\n  log  Log\nlog";
            "install it as root"; "reinstall it as root";
        }
        #[cfg(test)]
        mod tests { const TEXT: &str = "the the"; }
    "#;
    let found = literals(code);
    let twice: Vec<String> = found.iter().filter_map(|text| doubled(text)).collect();
    let phrases = [
        "what is kept",
        "to list",
        "for",
        "run the",
        "than this",
        "give one of them",
    ];
    assert_eq!(twice, phrases);
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    let spliced = splices(&found);
    let [(piece, text)] = spliced[..] else {
        panic!("{spliced:?}");
    };
    assert_eq!(piece, "in ckptfs this is: ckptfs ");
    assert!(text.contains(" win ckptfs"));
}
