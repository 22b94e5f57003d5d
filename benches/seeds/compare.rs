//! Two runs beside each other: what `make bench-compare` prints of this suite.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value as Json;

use crate::report::{OURS, time};
use crate::shared::markdown;
use crate::shared::stats::Samples;

/// What a row has: the median time, bytes and calls.
type Numbers = [Option<f64>; 3];

/// Prints every row that both have, with the change from the first to the second.
pub fn print(before: &Path, now: &Path) {
    let (before, now) = (read(before), read(now));
    let rows = now.iter().filter_map(|(name, now)| {
        let before = before.get(name)?;
        let change = |index: usize| match (before[index], now[index]) {
            (Some(a), Some(b)) if a > 0.0 => format!("{:+.0}%", (b / a - 1.0) * 100.0),
            (Some(a), Some(b)) if a == b => "+0%".to_owned(),
            _ => "-".to_owned(),
        };
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
        let mut cells = vec![name.clone(), now[0].map_or_else(|| "-".to_owned(), time), change(0)];
        cells.extend([number(now[1]), change(1), number(now[2]), change(2)]);
        Some(cells)
    });
    let head = ["row", "time", "change", "B/op", "change", "allocs/op", "change"];
    println!("{}", markdown::table(&head, &rows.collect::<Vec<_>>()));
}

/// By table, row and filesystem.
fn read(path: &Path) -> BTreeMap<String, Numbers> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let all: Json = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let median = |samples: &Json| {
        let mut all = Samples::default();
        samples.as_array()?.iter().filter_map(Json::as_f64).for_each(|sample| all.add_us(sample));
        (all.len() > 0).then(|| all.p50())
    };
    let mut rows = BTreeMap::new();
    for table in all["tables"].as_array().into_iter().flatten() {
        for row in table["rows"].as_array().into_iter().flatten() {
            let cells = &row["cells"];
            let name = [&table["table"], &row["row"], &row["fs"]].map(|part| part.as_str().unwrap_or_default().to_owned()).join(", ");
            rows.insert(name, [median(&cells[OURS]["us"]), median(&cells["B/op"]), median(&cells["allocs/op"])]);
        }
    }
    rows
}
