use super::parse::{bytes, set, span};
use super::*;

fn wrong(text: &str, origin: Origin) -> (usize, String, String) {
    let error = parse(text, origin).expect_err(text);
    (error.line, error.message, error.hint.unwrap_or_default())
}

#[test]
fn a_file_says_what_its_keys_say() {
    let text = "# mine\nretention.keep-last = 5\n\n[hooks]\ntimeout = \"1m 30s\"\n[mount]\nseal = \"off\"\n";
    let settings = parse(text, Origin::Store).unwrap();
    assert_eq!(settings.number("retention.keep-last"), Some(5));
    assert_eq!(
        settings.span("hooks.timeout"),
        Some(Duration::from_secs(90))
    );
    assert_eq!(settings.text("mount.seal"), Some("off"));
    assert_eq!(
        settings.get("mount.seal").map(|setting| setting.line),
        Some(7)
    );
    assert_eq!(parse("", Origin::User), Ok(Settings::default()));
}

#[test]
fn mistakes_name_the_line_and_what_was_meant() {
    assert_eq!(
        wrong("[retention]\nkeep-lats = 5\n", Origin::Store),
        (
            2,
            "there is no key retention.keep-lats".into(),
            "did you mean retention.keep-last?".into()
        )
    );
    assert_eq!(
        wrong("\n\nmax-size = 5\n", Origin::Store).2,
        "did you mean retention.max-size?"
    );
    assert_eq!(
        wrong("[mount]\nseal = true\n", Origin::Store).1,
        "mount.seal: true is a boolean, not one of \"off\", \"hash\""
    );
    assert_eq!(
        wrong("[mount]\nseal = \"fast\"\n", Origin::Store).1,
        "mount.seal: \"fast\" is not one of \"off\", \"hash\""
    );
    assert_eq!(
        wrong("[retention]\nkeep-last = -1\n", Origin::Store).1,
        "retention.keep-last: it is negative"
    );
    assert_eq!(
        wrong("retention = 3\n", Origin::Store).1,
        "there is no key retention"
    );
    assert_eq!(
        wrong("[retention]\nkeep-last = 1\nkeep-last = 2\n", Origin::Store).0,
        3
    );
    assert_eq!(
        wrong("[retention.keep-last]\nx = 1\n", Origin::Store).1,
        "retention.keep-last: it is a table, not a whole number"
    );
    assert!(
        wrong("[zzz]\nyyy = 1\n", Origin::Store)
            .2
            .contains("config show --all")
    );
}

#[test]
fn a_user_s_file_cannot_tell_the_daemon_what_to_do() {
    for key in KEYS.iter().filter(|key| key.files == Files::Store) {
        let (table, name) = key.name.split_once('.').unwrap();
        let value = match key.kind {
            Kind::Count => "1".to_owned(),
            Kind::Flag => "true".to_owned(),
            Kind::Word(words) => format!("{:?}", words[0]),
            _ => "\"1h\"".to_owned(),
        };
        let text = format!("[{table}]\n{name} = {value}\n");
        assert!(parse(&text, Origin::Store).is_ok(), "{text}");
        assert_eq!(
            wrong(&text, Origin::User).1,
            format!("{} can only be set in the store's file", key.name)
        );
    }
}

#[test]
fn sizes_and_spans() {
    assert_eq!(
        ["1048576", "10G", "1.5 GiB", "2k", "0", "7b"].map(bytes),
        [1 << 20, 10 << 30, 3 << 29, 2048, 0, 7].map(Some)
    );
    assert_eq!(
        [
            "",
            "G",
            "1.5",
            "-1",
            "1x",
            "99999999999999999999",
            "99999999999G",
            "1..2K",
            "1.K"
        ]
        .map(bytes),
        [None; 9]
    );
    assert_eq!(
        ["1h", "1h 30m", "2 weeks", "1d"].map(span),
        [3600, 5400, 1_209_600, 86_400].map(|s| Some(Duration::from_secs(s)))
    );
    assert_eq!(
        ["", "soon", "-1h", "1h ago", "1 month", "0s", "5"].map(span),
        [None; 7]
    );
}

#[test]
fn a_value_is_set_and_the_rest_of_the_file_stays() {
    let key = find("retention.keep-last").unwrap();
    let text = "# mine\n[retention]\nkeep-last = 5 # enough\nkeep-daily = 7\n";
    let text = set(text, key, Some(&Value::Number(9))).unwrap();
    assert_eq!(
        text,
        "# mine\n[retention]\nkeep-last = 9 # enough\nkeep-daily = 7\n"
    );
    let text = set(&text, key, None).unwrap();
    assert_eq!(text, "# mine\n[retention]\nkeep-daily = 7\n");
    let seal = find("mount.seal").unwrap();
    let text = set("", seal, Some(&Value::Text("off".into()))).unwrap();
    assert_eq!(
        parse(&text, Origin::Store).unwrap().text("mount.seal"),
        Some("off")
    );
    assert_eq!(set(&text, seal, None).unwrap().trim(), "");
    assert!(set("mount = 1", seal, None).is_err());
}
