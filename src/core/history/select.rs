//! Resolution of state names given by the user.
//!
//! ```text
//! live                      the current tree
//! 17, v1, v                 an id, a tag, a unique prefix of a tag
//! latest                    the newest requested checkpoint (default: the newest automatic one)
//! auto                      the newest automatic checkpoint
//! latest~3, 17~1, v1~2      the N-th requested checkpoint before it
//! auto~1                    the N-th automatic checkpoint before it
//! @{10min ago}, @{yesterday}, 2026-11-21T09:00:00Z, @{2026-11-21 10:00}    the newest checkpoint at that time
//! ```
//! A tag spelled like one of these has precedence.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

use super::state::TreeState;
use ckptfs_api::{CheckpointId, Reason};

/// The newest automatic checkpoint.
const AUTO: &str = "auto";

/// Properties of a checkpoint needed to resolve names.
#[derive(Clone, Copy, Debug)]
pub struct SelectCandidate<'a> {
    /// Its id.
    pub id: CheckpointId,
    /// Its tags.
    pub tags: &'a [String],
    /// Time of its state, in nanoseconds since 1970.
    pub state_ns: i64,
    /// Its reason.
    pub reason: &'a Reason,
}

/// Failure to resolve a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectError {
    /// No checkpoint has this id or tag.
    Unknown,
    /// The name is a prefix of several tags, sorted.
    Ambiguous(Vec<String>),
    /// The name is only a prefix of this tag.
    Beginning(String),
    /// `~N` exceeds the number of checkpoints before the starting point, which is given.
    TooFar(usize),
    /// The oldest checkpoint is later than the time.
    TooEarly,
    /// The text is not a time, for this reason.
    NoTime(String),
}

/// Resolves `name`. `checkpoints` are all visible ones, oldest first.
///
/// # Errors
/// See [`SelectError`].
pub fn select(name: &str, checkpoints: &[SelectCandidate<'_>]) -> Result<TreeState, SelectError> {
    selected(name, checkpoints, begins)
}

/// As [`select`], without matching of tag prefixes: for operations where a wrong match would do
/// harm.
///
/// # Errors
/// See [`SelectError`].
pub fn select_whole(
    name: &str,
    checkpoints: &[SelectCandidate<'_>],
) -> Result<TreeState, SelectError> {
    selected(name, checkpoints, |name, checkpoints| {
        let found = begins(name, checkpoints)?;
        let tags = checkpoints
            .get(found)
            .map(|known| known.tags)
            .unwrap_or_default();
        Err(SelectError::Beginning(
            tags.iter()
                .find(|tag| tag.starts_with(name))
                .cloned()
                .unwrap_or_default(),
        ))
    })
}

type Otherwise = fn(&str, &[SelectCandidate<'_>]) -> Result<usize, SelectError>;

fn selected(
    name: &str,
    checkpoints: &[SelectCandidate<'_>],
    begins: Otherwise,
) -> Result<TreeState, SelectError> {
    if name == "live" {
        return Ok(TreeState::Live);
    }
    let index = match exact(name, checkpoints) {
        Some(index) => index,
        None => match (time_of(name)?, name.rsplit_once('~')) {
            (Some(time), _) => at_time(time, checkpoints)?,
            (None, Some((from, count))) => back(from, count, checkpoints, begins)?,
            (None, None) => begins(name, checkpoints)?,
        },
    };
    checkpoints
        .get(index)
        .map(|found| TreeState::At(found.id))
        .ok_or(SelectError::Unknown)
}

fn exact(name: &str, checkpoints: &[SelectCandidate<'_>]) -> Option<usize> {
    match name {
        "latest" => {
            let asked = checkpoints
                .iter()
                .rposition(|known| known.reason.is_asked());
            return asked.or_else(|| checkpoints.iter().rposition(|known| known.reason.is_auto()));
        }
        AUTO => {
            // A tag with this name has precedence.
            let tagged = checkpoints
                .iter()
                .position(|known| known.tags.iter().any(|tag| tag == name));
            return tagged.or_else(|| checkpoints.iter().rposition(|known| known.reason.is_auto()));
        }
        _ => {}
    }
    match name.parse().map(CheckpointId) {
        Ok(id) => checkpoints.binary_search_by_key(&id, |known| known.id).ok(),
        Err(_) => checkpoints
            .iter()
            .position(|known| known.tags.iter().any(|tag| tag == name)),
    }
}

/// Returns the checkpoint of the only tag with this prefix.
fn begins(name: &str, checkpoints: &[SelectCandidate<'_>]) -> Result<usize, SelectError> {
    let tags = || {
        checkpoints
            .iter()
            .enumerate()
            .flat_map(|(index, known)| known.tags.iter().map(move |tag| (index, tag)))
    };
    let mut found: Vec<(usize, &String)> = tags()
        .filter(|(_, tag)| !name.is_empty() && tag.starts_with(name))
        .collect();
    match found.as_slice() {
        [] => Err(SelectError::Unknown),
        [(index, _)] => Ok(*index),
        _ => {
            found.sort_by_key(|(_, tag)| *tag);
            Err(SelectError::Ambiguous(
                found.into_iter().map(|(_, tag)| tag.clone()).collect(),
            ))
        }
    }
}

/// Resolves `FROM~COUNT`.
fn back(
    from: &str,
    count: &str,
    checkpoints: &[SelectCandidate<'_>],
    begins: Otherwise,
) -> Result<usize, SelectError> {
    let count: usize = if count.is_empty() {
        1
    } else {
        count.parse().map_err(|_| SelectError::Unknown)?
    };
    let start = match exact(from, checkpoints) {
        Some(index) => index,
        None => begins(from, checkpoints)?,
    };
    if count == 0 {
        return Ok(start);
    }
    let auto = from == AUTO
        && checkpoints
            .get(start)
            .is_some_and(|known| known.reason.is_auto());
    let counts = |reason: &Reason| {
        if auto {
            reason.is_auto()
        } else {
            reason.is_asked()
        }
    };
    let before = || {
        checkpoints
            .iter()
            .enumerate()
            .take(start)
            .rev()
            .filter(|(_, known)| counts(known.reason))
    };
    before()
        .nth(count - 1)
        .map(|(index, _)| index)
        .ok_or_else(|| SelectError::TooFar(before().count()))
}

fn at_time(time: Timestamp, checkpoints: &[SelectCandidate<'_>]) -> Result<usize, SelectError> {
    // An imported checkpoint may be older than its predecessors.
    let until = checkpoints
        .iter()
        .enumerate()
        .filter(|(_, known)| i128::from(known.state_ns) <= time.as_nanosecond());
    until
        .max_by_key(|(_, known)| known.state_ns)
        .map(|(index, _)| index)
        .ok_or(if checkpoints.is_empty() {
            SelectError::Unknown
        } else {
            SelectError::TooEarly
        })
}

/// Parses a name that is a time; `None` for other names.
fn time_of(name: &str) -> Result<Option<Timestamp>, SelectError> {
    match name
        .strip_prefix("@{")
        .and_then(|rest| rest.strip_suffix('}'))
    {
        Some(text) => parse_time(text).map(Some).map_err(SelectError::NoTime),
        None => Ok(name.parse().ok()),
    }
}

/// Returns the last occurrence of a time of day.
fn time_of_day(time: Time, now: &Zoned) -> Result<Timestamp, jiff::Error> {
    let today = now
        .date()
        .to_datetime(time)
        .to_zoned(now.time_zone().clone())?;
    let last = if today > *now {
        now.date()
            .yesterday()?
            .to_datetime(time)
            .to_zoned(now.time_zone().clone())?
    } else {
        today
    };
    Ok(last.timestamp())
}

/// Parses a time: RFC 3339, a local date and time, the last occurrence of a time of day (`10:36`),
/// or a span before now (`10min ago`, `2h`, `yesterday`).
///
/// # Errors
/// A message for the user.
pub fn parse_time(text: &str) -> Result<Timestamp, String> {
    let text = text.trim();
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    if let Ok(local) = text.parse::<DateTime>() {
        return local
            .to_zoned(TimeZone::system())
            .map(|zoned| zoned.timestamp())
            .map_err(|error| error.to_string());
    }
    if let Some(time) = text
        .contains(':')
        .then(|| text.parse::<Time>().ok())
        .flatten()
    {
        return time_of_day(time, &Zoned::now()).map_err(|error| error.to_string());
    }
    let span = match text {
        "now" => Ok(Span::new()),
        "yesterday" => "1d ago".parse(),
        _ => text.parse::<Span>(),
    };
    let span = span.map_err(|_| format!("{text:?} is not a time: write 10min ago, 2h, yesterday, 10:36, 2026-11-21 10:00 or 2026-11-21T09:00:00Z"))?;
    let before = if span.is_positive() { -span } else { span };
    Zoned::now()
        .checked_add(before)
        .map(|zoned| zoned.timestamp())
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: i64 = 3_600_000_000_000;
    static AUTO: Reason = Reason::Auto {
        trigger: ckptfs_api::Trigger::Interval,
    };

    fn tags() -> Vec<Vec<String>> {
        [
            &["v1"][..],
            &["v1~1", "before-refactor"],
            &[],
            &["before-release", "@{odd}"],
        ]
        .map(|tags| tags.iter().map(ToString::to_string).collect())
        .into()
    }

    /// Checkpoints 2, 3, 5, 9, made 4, 3, 2 and 1 hours ago.
    fn known(tags: &[Vec<String>]) -> Vec<SelectCandidate<'_>> {
        let now = i64::try_from(Timestamp::now().as_nanosecond()).unwrap();
        let times = (1..=4).rev().map(|hours| now - hours * HOUR_NS);
        [2, 3, 5, 9]
            .into_iter()
            .zip(tags)
            .zip(times)
            .map(|((id, tags), state_ns)| SelectCandidate {
                id: CheckpointId(id),
                tags,
                state_ns,
                reason: &Reason::Asked,
            })
            .collect()
    }

    fn id(name: &str) -> Result<u64, SelectError> {
        let tags = tags();
        select(name, &known(&tags)).map(|state| match state {
            TreeState::At(id) => id.0,
            TreeState::Live => 0,
        })
    }

    #[test]
    fn numbers_tags_and_beginnings() {
        assert_eq!(
            [
                id("live"),
                id("latest"),
                id("5"),
                id("v1"),
                id("before-ref")
            ],
            [Ok(0), Ok(9), Ok(5), Ok(2), Ok(3)]
        );
        assert_eq!(
            [id("4"), id("w"), id("")],
            [const { Err(SelectError::Unknown) }; 3]
        );
        assert_eq!(
            id("before"),
            Err(SelectError::Ambiguous(vec![
                "before-refactor".into(),
                "before-release".into()
            ]))
        );
        assert_eq!(select("latest", &[]), Err(SelectError::Unknown));
    }

    #[test]
    fn where_a_beginning_is_not_enough_the_tag_is_told() {
        let tags = tags();
        let known = known(&tags);
        let whole = |name: &str| select_whole(name, &known);
        let at = |id| Ok(TreeState::At(CheckpointId(id)));
        assert_eq!(
            ["v1", "5", "latest", "v1~1", "before-release~1", "@{now}"].map(whole),
            [at(2), at(5), at(9), at(3), at(5), at(9)]
        );
        let begins = |tag: &str| Err(SelectError::Beginning(tag.to_owned()));
        assert_eq!(
            ["before-rel", "before-rel~2", "v1~0"].map(whole),
            [begins("before-release"), begins("before-release"), at(2)]
        );
        assert_eq!(
            ["before", "w"].map(whole),
            [select("before", &known), Err(SelectError::Unknown)]
        );
    }

    #[test]
    fn a_time_finds_the_state_of_that_time_whatever_its_number() {
        let tags = tags();
        let mut known = known(&tags);
        // The last two were imported and are older than all others.
        known[2].state_ns -= 10 * HOUR_NS;
        known[3].state_ns -= 10 * HOUR_NS;
        let at = |hours: i64| select(&format!("@{{{hours}h 30min ago}}"), &known);
        assert_eq!(
            [at(0), at(3), at(10), at(11)],
            [3, 2, 9, 5].map(|id| Ok(TreeState::At(CheckpointId(id))))
        );
        assert_eq!(at(12), Err(SelectError::TooEarly));
    }

    #[test]
    fn so_many_before() {
        assert_eq!(
            [
                id("latest~1"),
                id("latest~3"),
                id("9~"),
                id("before-rel~2"),
                id("5~0")
            ],
            [Ok(5), Ok(2), Ok(5), Ok(3), Ok(5)]
        );
        assert_eq!(id("v1~1"), Ok(3), "a tag that is written so goes first");
        assert_eq!(
            (id("5~3"), id("5~x"), id("7~1")),
            (
                Err(SelectError::TooFar(2)),
                Err(SelectError::Unknown),
                Err(SelectError::Unknown)
            )
        );
        assert_eq!(id("5~99999999999999999999"), Err(SelectError::Unknown));
    }

    /// 3 and 9 are automatic: users who count their own checkpoints need not know them.
    #[test]
    fn what_nobody_asked_for_is_nobody_s_latest() {
        let tags = tags();
        let mut known = known(&tags);
        let id = |name: &str, known: &[SelectCandidate<'_>]| match select(name, known) {
            Ok(TreeState::At(id)) => Ok(id.0),
            Ok(TreeState::Live) => Ok(0),
            Err(why) => Err(why),
        };
        assert_eq!(id("auto", &known), Err(SelectError::Unknown));
        for index in [1, 3] {
            known[index].reason = &AUTO;
        }
        assert_eq!(
            ["latest", "latest~1", "9~1", "9", "v1~1", "@{now}"].map(|name| id(name, &known)),
            [Ok(5), Ok(2), Ok(5), Ok(9), Ok(3), Ok(9)]
        );
        assert_eq!(
            ["auto", "auto~1", "auto~2"].map(|name| id(name, &known)),
            [Ok(9), Ok(3), Err(SelectError::TooFar(1))]
        );
        known.iter_mut().for_each(|known| known.reason = &AUTO);
        assert_eq!(id("latest", &known), Ok(9), "nobody ever asked");
    }

    /// 5 and 9 are guards of restores. A second `restore latest` used to restore the state that the
    /// first one had replaced.
    #[test]
    fn a_guard_is_nobody_s_latest() {
        const GUARD: Reason = Reason::Guard {
            restored: CheckpointId(3),
        };
        let tags = tags();
        let mut known = known(&tags);
        for index in [2, 3] {
            known[index].reason = &GUARD;
        }
        let id = |name: &str, known: &[SelectCandidate<'_>]| select(name, known);
        let at = |id| Ok(TreeState::At(CheckpointId(id)));
        assert_eq!(
            ["latest", "latest~1", "9~1", "9", "@{now}"].map(|name| id(name, &known)),
            [at(3), at(2), at(3), at(9), at(9)]
        );
        known.iter_mut().for_each(|known| known.reason = &GUARD);
        assert_eq!(
            [id("latest", &known), id("auto", &known)],
            [const { Err(SelectError::Unknown) }; 2]
        );
    }

    /// It was parsed as a span: ten hours and 36 minutes ago.
    #[test]
    fn a_time_of_day_is_the_last_one() {
        let now: Zoned = "2026-11-22T14:00:00[UTC]".parse().unwrap();
        let at = |text: &str| {
            time_of_day(text.parse().unwrap(), &now)
                .unwrap()
                .to_string()
        };
        assert_eq!(
            [at("10:36"), at("14:00"), at("14:00:01")],
            [
                "2026-11-22T10:36:00Z",
                "2026-11-22T14:00:00Z",
                "2026-11-21T14:00:01Z"
            ]
        );
        let local = |text: &str| {
            text.parse::<DateTime>()
                .unwrap()
                .to_zoned(TimeZone::system())
                .unwrap()
                .timestamp()
        };
        assert_eq!(
            parse_time("2026-01-01 12:00"),
            Ok(local("2026-01-01T12:00:00"))
        );
        let (before, told) = (Timestamp::now(), parse_time("00:00").unwrap());
        assert!(told <= Timestamp::now() && before.duration_since(told).as_hours() < 26);
        assert!(parse_time("25:00").is_err());
    }

    #[test]
    fn times() {
        assert_eq!(
            [
                id("@{90min ago}"),
                id("@{90 minutes}"),
                id("@{2h 30m ago}"),
                id("@{now}")
            ],
            [Ok(5), Ok(5), Ok(3), Ok(9)]
        );
        assert_eq!(id("@{odd}"), Ok(9), "a tag that is written so goes first");
        assert_eq!(
            (id("@{yesterday}"), id("2000-01-01T00:00:00Z")),
            (Err(SelectError::TooEarly), Err(SelectError::TooEarly))
        );
        assert_eq!(
            [
                id("2100-01-01T00:00:00Z"),
                id("@{2100-01-01 10:00}"),
                id("2100-01-01T00:00:00.5+02:00")
            ],
            [Ok(9), Ok(9), Ok(9)]
        );
        assert!(
            matches!(id("@{soon}"), Err(SelectError::NoTime(_)))
                && matches!(id("@{}"), Err(SelectError::NoTime(_)))
        );
        assert!(matches!(
            id("@{99999999999 years}"),
            Err(SelectError::NoTime(_))
        ));
    }
}
