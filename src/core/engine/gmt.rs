//! Names of checkpoints by time in `.snapshots` (`--snapdir-names=gmt`), as expected by Samba's
//! `shadow_copy2`.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Samba's default of `shadow:format`; in UTC.
const FORM: &str = "@GMT-%Y.%m.%d-%H.%M.%S";

/// Returns the name of a second since the epoch. `None` for negative seconds, and from the last day
/// of the year 9999 on.
pub(super) fn name(second: i64) -> Option<String> {
    let time = Timestamp::from_second(second).ok()?;
    (second >= 0).then(|| time.strftime(FORM).to_string())
}

/// Parses a name in the exact format of [`name`].
pub(super) fn second(text: &str) -> Option<i64> {
    let time = DateTime::strptime(FORM, text).ok()?;
    let second = time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
    (name(second).as_deref() == Some(text)).then_some(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_its_second_and_no_other_does() {
        assert_eq!(name(0).as_deref(), Some("@GMT-1970.01.01-00.00.00"));
        let last = Timestamp::MAX.as_second();
        for at in [0, 1, 951_782_400, 1_732_650_000, last] {
            assert_eq!(name(at).and_then(|name| second(&name)), Some(at));
        }
        for at in [-1, i64::MIN, i64::MAX] {
            assert_eq!(name(at), None);
        }
        for no in [
            "",
            "@GMT-",
            "@GMT-1969.12.31-23.59.59",
            "@GMT-2026.2.03-04.05.06",
            "@GMT-2026.02.30-04.05.06",
            "@GMT-2026.02.03-04.05.60",
            "@GMT-2026.02.03-24.00.00",
            "@GMT-2026.02.03-04.05.06 ",
            " @GMT-2026.02.03-04.05.06",
            "@GMT--2026.02.03-04.05.06",
            "@GMT-+2026.02.03-04.05.06",
            "@gmt-2026.02.03-04.05.06",
            "v1",
        ] {
            assert_eq!(second(no), None, "{no:?}");
        }
    }
}
