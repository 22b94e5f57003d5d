//! Properties of command lines, and of output.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::Parser;
use proptest::collection::vec;
use proptest::prelude::*;

use super::Cli;
use ckptfs_testkit::{config, spelled};
use ckptfs_ui::output::escape;
use ckptfs_ui::time;
use ckptfs_ui::tree_path::{in_tree, normal};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_path_leads_out_of_the_tree(given in prop_oneof![vec(any::<u8>(), 0..60), spelled(b"../at", 30)]) {
        let given = Path::new(OsStr::from_bytes(&given));
        if let Ok(path) = in_tree(Path::new("/t"), Path::new("/t/a"), given) {
            prop_assert!(!path.0.split(|byte| *byte == b'/').any(|name| name == b"..") && !path.0.starts_with(b"/"));
        }
        prop_assert_eq!(normal(&normal(given)), normal(given));
    }

    #[test]
    fn nothing_that_is_shown_is_obeyed_by_a_terminal(bytes in vec(any::<u8>(), 0..100), text in vec(any::<char>(), 0..50)) {
        for bytes in [bytes, String::from_iter(text).into_bytes()] {
            let shown = escape(&bytes);
            prop_assert!(!shown.chars().any(|char| char.is_control() || matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')), "{shown:?}");
        }
    }

    #[test]
    fn any_text_is_a_time_or_is_shown_as_it_is(text in spelled(b"0123456789-+:.TZ", 40)) {
        let text = String::from_utf8(text).expect("ASCII");
        prop_assert!(!time::local(&text).is_empty() || text.is_empty());
    }

    #[test]
    fn any_command_line_is_a_command_or_an_error(words in vec(prop_oneof![
        vec(any::<char>(), 0..6).prop_map(String::from_iter),
        proptest::sample::select(vec!["mount", "diff", "restore", "log", "-n", "--json", "-o", "dev", "1", "--snapdir-mode=7777", "-C", "-1"]).prop_map(str::to_owned),
    ], 0..6)) {
        let _ = Cli::try_parse_from(std::iter::once("ckptfs".to_owned()).chain(words));
    }
}
