//! One chart per scenario: times relative to the plain directory.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::lanes::Column;
use crate::place::Placement;
use crate::results::{Results, Row};
use crate::workload::Scenario;

/// The bars of a workload with their legends. `None` is the better of the two floor columns.
const BARS: [(Option<Column>, &str, RGBColor); 4] = [
    (
        Some(Column::Passthrough),
        "passthrough",
        RGBColor(31, 119, 180),
    ),
    (
        Some(Column::Checkpointed),
        "passthrough, after a checkpoint",
        RGBColor(23, 190, 207),
    ),
    (Some(Column::Daemon), "daemon", RGBColor(148, 103, 189)),
    (None, "floor (passthrough_ll)", RGBColor(150, 150, 150)),
];
const BAR: i32 = 14;
const GROUP: i32 = BAR * 4 + 22;
const LEFT: i32 = 60;
const PLOT: i32 = 170;
const PANEL: i32 = PLOT + 75;
const HEAD: i32 = 56;

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws the scenario if it was measured; returns whether it was.
///
/// # Errors
/// The file cannot be written.
pub fn draw(
    path: &Path,
    scenario: &Scenario,
    results: &Results,
    filesystems: &[&'static str],
) -> Result<bool, Box<dyn std::error::Error>> {
    let workloads: Vec<&'static str> = scenario
        .workloads
        .iter()
        .filter(|workload| (workload.can)(Column::Plain))
        .map(|workload| workload.name)
        .collect();
    let mut panels = Vec::new();
    for fs in filesystems {
        for (_, placement) in Placement::ALL {
            if workloads.iter().any(|workload| {
                results
                    .find(
                        Row {
                            fs,
                            workload,
                            placement,
                        },
                        Column::Plain,
                    )
                    .is_some()
            }) {
                panels.push((*fs, placement));
            }
        }
    }
    if panels.is_empty() {
        return Ok(false);
    }
    let width = (LEFT + GROUP * workloads.len() as i32 + 20).max(560);
    let root = SVGBackend::new(
        path,
        (width as u32, (HEAD + PANEL * panels.len() as i32) as u32),
    )
    .into_drawing_area();
    root.fill(&WHITE)?;
    text(
        &root,
        &format!(
            "{}: times the plain directory (log scale, lower is better)",
            scenario.title
        ),
        (10, 8),
        15,
        HPos::Left,
    )?;
    let mut x = 10;
    for (_, name, color) in BARS {
        root.draw(&Rectangle::new([(x, 33), (x + 10, 43)], color.filled()))?;
        text(&root, name, (x + 14, 32), 11, HPos::Left)?;
        x += 30 + name.len() as i32 * 6;
    }
    for (index, (fs, placement)) in panels.iter().enumerate() {
        let top = HEAD + PANEL * index as i32;
        panel(
            &root,
            top,
            width,
            &format!("{fs}, {}", placement.name()),
            &groups(results, &workloads, fs, *placement),
        )?;
    }
    root.present()?;
    Ok(true)
}

/// A workload and its ratios, in the order of the bars.
type Group = (&'static str, [Option<f64>; 4]);

fn groups(
    results: &Results,
    workloads: &[&'static str],
    fs: &'static str,
    placement: Placement,
) -> Vec<Group> {
    let ratios = |workload| {
        let row = Row {
            fs,
            workload,
            placement,
        };
        let plain = results.find(row, Column::Plain);
        BARS.map(|(column, ..)| {
            let cell =
                column.map_or_else(|| results.floor(row), |column| results.find(row, column))?;
            Some(cell.median() / plain?.median())
        })
    };
    workloads
        .iter()
        .map(|workload| (*workload, ratios(workload)))
        .collect()
}

fn panel(root: &Area<'_>, top: i32, width: i32, title: &str, groups: &[Group]) -> Drawn {
    let all = groups
        .iter()
        .flat_map(|(_, ratios)| ratios.iter().flatten().copied());
    let most = all.clone().fold(2.0, f64::max) * 1.15;
    let least = all.fold(1.0, f64::min) / 1.15;
    let (bottom, span) = (top + 22 + PLOT, (most / least).ln());
    let height = |ratio: f64| bottom - ((ratio / least).ln() / span * f64::from(PLOT)) as i32;
    text(root, title, (10, top), 12, HPos::Left)?;
    for mark in [0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
        .into_iter()
        .filter(|mark| (least..most).contains(mark))
    {
        let color = if mark == 1.0 {
            BLACK
        } else {
            RGBColor(215, 215, 215)
        };
        root.draw(&PathElement::new(
            [(LEFT, height(mark)), (width - 10, height(mark))],
            color,
        ))?;
        text(
            root,
            &format!("{mark}x"),
            (LEFT - 6, height(mark) - 7),
            11,
            HPos::Right,
        )?;
    }
    for (index, (workload, ratios)) in groups.iter().enumerate() {
        let left = LEFT + 11 + GROUP * index as i32;
        for (bar, ratio) in ratios.iter().enumerate() {
            let Some(ratio) = ratio else { continue };
            let x = left + BAR * bar as i32;
            root.draw(&Rectangle::new(
                [(x, height(*ratio)), (x + BAR - 2, height(1.0))],
                BARS[bar].2.filled(),
            ))?;
        }
        text(
            root,
            workload,
            (left + BAR * 2, bottom + 6),
            11,
            HPos::Center,
        )?;
    }
    Ok(())
}

fn text(root: &Area<'_>, words: &str, at: (i32, i32), size: i32, side: HPos) -> Drawn {
    let style = TextStyle::from(("sans-serif", size)).pos(Pos::new(side, VPos::Top));
    Ok(root.draw(&Text::new(words.to_owned(), at, style))?)
}
