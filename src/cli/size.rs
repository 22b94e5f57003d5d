//! Sizes for people.

use crate::engine::settings::{self, Value};

/// Units above the byte, each 1024 of the one before.
const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];

/// A size with one decimal place: `1023 B`, `1.5 KiB`, `2.0 GiB`.
pub fn human(bytes: u64) -> String {
    let mut unit = None;
    let (mut whole, mut tenths) = (bytes, 0);
    for next in UNITS {
        if whole < 1024 {
            break;
        }
        (whole, tenths, unit) = (whole / 1024, whole % 1024 * 10 / 1024, Some(next));
    }
    match unit {
        Some(unit) => format!("{whole}.{tenths} {unit}"),
        None => format!("{bytes} B"),
    }
}

/// The bytes that a size on the command line says: "64K", "10G", 1048576.
pub fn parse(text: &str) -> Result<u64, String> {
    let key = settings::find("retention.max-size").ok_or_else(String::new)?;
    match settings::parse_value(key, text)? {
        Value::Number(bytes) => Ok(bytes),
        _ => Err("a size such as 10G is needed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{human, parse};

    #[test]
    fn sizes_are_read_as_the_configuration_s_are() {
        assert_eq!((parse("64K"), parse("7")), (Ok(64 << 10), Ok(7)));
        assert!(parse("much").is_err());
    }

    #[test]
    fn sizes_change_their_unit_at_1024() {
        assert_eq!(
            [0, 1023, 1024, 1536, 1 << 20, (1 << 30) * 5 / 2].map(human),
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "2.5 GiB"]
        );
        assert_eq!(human(u64::MAX), "16383.9 PiB");
    }
}
