//! Times for people.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A time of the protocol (RFC 3339) in the local time zone, to the second; as it is if it cannot be read.
pub fn local(time: &str) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => time.to_owned(),
    }
}

/// Microseconds as a person reads them: `180 us`, `2.5 ms`, `1.2 s`.
pub fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        _ => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_change_their_unit_at_a_thousand() {
        assert_eq!([0, 999, 1_000, 999_999, 1_000_000].map(duration), ["0 us", "999 us", "1.0 ms", "999.9 ms", "1.0 s"]);
    }

    #[test]
    fn what_is_no_time_is_shown_as_it_is() {
        assert_eq!(local("soon"), "soon");
        assert_eq!(local("2026-11-21T09:00:00.123456789Z").len(), "2026-11-21 09:00:00".len());
    }
}
