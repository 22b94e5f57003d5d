//! Parsing and formatting of times.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Formats a time of the protocol (RFC 3339) in the local time zone, to the second; unchanged if it
/// cannot be parsed.
pub fn local(time: &str) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => time
            .to_zoned(TimeZone::system())
            .strftime("%Y-%m-%d %H:%M:%S")
            .to_string(),
        Err(_) => time.to_owned(),
    }
}

/// Formats microseconds: `180 us`, `2.5 ms`, `1.2 s`.
pub fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        _ => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
    }
}

/// Parses a span of time: `500ms`, `2s`, `5min`, `1h 30m`.
pub fn span(text: &str) -> Result<Duration, String> {
    let span = text
        .parse::<SignedDuration>()
        .ok()
        .and_then(|span| Duration::try_from(span).ok());
    span.ok_or_else(|| "a span of time is needed, such as 500ms, 2s or 5min".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_change_their_unit_at_a_thousand() {
        assert_eq!(
            [0, 999, 1_000, 999_999, 1_000_000].map(duration),
            ["0 us", "999 us", "1.0 ms", "999.9 ms", "1.0 s"]
        );
    }

    #[test]
    fn spans_are_read_with_their_unit() {
        assert_eq!(
            ["500ms", "2s", "5min", "1h 30m"].map(|text| span(text).unwrap().as_millis()),
            [500, 2_000, 300_000, 5_400_000]
        );
        assert!(
            ["", "2", "-2s", "soon"]
                .map(span)
                .iter()
                .all(Result::is_err)
        );
    }

    #[test]
    fn what_is_no_time_is_shown_as_it_is() {
        assert_eq!(local("soon"), "soon");
        assert_eq!(
            local("2026-11-21T09:00:00.123456789Z").len(),
            "2026-11-21 09:00:00".len()
        );
    }
}
