//! A graph of checkpoints and their parents, drawn to the left of a list, newest first.
//!
//! ```text
//! * 5
//! | * 4
//! |/
//! * 3
//! ```
//! A column is a line that leads down to a checkpoint, the parent of those above it.

use ckptfs_api::CheckpointId;

/// The columns below the last row: the checkpoint that each leads to; `None` for a free column.
#[derive(Debug, Default)]
pub struct Graph(Vec<Option<CheckpointId>>);

impl Graph {
    /// Returns the lines above the next checkpoint, and the prefix of its own line. `parent`: the
    /// checkpoint that it comes from.
    pub fn next(
        &mut self,
        id: CheckpointId,
        parent: Option<CheckpointId>,
    ) -> (Vec<String>, String) {
        let leading: Vec<usize> = (0..self.0.len())
            .filter(|column| self.column(*column) == Some(id))
            .collect();
        let at = match leading.first() {
            Some(first) => *first,
            None => self.free_column(),
        };
        let joins = leading
            .iter()
            .skip(1)
            .rev()
            .map(|column| self.join(*column, at))
            .collect();
        if let Some(column) = self.0.get_mut(at) {
            *column = Some(id);
        }
        let row = self.row(|column| if column == at { '*' } else { '|' });
        if let Some(column) = self.0.get_mut(at) {
            *column = parent;
        }
        self.trim();
        (joins, row)
    }

    fn column(&self, column: usize) -> Option<CheckpointId> {
        self.0.get(column).copied().flatten()
    }

    fn free_column(&mut self) -> usize {
        let free = self
            .0
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.0.len());
        if free == self.0.len() {
            self.0.push(None);
        }
        free
    }

    /// Ends `column`, and returns the line on which it joins `at`, which is left of it.
    fn join(&mut self, column: usize, at: usize) -> String {
        if let Some(ended) = self.0.get_mut(column) {
            *ended = None;
        }
        let mut line: Vec<char> = self.row(|_| '|').chars().collect();
        line.resize((2 * self.0.len()).max(2 * column + 1), ' ');
        for (place, char) in line.iter_mut().enumerate() {
            let between = place > 2 * at && place < 2 * column - 1;
            if place == 2 * column - 1 {
                *char = '/';
            } else if between && *char == ' ' {
                *char = '_';
            }
        }
        self.trim();
        line.into_iter().collect::<String>().trim_end().to_owned()
    }

    /// Returns a line with `mark` for each column in use, each followed by a space.
    fn row(&self, mark: impl Fn(usize) -> char) -> String {
        let one = |(column, to): (usize, &Option<CheckpointId>)| {
            [if to.is_some() { mark(column) } else { ' ' }, ' ']
        };
        self.0.iter().enumerate().flat_map(one).collect()
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&None) {
            self.0.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(checkpoints: &[(u64, u64)]) -> String {
        let mut graph = Graph::default();
        let mut lines = Vec::new();
        for (id, parent) in checkpoints {
            let (above, before) = graph.next(
                CheckpointId(*id),
                (*parent > 0).then_some(CheckpointId(*parent)),
            );
            lines.extend(above);
            lines.push(format!("{before}{id}"));
        }
        lines.join("\n")
    }

    #[test]
    fn a_line_is_a_line() {
        assert_eq!(drawn(&[(3, 2), (2, 1), (1, 0)]), "* 3\n* 2\n* 1");
        // Parents are unknown: two roots.
        assert_eq!(drawn(&[(2, 0), (1, 0)]), "* 2\n* 1");
    }

    #[test]
    fn branches_join_where_they_come_from() {
        assert_eq!(drawn(&[(5, 3), (4, 3), (3, 0)]), "* 5\n| * 4\n|/\n* 3");
        let three = "* 7\n| * 6\n| | * 5\n| | * 4\n| |/\n| * 3\n|/\n* 2\n* 1";
        assert_eq!(
            drawn(&[(7, 2), (6, 3), (5, 4), (4, 3), (3, 2), (2, 1), (1, 0)]),
            three
        );
        // Joins cross other columns.
        assert_eq!(
            drawn(&[(6, 1), (5, 2), (4, 1), (3, 1), (2, 1), (1, 0)]),
            "* 6\n| * 5\n| | * 4\n| | | * 3\n| * | | 2\n|_|_|/\n|_|/\n|/\n* 1"
        );
    }

    #[test]
    fn a_column_that_ended_is_used_again() {
        assert_eq!(
            drawn(&[(9, 8), (8, 0), (7, 5), (6, 5), (5, 0), (4, 0)]),
            "* 9\n* 8\n* 7\n| * 6\n|/\n* 5\n* 4"
        );
    }
}
