//! Compares two runs, for `make bench-compare`.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::report::{OURS, time};
use crate::shared::markdown;
use crate::shared::stats::Samples;

/// The medians of a row: time, bytes and calls.
type Numbers = [Option<f64>; 3];

/// Prints every common row with the change from the first run to the second. Each argument is a
/// comma-separated list of files, whose samples are combined.
pub fn print(before: &str, now: &str) {
    let (before, now) = (read(before), read(now));
    let rows = now.iter().filter_map(|(name, now)| {
        let before = before.get(name)?;
        let change = |index: usize| match (before[index], now[index]) {
            (Some(a), Some(b)) if a > 0.0 => format!("{:+.0}%", (b / a - 1.0) * 100.0),
            (Some(a), Some(b)) if a == b => "+0%".to_owned(),
            _ => "-".to_owned(),
        };
        let number = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"))
        };
        let mut cells = vec![
            name.clone(),
            now[0].map_or_else(|| "-".to_owned(), time),
            change(0),
        ];
        cells.extend([number(now[1]), change(1), number(now[2]), change(2)]);
        Some(cells)
    });
    let head = [
        "row",
        "time",
        "change",
        "B/op",
        "change",
        "allocs/op",
        "change",
    ];
    println!("{}", markdown::table(&head, &rows.collect::<Vec<_>>()));
}

/// Reads the medians by table, row and filesystem.
fn read(paths: &str) -> BTreeMap<String, Numbers> {
    let mut rows: BTreeMap<String, [Samples; 3]> = BTreeMap::new();
    for path in paths.split(',') {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let all: Json =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        for table in all["tables"].as_array().into_iter().flatten() {
            for row in table["rows"].as_array().into_iter().flatten() {
                let name = [&table["table"], &row["row"], &row["fs"]]
                    .map(|part| part.as_str().unwrap_or_default().to_owned())
                    .join(", ");
                let cells = &row["cells"];
                let known = rows.entry(name).or_default();
                for (samples, cell) in
                    known
                        .iter_mut()
                        .zip([&cells[OURS]["us"], &cells["B/op"], &cells["allocs/op"]])
                {
                    cell.as_array()
                        .into_iter()
                        .flatten()
                        .filter_map(Json::as_f64)
                        .for_each(|sample| samples.add_us(sample));
                }
            }
        }
    }
    let median = |samples: Samples| (samples.len() > 0).then(|| samples.p50());
    rows.into_iter()
        .map(|(name, samples)| (name, samples.map(median)))
        .collect()
}
