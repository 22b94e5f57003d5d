//! Sizes for people.

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

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_change_their_unit_at_1024() {
        assert_eq!([0, 1023, 1024, 1536, 1 << 20, (1 << 30) * 5 / 2].map(human), ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "2.5 GiB"]);
        assert_eq!(human(u64::MAX), "16383.9 PiB");
    }
}
