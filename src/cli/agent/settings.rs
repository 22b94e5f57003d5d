//! Settings of agents, edited as text: everything except our entries keeps its order, layout and
//! comments.

use std::path::Path;

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::Value;

use super::agents::{Settings, is_ours};
use ckptfs_api::{Code, VerbError, VerbResult};
use ckptfs_ui::error::hinted;

/// Limit of nested objects and lists, because the parser has no limit.
const DEPTH_MAX: usize = 200;

/// Returns the settings with our entries as in `wanted`; unchanged if they have them.
///
/// # Errors
/// `bad-value` if it is not JSON, or a value is not of the type that the agent reads.
pub fn with(text: Option<&str>, wanted: &Settings) -> VerbResult<String> {
    let root = parse(text.unwrap_or_default(), &wanted.path)?;
    let top = object(&root, &wanted.path)?;
    if let Some((key, value)) = &wanted.top
        && top.get(key).is_none()
    {
        top.append(key, input(value));
    }
    let Some(ours) = top.object_value_or_create(wanted.key) else {
        return Err(bad(&wanted.path, wanted.key, "not an object"));
    };
    for (key, entry) in &wanted.entries {
        if wanted.lists {
            put_in_list(&ours, key, entry, &wanted.path)?;
        } else if value_of(&ours, key).as_ref() != Some(entry) {
            match ours.get(key) {
                Some(known) => known.set_value(input(entry)),
                None => drop(ours.append(key, input(entry))),
            }
        }
    }
    // Entries for events that only an older version used.
    if wanted.lists {
        let keys: Vec<&str> = wanted.entries.iter().map(|(key, _)| key.as_str()).collect();
        remove_ours(&ours, |name| !keys.contains(&name));
    }
    Ok(ended(&root))
}

/// Returns the settings without our entries. `None`: nothing else is left.
///
/// # Errors
/// Those of [`with`].
pub fn without(text: &str, known: &Settings) -> VerbResult<Option<String>> {
    let root = parse(text, &known.path)?;
    let top = object(&root, &known.path)?;
    let Some(ours) = top.object_value(known.key) else {
        if top.get(known.key).is_some() {
            return Err(bad(&known.path, known.key, "not an object"));
        }
        return Ok(Some(text.to_owned()));
    };
    if known.lists {
        remove_ours(&ours, |_| true);
    } else {
        let keys = known.entries.iter().filter_map(|(key, _)| ours.get(key));
        keys.for_each(|entry| entry.remove());
    }
    let comments = text.contains("//") || text.contains("/*");
    if ours.properties().is_empty()
        && let Some(whole) = top.get(known.key)
    {
        whole.remove();
    }
    let left = top.properties();
    let only_ours = left.iter().all(|property| {
        let name = property.name().and_then(|name| name.decoded_value().ok());
        let value = property.value().and_then(|value| value.to_serde_value());
        known.top.as_ref().is_some_and(|(key, ours)| {
            name.as_deref() == Some(*key) && value.as_ref() == Some(ours)
        })
    });
    Ok((!only_ours || comments).then(|| ended(&root)))
}

/// Reports whether the settings have our entries as in `wanted`.
pub fn has(text: &str, wanted: &Settings) -> bool {
    with(Some(text), wanted).is_ok_and(|changed| changed == text)
}

/// Reports whether the settings have any of our entries.
pub fn has_any(text: &str, known: &Settings) -> bool {
    without(text, known).is_ok_and(|left| left.as_deref() != Some(text))
}

fn put_in_list(ours: &CstObject, key: &str, entry: &Value, path: &Path) -> VerbResult<()> {
    let Some(list) = ours.array_value_or_create(key) else {
        return Err(bad(path, key, "not a list"));
    };
    let mut is_there = false;
    for element in list.elements() {
        let Some(value) = element.to_serde_value().filter(is_ours) else {
            continue;
        };
        // An entry of an older version, or a second one.
        if is_there || value != *entry {
            element.remove();
        } else {
            is_there = true;
        }
    }
    if !is_there {
        list.append(input(entry));
        list.ensure_multiline();
    }
    Ok(())
}

/// Removes our entries from the lists of an object, and lists that contain nothing else.
fn remove_ours(ours: &CstObject, of: impl Fn(&str) -> bool) {
    for property in ours.properties() {
        let name = property.name().and_then(|name| name.decoded_value().ok());
        let Some(list) = property
            .array_value()
            .filter(|_| name.is_some_and(|name| of(&name)))
        else {
            continue;
        };
        let elements = list.elements();
        let found: Vec<_> = elements
            .iter()
            .filter(|element| {
                element
                    .to_serde_value()
                    .is_some_and(|value| is_ours(&value))
            })
            .cloned()
            .collect();
        if !found.is_empty() && found.len() == elements.len() {
            property.remove();
        } else {
            found.into_iter().for_each(|element| element.remove());
        }
    }
}

fn value_of(object: &CstObject, key: &str) -> Option<Value> {
    object.get(key)?.value()?.to_serde_value()
}

fn parse(text: &str, path: &Path) -> VerbResult<CstRootNode> {
    let deepest = text.bytes().scan(0_usize, |depth, byte| {
        match byte {
            b'{' | b'[' => *depth += 1,
            b'}' | b']' => *depth = depth.saturating_sub(1),
            _ => {}
        }
        Some(*depth)
    });
    if deepest.max().unwrap_or(0) > DEPTH_MAX {
        return Err(bad(path, "", "nested too deeply"));
    }
    let options = ParseOptions {
        allow_comments: true,
        allow_loose_object_property_names: false,
        allow_trailing_commas: true,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
    };
    CstRootNode::parse(text, &options).map_err(|cause| {
        hinted(
            Code::BadValue,
            format!("{} is not JSON: {cause}", path.display()),
            "nothing was changed; fix it first",
        )
    })
}

fn object(root: &CstRootNode, path: &Path) -> VerbResult<CstObject> {
    root.object_value_or_create()
        .ok_or_else(|| bad(path, "", "not an object"))
}

fn bad(path: &Path, key: &str, what: &str) -> VerbError {
    let whose = if key.is_empty() {
        "its content".to_owned()
    } else {
        format!("{key:?} in it")
    };
    hinted(
        Code::BadValue,
        format!("{} was left alone: {whose} is {what}", path.display()),
        "nothing was changed; fix it first",
    )
}

/// Returns the text, with a newline at its end.
fn ended(root: &CstRootNode) -> String {
    let mut text = root.to_string();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(all) => CstInputValue::Array(all.iter().map(input).collect()),
        Value::Object(all) => CstInputValue::Object(
            all.iter()
                .map(|(key, value)| (key.clone(), input(value)))
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::agents::{Agent, Scope};
    use super::*;

    fn wanted(agent: Agent) -> Settings {
        let scope = Scope::Project(PathBuf::from("/p"));
        agent.settings(&scope, "ckptfs agent hook", None).remove(0)
    }

    const THEIRS: &str = r#"{
  // mine
  "model": "x", /* stays */
  "hooks": {
    "Stop": [ { "hooks": [ { "type": "command", "command": "say done" } ] } ],
    "Other": []
  },
  "z": 1, "a": 2
}
"#;

    #[test]
    fn what_is_not_ours_stays_as_it_is_and_comes_back_as_it_was() {
        for agent in [Agent::ClaudeCode, Agent::Codex, Agent::Gemini] {
            let wanted = wanted(agent);
            let once = with(Some(THEIRS), &wanted).expect("settings");
            assert_eq!(with(Some(&once), &wanted).expect("settings"), once);
            assert!(has(&once, &wanted) && has_any(&once, &wanted) && !has_any(THEIRS, &wanted));
            for line in ["// mine", "/* stays */", r#""z": 1, "a": 2"#, "say done"] {
                assert!(once.contains(line), "{line} in {once}");
            }
            let back = without(&once, &wanted).expect("settings").expect("theirs");
            let told = |text: &str| parse(text, Path::new("x")).expect("JSON").to_serde_value();
            assert_eq!(told(&back), told(THEIRS), "{back}");
            assert!(
                back.contains("// mine") && back.contains(r#""z": 1, "a": 2"#),
                "{back}"
            );
        }
    }

    #[test]
    fn from_nothing_and_back_to_nothing() {
        for agent in [
            Agent::ClaudeCode,
            Agent::Codex,
            Agent::Gemini,
            Agent::Cursor,
        ] {
            let wanted = wanted(agent);
            for nothing in [None, Some(""), Some("{}"), Some("\n")] {
                let made = with(nothing, &wanted).expect("settings");
                let value: Value = serde_json::from_str(&made).expect("plain JSON");
                assert_eq!(
                    value["hooks"].as_object().map(|all| all.len()),
                    Some(wanted.entries.len())
                );
                assert_eq!(without(&made, &wanted).expect("settings"), None, "{made}");
            }
        }
    }

    #[test]
    fn an_older_entry_is_replaced_and_one_of_another_event_goes() {
        let wanted = wanted(Agent::ClaudeCode);
        let old = r#"{"hooks":{"Stop":[{"hooks":[{"type":"command","command":"/old/ckptfs agent hook"}]},{"hooks":[{"type":"command","command":"/old/ckptfs agent hook"}]}],"Gone":[{"hooks":[{"type":"command","command":"ckptfs agent hook"}]}]}}"#;
        let made = with(Some(old), &wanted).expect("settings");
        assert!(!made.contains("/old/") && !made.contains("Gone"), "{made}");
        assert!(has(&made, &wanted));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let wanted = wanted(Agent::ClaudeCode);
        let deep = "[".repeat(100_000);
        for bad in [
            "[]",
            "{",
            "no",
            "{\"hooks\":[]}",
            "{\"hooks\":{\"Stop\":{}}}",
            "1",
            &deep,
        ] {
            let code = with(Some(bad), &wanted).expect_err(bad).code;
            assert_eq!(code, Code::BadValue);
        }
    }
}
