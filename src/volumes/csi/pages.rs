//! Paginated lists. They are in order of creation, so that new items appear at the end; a token
//! names the last item of a page.

use tonic::Status;

/// A position in a list: creation time, and id.
pub type PageKey = (i64, String);

fn token_of((at, id): &PageKey) -> String {
    format!("{at}:{id}")
}

fn key_of(token: &str) -> Result<PageKey, Status> {
    let bad = || Status::aborted("starting_token was not issued by this driver");
    let (at, id) = token.split_once(':').ok_or_else(bad)?;
    let at: i64 = at.parse().map_err(|_| bad())?;
    let key = (at, id.to_owned());
    if token_of(&key) == token && !id.is_empty() {
        Ok(key)
    } else {
        Err(bad())
    }
}

/// Returns a page of `all`, and the token of the next one, which is empty at the end.
pub fn page<T>(
    mut all: Vec<(PageKey, T)>,
    entries_max: i32,
    token: &str,
) -> Result<(Vec<T>, String), Status> {
    let entries_max = usize::try_from(entries_max)
        .map_err(|_| Status::invalid_argument("max_entries is negative"))?;
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    if !token.is_empty() {
        let after = key_of(token)?;
        all.retain(|(key, _)| *key > after);
    }
    let taken = if entries_max == 0 {
        all.len()
    } else {
        entries_max.min(all.len())
    };
    let next = if taken < all.len() {
        taken
            .checked_sub(1)
            .and_then(|last| all.get(last))
            .map(|(key, _)| token_of(key))
    } else {
        None
    };
    all.truncate(taken);
    Ok((
        all.into_iter().map(|(_, value)| value).collect(),
        next.unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ids: &[(i64, &str)]) -> Vec<(PageKey, String)> {
        ids.iter()
            .map(|(at, id)| ((*at, (*id).to_owned()), (*id).to_owned()))
            .collect()
    }

    #[test]
    fn pages_show_each_once_whatever_comes_and_goes_meanwhile() {
        let (first, token) = page(list(&[(3, "c"), (1, "z"), (2, "b")]), 2, "").unwrap();
        assert_eq!(first, ["z", "b"]);
        // "b", which the token names, is deleted; "a" is new.
        let (second, end) = page(list(&[(3, "c"), (1, "z"), (4, "a")]), 2, &token).unwrap();
        assert_eq!(
            (second, end.as_str()),
            (vec!["c".to_owned(), "a".to_owned()], "")
        );
        assert_eq!(page(list(&[]), 0, "").unwrap(), (Vec::new(), String::new()));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for token in [
            "x",
            "invalid-token",
            ":",
            "1:",
            "x:y",
            "+1:a",
            "01:a",
            " 1:a",
        ] {
            assert_eq!(
                page(list(&[(1, "a")]), 0, token).unwrap_err().code(),
                tonic::Code::Aborted,
                "{token}"
            );
        }
        assert_eq!(
            page(list(&[]), -1, "").unwrap_err().code(),
            tonic::Code::InvalidArgument
        );
    }
}
