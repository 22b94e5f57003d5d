//! Parsing and editing of configuration files.

use std::time::Duration;

use jiff::{SpanRelativeTo, Unit};
use toml_edit::{Document, DocumentMut, Item};

use super::super::tiers::TierPatterns;
use super::{Files, KEYS, Key, Kind, Origin, Setting, Settings, TierSetting, Value, find, nearest};
use ckptfs_api::Tier;
use ckptfs_api::display::word;

/// Name of the list of tiers.
pub const TIERS: &str = "tiers";
/// Limit of tiers per file.
const TIERS_MAX: usize = 64;

/// An error in a file with its position and a suggestion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ConfigError {
    /// Line, from 1.
    pub line: usize,
    /// The error.
    pub message: String,
    /// Suggested correction.
    pub hint: Option<String>,
}

/// Parses a file. The first error rejects the whole file.
///
/// # Errors
/// Not TOML, an unknown key, a key not permitted in this file, a value of the wrong type.
pub fn parse(text: &str, origin: Origin) -> Result<Settings, ConfigError> {
    let line = |at: Option<std::ops::Range<usize>>| {
        1 + text
            .get(..at.map_or(0, |at| at.start))
            .unwrap_or(text)
            .matches('\n')
            .count()
    };
    let document = Document::parse(text).map_err(|error| ConfigError {
        line: line(error.span()),
        message: error.message().trim().replace('\n', ", "),
        hint: None,
    })?;
    let mut settings = Settings::default();
    let mut open: Vec<(String, &dyn toml_edit::TableLike)> =
        vec![(String::new(), document.as_table())];
    let mut found: Vec<(usize, String, &Item)> = Vec::new();
    while let Some((prefix, table)) = open.pop() {
        for (name, item) in table.iter() {
            let at = table
                .get_key_value(name)
                .and_then(|(key, _)| key.span())
                .or_else(|| item.span());
            let name = format!("{prefix}{name}");
            if name == TIERS {
                settings.tiers = tiers(item, origin, at.clone(), &line)?;
                continue;
            }
            match item.as_table_like() {
                Some(inner) if is_table(&name) => open.push((format!("{name}."), inner)),
                _ => found.push((line(at), name, item)),
            }
        }
    }
    found.sort_by_key(|(line, _, _)| *line);
    for (line, name, item) in found {
        let wrong = |message: String, hint: Option<String>| ConfigError {
            line,
            message,
            hint,
        };
        let key = find(&name).ok_or_else(|| unknown(line, &name))?;
        if origin == Origin::User && key.files == Files::Store {
            let hint = format!(
                "it is the daemon's setting: run ckptfs config set {} VALUE in the directory",
                word(&name)
            );
            return Err(wrong(
                format!("{name} can only be set in the store's file"),
                Some(hint),
            ));
        }
        let value = value(key, item).map_err(|why| wrong(format!("{name}: {why}"), None))?;
        settings.insert(
            key,
            Setting {
                value,
                origin,
                line,
            },
        );
    }
    Ok(settings)
}

/// Parses the tables `[[tiers]]` of a file.
fn tiers(
    item: &Item,
    origin: Origin,
    at: Option<std::ops::Range<usize>>,
    line: &impl Fn(Option<std::ops::Range<usize>>) -> usize,
) -> Result<Vec<TierSetting>, ConfigError> {
    let tables: Vec<(&dyn toml_edit::TableLike, Option<std::ops::Range<usize>>)> = match item {
        Item::ArrayOfTables(tables) => tables
            .iter()
            .map(|table| (table as &dyn toml_edit::TableLike, table.span()))
            .collect(),
        Item::Value(toml_edit::Value::Array(array)) => {
            let inline = |value: &toml_edit::Value| value.as_inline_table().is_some();
            if !array.iter().all(inline) {
                return Err(tier_error(line(at), "tiers: an item is not a table".into()));
            }
            array
                .iter()
                .filter_map(|value| value.as_inline_table())
                .map(|table| (table as &dyn toml_edit::TableLike, table.span()))
                .collect()
        }
        other => {
            return Err(tier_error(
                line(at),
                format!("tiers is {}", article(other.type_name())),
            ));
        }
    };
    if tables.len() > TIERS_MAX {
        return Err(tier_error(
            line(at),
            format!("there are more than {TIERS_MAX} tiers"),
        ));
    }
    tables
        .into_iter()
        .map(|(table, span)| tier(table, origin, line(span.or_else(|| at.clone())), line))
        .collect()
}

fn tier_error(line: usize, message: String) -> ConfigError {
    let hint = "for example: [[tiers]] paths = [\"node_modules\", \"*.tmp\"] keep = \"1h\", each on a line of its own".to_owned();
    ConfigError {
        line,
        message,
        hint: Some(hint),
    }
}

fn tier(
    table: &dyn toml_edit::TableLike,
    origin: Origin,
    begin: usize,
    line: &impl Fn(Option<std::ops::Range<usize>>) -> usize,
) -> Result<TierSetting, ConfigError> {
    let (mut paths, mut keep) = (None, None);
    for (name, item) in table.iter() {
        let at = line(
            table
                .get_key_value(name)
                .and_then(|(key, _)| key.span())
                .or_else(|| item.span()),
        );
        let wrong = |why: String| tier_error(at, format!("tiers.{name}: {why}"));
        match name {
            "paths" => {
                let array = item.as_array().ok_or_else(|| {
                    wrong(format!(
                        "it is {}, not a list of names or patterns",
                        item.type_name()
                    ))
                })?;
                let texts: Option<Vec<String>> = array
                    .iter()
                    .map(|value| value.as_str().map(str::to_owned))
                    .collect();
                paths = Some(texts.ok_or_else(|| wrong("one of them is not a string".into()))?);
            }
            "keep" => {
                let text = item
                    .as_str()
                    .ok_or_else(|| wrong(format!("it is {}", article(item.type_name()))))?;
                let parsed = span(text)
                    .ok_or_else(|| wrong(format!("{text:?} is not {}", Kind::Span.wanted())))?;
                keep = Some((parsed, text.to_owned()));
            }
            _ => {
                let near =
                    super::super::error::nearest(name, &["paths".to_owned(), "keep".to_owned()])
                        .cloned();
                let hint = near.map_or("a tier has paths and keep".to_owned(), |near| {
                    format!("did you mean {near}?")
                });
                return Err(ConfigError {
                    line: at,
                    message: format!("there is no key tiers.{name}"),
                    hint: Some(hint),
                });
            }
        }
    }
    let (Some(paths), Some((kept, text))) = (paths, keep) else {
        return Err(tier_error(begin, "a tier needs paths and keep".into()));
    };
    let keep_ms = u64::try_from(kept.as_millis()).unwrap_or(u64::MAX);
    let tier = Tier { paths, keep_ms };
    TierPatterns::new(&tier.paths)
        .map_err(|why| tier_error(begin, format!("tiers.paths: {why}")))?;
    Ok(TierSetting {
        tier,
        keep: text,
        origin,
        line: begin,
    })
}

/// Returns whether this is a table with known keys.
fn is_table(name: &str) -> bool {
    KEYS.iter().any(|key| {
        key.name
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

fn unknown(line: usize, name: &str) -> ConfigError {
    let hint = match nearest(name) {
        Some(near) => format!("did you mean {near}?"),
        None => "`ckptfs config show --all` lists every key".to_owned(),
    };
    ConfigError {
        line,
        message: format!("there is no key {name}"),
        hint: Some(hint),
    }
}

fn value(key: &Key, item: &Item) -> Result<Value, String> {
    match item.as_value() {
        Some(toml_edit::Value::Integer(number))
            if matches!(key.kind, Kind::Count | Kind::Bytes) =>
        {
            u64::try_from(*number.value())
                .map(Value::Number)
                .map_err(|_| "it is negative".to_owned())
        }
        Some(toml_edit::Value::Boolean(flag)) if key.kind == Kind::Flag => {
            Ok(Value::Flag(*flag.value()))
        }
        Some(toml_edit::Value::String(text)) if !matches!(key.kind, Kind::Count | Kind::Flag) => {
            of_text(key, text.value())
        }
        Some(other) => Err(format!(
            "{} is {}, not {}",
            other.to_string().trim(),
            article(other.type_name()),
            key.kind.wanted()
        )),
        None => Err(format!(
            "it is {}, not {}",
            article(item.type_name()),
            key.kind.wanted()
        )),
    }
}

fn article(name: &str) -> String {
    let an = name.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {name}", if an { "an" } else { "a" })
}

/// Parses a value from the command line.
///
/// # Errors
/// The reason why it is invalid.
pub fn parse_value(key: &Key, text: &str) -> Result<Value, String> {
    match key.kind {
        Kind::Count => text
            .parse()
            .map(Value::Number)
            .map_err(|_| format!("{text:?} is not {}", key.kind.wanted())),
        _ => of_text(key, text),
    }
}

fn of_text(key: &Key, text: &str) -> Result<Value, String> {
    let wrong = || format!("{text:?} is not {}", key.kind.wanted());
    match key.kind {
        Kind::Count => Err(wrong()),
        Kind::Flag => text.parse().map(Value::Flag).map_err(|_| wrong()),
        Kind::Bytes => bytes(text).map(Value::Number).ok_or_else(wrong),
        Kind::Span => span(text)
            .map(|span| Value::Span(span, text.to_owned()))
            .ok_or_else(wrong),
        Kind::Word(words) => words
            .contains(&text)
            .then(|| Value::Text(text.to_owned()))
            .ok_or_else(wrong),
        Kind::Mode => {
            let mode = u32::from_str_radix(text, 8)
                .ok()
                .filter(|mode| *mode <= 0o1777 && text.bytes().all(|byte| byte.is_ascii_digit()));
            mode.map(|_| Value::Text(text.to_owned())).ok_or_else(wrong)
        }
    }
}

/// Parses a size: `1048576`, `10G`, `1.5 GiB`; powers of 1024.
pub fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|char: char| !(char.is_ascii_digit() || char == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit
        .trim()
        .to_ascii_lowercase()
        .trim_end_matches("ib")
        .trim_end_matches('b')
    {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let (whole, part) = number.split_once('.')?;
    // Fractions of a byte are invalid.
    if shift == 0 || part.is_empty() || part.len() > 6 {
        return None;
    }
    let scale = 10_u64.checked_pow(u32::try_from(part.len()).ok()?)?;
    let below = part.parse::<u64>().ok()?.checked_mul(1 << shift)? / scale;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1 << shift)?
        .checked_add(below)
}

/// Parses a duration: `30d`, `1h 30m`, `2 weeks`; a day has 24 hours.
pub(super) fn span(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.trim().parse().ok()?;
    if span.is_negative() || span.get_months() != 0 || span.get_years() != 0 {
        return None;
    }
    let seconds = span
        .total((Unit::Nanosecond, SpanRelativeTo::days_are_24_hours()))
        .ok()?;
    let whole = Duration::try_from_secs_f64(seconds / 1e9).ok()?;
    (whole > Duration::ZERO).then_some(whole)
}

/// Sets a key to `value` (`None`: removes it), preserving the rest of the text and its comments.
///
/// # Errors
/// Not TOML, or the key's table is not a table.
pub fn set(text: &str, key: &Key, value: Option<&Value>) -> Result<String, ConfigError> {
    let wrong = |message: String| ConfigError {
        line: 1,
        message,
        hint: None,
    };
    let mut document: DocumentMut = text
        .parse()
        .map_err(|error: toml_edit::TomlError| wrong(error.message().trim().to_owned()))?;
    let (table, name) = key.name.split_once('.').unwrap_or(("", key.name));
    let item = document.entry(table).or_insert_with(toml_edit::table);
    let table_like = item
        .as_table_like_mut()
        .ok_or_else(|| wrong(format!("{table} is not a table")))?;
    match value {
        Some(Value::Number(number)) => {
            let number =
                i64::try_from(*number).map_err(|_| wrong(format!("{number} is too large")))?;
            put(table_like, name, number.into());
        }
        Some(Value::Flag(flag)) => put(table_like, name, (*flag).into()),
        Some(Value::Span(_, text) | Value::Text(text)) => {
            put(table_like, name, text.as_str().into())
        }
        None => {
            table_like.remove(name);
            if table_like.is_empty() {
                document.remove(table);
            }
        }
    }
    Ok(document.to_string())
}

/// Preserves the old value's decoration, such as a trailing comment.
fn put(table: &mut dyn toml_edit::TableLike, name: &str, mut value: toml_edit::Value) {
    if let Some(old) = table.get(name).and_then(Item::as_value) {
        *value.decor_mut() = old.decor().clone();
    }
    table.insert(name, Item::Value(value));
}
