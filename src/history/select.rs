//! Which state of the tree a person means.
//!
//! ```text
//! live                      the tree as it is now
//! 17, v1, v                 a number, a tag, a beginning that only one tag has
//! latest                    the newest checkpoint that somebody asked for (without one, the newest)
//! auto                      the newest that the daemon made by itself
//! latest~3, 17~1, v1~2      so many kept checkpoints before it, those not counted that the daemon made by itself
//! auto~1                    so many of those before it
//! @{10min ago}, @{yesterday}, 2026-11-21T09:00:00Z, @{2026-11-21 10:00}    the newest that was there at that time
//! ```
//! A tag that is written like one of these goes before it.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

use super::view::State;
use crate::store::ids::CheckpointId;

/// The newest checkpoint that nobody asked for.
const AUTO: &str = "auto";

/// What is needed of a checkpoint to tell whether it is meant.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Its number.
    pub id: CheckpointId,
    /// Its tags.
    pub tags: &'a [String],
    /// When it was made, nanoseconds since 1970.
    pub created_ns: i64,
    /// Nobody asked for it.
    pub auto: bool,
}

/// Why no checkpoint is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unselected {
    /// None has this number or tag.
    Unknown,
    /// It begins these tags, sorted.
    Ambiguous(Vec<String>),
    /// `~N` leads beyond the oldest; so many are before the one that it counts from.
    TooFar(usize),
    /// The oldest was made after that time.
    TooEarly,
    /// It is no time; what is wrong with it.
    NoTime(String),
}

/// The state that `name` means; `checkpoints` are all that are kept, oldest first.
///
/// # Errors
/// See [`Unselected`].
pub fn select(name: &str, checkpoints: &[Known<'_>]) -> Result<State, Unselected> {
    if name == "live" {
        return Ok(State::Live);
    }
    let index = match exact(name, checkpoints) {
        Some(index) => index,
        None => match (time_of(name)?, name.rsplit_once('~')) {
            (Some(time), _) => at_time(time, checkpoints)?,
            (None, Some((from, count))) => back(from, count, checkpoints)?,
            (None, None) => begins(name, checkpoints)?,
        },
    };
    checkpoints.get(index).map(|found| State::At(found.id)).ok_or(Unselected::Unknown)
}

fn exact(name: &str, checkpoints: &[Known<'_>]) -> Option<usize> {
    match name {
        "latest" => return checkpoints.iter().rposition(|known| !known.auto).or(checkpoints.len().checked_sub(1)),
        AUTO => {
            // A tag of this name goes before it.
            let tagged = checkpoints.iter().position(|known| known.tags.iter().any(|tag| tag == name));
            return tagged.or_else(|| checkpoints.iter().rposition(|known| known.auto));
        }
        _ => {}
    }
    match name.parse().map(CheckpointId) {
        Ok(id) => checkpoints.binary_search_by_key(&id, |known| known.id).ok(),
        Err(_) => checkpoints.iter().position(|known| known.tags.iter().any(|tag| tag == name)),
    }
}

/// The one tag that begins so.
fn begins(name: &str, checkpoints: &[Known<'_>]) -> Result<usize, Unselected> {
    let tags = || checkpoints.iter().enumerate().flat_map(|(index, known)| known.tags.iter().map(move |tag| (index, tag)));
    let mut found: Vec<(usize, &String)> = tags().filter(|(_, tag)| !name.is_empty() && tag.starts_with(name)).collect();
    match found.as_slice() {
        [] => Err(Unselected::Unknown),
        [(index, _)] => Ok(*index),
        _ => {
            found.sort_by_key(|(_, tag)| *tag);
            Err(Unselected::Ambiguous(found.into_iter().map(|(_, tag)| tag.clone()).collect()))
        }
    }
}

/// `FROM~COUNT`.
fn back(from: &str, count: &str, checkpoints: &[Known<'_>]) -> Result<usize, Unselected> {
    let count: usize = if count.is_empty() { 1 } else { count.parse().map_err(|_| Unselected::Unknown)? };
    let start = match exact(from, checkpoints) {
        Some(index) => index,
        None => begins(from, checkpoints)?,
    };
    if count == 0 {
        return Ok(start);
    }
    let auto = from == AUTO && checkpoints.get(start).is_some_and(|known| known.auto);
    let before = || checkpoints.iter().enumerate().take(start).rev().filter(|(_, known)| known.auto == auto);
    before().nth(count - 1).map(|(index, _)| index).ok_or_else(|| Unselected::TooFar(before().count()))
}

fn at_time(time: Timestamp, checkpoints: &[Known<'_>]) -> Result<usize, Unselected> {
    let later = checkpoints.iter().position(|known| i128::from(known.created_ns) > time.as_nanosecond()).unwrap_or(checkpoints.len());
    later.checked_sub(1).ok_or(if checkpoints.is_empty() { Unselected::Unknown } else { Unselected::TooEarly })
}

/// The time that `name` is, if it is one.
fn time_of(name: &str) -> Result<Option<Timestamp>, Unselected> {
    match name.strip_prefix("@{").and_then(|rest| rest.strip_suffix('}')) {
        Some(text) => parse_time(text).map(Some).map_err(Unselected::NoTime),
        None => Ok(name.parse().ok()),
    }
}

/// A point in time as a person writes it: RFC 3339, a local date and time, or a span before now (`10min ago`, `2h`, `yesterday`).
///
/// # Errors
/// What is wrong with it.
pub fn parse_time(text: &str) -> Result<Timestamp, String> {
    let text = text.trim();
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    if let Ok(local) = text.parse::<DateTime>() {
        return local.to_zoned(TimeZone::system()).map(|zoned| zoned.timestamp()).map_err(|error| error.to_string());
    }
    let span = match text {
        "now" => Ok(Span::new()),
        "yesterday" => "1d ago".parse(),
        _ => text.parse::<Span>(),
    };
    let span = span.map_err(|_| format!("{text:?} is no time: write 10min ago, 2h, yesterday, 2026-11-21 10:00 or 2026-11-21T09:00:00Z"))?;
    let before = if span.is_positive() { -span } else { span };
    Zoned::now().checked_add(before).map(|zoned| zoned.timestamp()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: i64 = 3_600_000_000_000;

    fn tags() -> Vec<Vec<String>> {
        [&["v1"][..], &["v1~1", "before-refactor"], &[], &["before-release", "@{odd}"]]
            .map(|tags| tags.iter().map(ToString::to_string).collect())
            .into()
    }

    /// Checkpoints 2, 3, 5, 9, made 4, 3, 2 and 1 hours ago.
    fn known(tags: &[Vec<String>]) -> Vec<Known<'_>> {
        let now = i64::try_from(Timestamp::now().as_nanosecond()).unwrap();
        let times = (1..=4).rev().map(|hours| now - hours * HOUR_NS);
        [2, 3, 5, 9]
            .into_iter()
            .zip(tags)
            .zip(times)
            .map(|((id, tags), created_ns)| Known { id: CheckpointId(id), tags, created_ns, auto: false })
            .collect()
    }

    fn id(name: &str) -> Result<u64, Unselected> {
        let tags = tags();
        select(name, &known(&tags)).map(|state| match state {
            State::At(id) => id.0,
            State::Live => 0,
        })
    }

    #[test]
    fn numbers_tags_and_beginnings() {
        assert_eq!([id("live"), id("latest"), id("5"), id("v1"), id("before-ref")], [Ok(0), Ok(9), Ok(5), Ok(2), Ok(3)]);
        assert_eq!([id("4"), id("w"), id("")], [const { Err(Unselected::Unknown) }; 3]);
        assert_eq!(id("before"), Err(Unselected::Ambiguous(vec!["before-refactor".into(), "before-release".into()])));
        assert_eq!(select("latest", &[]), Err(Unselected::Unknown));
    }

    #[test]
    fn so_many_before() {
        assert_eq!([id("latest~1"), id("latest~3"), id("9~"), id("before-rel~2"), id("5~0")], [Ok(5), Ok(2), Ok(5), Ok(3), Ok(5)]);
        assert_eq!(id("v1~1"), Ok(3), "a tag that is written so goes first");
        assert_eq!((id("5~3"), id("5~x"), id("7~1")), (Err(Unselected::TooFar(2)), Err(Unselected::Unknown), Err(Unselected::Unknown)));
        assert_eq!(id("5~99999999999999999999"), Err(Unselected::Unknown));
    }

    /// 3 and 9 were made by the daemon: who counts their own checkpoints need not know of them.
    #[test]
    fn what_nobody_asked_for_is_nobody_s_latest() {
        let tags = tags();
        let mut known = known(&tags);
        let id = |name: &str, known: &[Known<'_>]| match select(name, known) {
            Ok(State::At(id)) => Ok(id.0),
            Ok(State::Live) => Ok(0),
            Err(why) => Err(why),
        };
        assert_eq!(id("auto", &known), Err(Unselected::Unknown));
        for index in [1, 3] {
            known[index].auto = true;
        }
        assert_eq!(["latest", "latest~1", "9~1", "9", "v1~1", "@{now}"].map(|name| id(name, &known)), [Ok(5), Ok(2), Ok(5), Ok(9), Ok(3), Ok(9)]);
        assert_eq!(["auto", "auto~1", "auto~2"].map(|name| id(name, &known)), [Ok(9), Ok(3), Err(Unselected::TooFar(1))]);
        known.iter_mut().for_each(|known| known.auto = true);
        assert_eq!(id("latest", &known), Ok(9), "nobody ever asked");
    }

    #[test]
    fn times() {
        assert_eq!([id("@{90min ago}"), id("@{90 minutes}"), id("@{2h 30m ago}"), id("@{now}")], [Ok(5), Ok(5), Ok(3), Ok(9)]);
        assert_eq!(id("@{odd}"), Ok(9), "a tag that is written so goes first");
        assert_eq!((id("@{yesterday}"), id("2000-01-01T00:00:00Z")), (Err(Unselected::TooEarly), Err(Unselected::TooEarly)));
        assert_eq!([id("2100-01-01T00:00:00Z"), id("@{2100-01-01 10:00}"), id("2100-01-01T00:00:00.5+02:00")], [Ok(9), Ok(9), Ok(9)]);
        assert!(matches!(id("@{soon}"), Err(Unselected::NoTime(_))) && matches!(id("@{}"), Err(Unselected::NoTime(_))));
        assert!(matches!(id("@{99999999999 years}"), Err(Unselected::NoTime(_))));
    }
}
