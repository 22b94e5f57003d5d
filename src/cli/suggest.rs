//! "Did you mean": the name that a mistyped one is nearest to.

use crate::control::Client;
use crate::engine::api::{CheckpointInfo, VerbError, VerbResult};

/// The candidate that `given` is most likely meant to be, if one is near enough: one slip in three letters.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (given.chars().count() / 3).max(1);
    let given = given.to_lowercase();
    let near = candidates.into_iter().map(|candidate| (slips(&given, &candidate.to_lowercase()), candidate));
    near.filter(|(slips, _)| *slips <= allowed).min_by_key(|(slips, _)| *slips).map(|(_, candidate)| candidate)
}

/// Adds to an error about an unknown checkpoint what `states` may have been meant to be.
pub fn advise(client: &mut Client, states: &[&str], error: VerbError) -> VerbError {
    advise_from(|| client.log(), states, error)
}

/// As [`advise`], with the checkpoints from `log`.
pub fn advise_from(log: impl FnOnce() -> VerbResult<Vec<CheckpointInfo>>, states: &[&str], mut error: VerbError) -> VerbError {
    if error.code != "unknown-checkpoint" {
        return error;
    }
    let Ok(log) = log() else { return error };
    let unknown = states.iter().filter(|state| state.parse::<u64>().is_err());
    let tags = || log.iter().flat_map(|checkpoint| checkpoint.tags.iter().map(String::as_str)).chain(["latest", "live"]);
    let meant = unknown.filter(|state| tags().all(|tag| tag != **state)).find_map(|state| nearest(state, tags()));
    error.hint = Some(match (meant, log.first(), log.last()) {
        (Some(meant), _, _) => format!("did you mean {meant}? All checkpoints: ckptfs log"),
        (None, Some(newest), Some(oldest)) if newest.id != oldest.id => {
            format!("checkpoints {} to {} are kept: ckptfs log", oldest.id, newest.id)
        }
        (None, Some(only), _) => format!("the only checkpoint is {}: ckptfs log", only.id),
        (None, None, _) => "there is no checkpoint yet; make one: ckptfs checkpoint".into(),
    });
    error
}

/// The number of letters to insert, delete, replace or swap with the next that make `a` into `b` (optimal string alignment).
fn slips(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted() {
        assert_eq!(
            [slips("", "abc"), slips("abc", "abc"), slips("latets", "latest"), slips("ab", "ba"), slips("kitten", "sitting")],
            [3, 0, 1, 1, 3]
        );
    }

    #[test]
    fn only_a_near_name_is_suggested() {
        assert_eq!(nearest("lates", ["v1", "latest", "live"]), Some("latest"));
        assert_eq!(nearest("V2", ["v1", "v2"]), Some("v2"));
        assert_eq!(nearest("before-refactro", ["before-refactor", "v1"]), Some("before-refactor"));
        assert_eq!(nearest("nothing-like-it", ["v1", "latest"]), None);
        assert_eq!(nearest("x", []), None);
    }
}
