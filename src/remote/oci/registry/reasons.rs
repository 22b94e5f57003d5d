//! Descriptions of failures of a registry or the connection.

use crate::http::first_cause;

/// Limit of characters shown.
const SHOWN_MAX: usize = 300;

/// Describes a failure and its first cause, without the URL, which may contain a token.
pub(super) fn plainly(cause: &reqwest::Error) -> String {
    let mut text = match cause {
        _ if cause.is_timeout() => "no answer in time".to_owned(),
        _ if cause.is_connect() => "no connection".to_owned(),
        _ if cause.is_redirect() => "it redirects to where nobody may go".to_owned(),
        _ => "the connection was cut".to_owned(),
    };
    let why = first_cause(cause);
    if std::error::Error::source(cause).is_some() {
        text.push_str(&format!(": {why}"));
    }
    text
}

/// Extracts the messages from the JSON of an error response.
pub(super) fn reason_of(body: &[u8]) -> String {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let errors = body.get("errors").and_then(|errors| errors.as_array());
    let messages = errors.into_iter().flatten().filter_map(|error| {
        let message = error.get("message").and_then(|message| message.as_str());
        message.or_else(|| error.get("code").and_then(|code| code.as_str()))
    });
    let mut text: String = messages
        .flat_map(|message| [": ", message])
        .collect::<String>();
    text.retain(|letter| !letter.is_control());
    text.chars().take(SHOWN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_short_and_harmless() {
        let body = br#"{"errors":[{"code":"DENIED","message":"no\u001b[31m way"},{"code":"X"}]}"#;
        assert_eq!(reason_of(body), ": no[31m way: X");
        for odd in ["", "[]", "{\"errors\":3}", "<html>", "{\"errors\":[1,{}]}"] {
            assert_eq!(reason_of(odd.as_bytes()), "", "{odd}");
        }
        let long = format!("{{\"errors\":[{{\"message\":\"{}\"}}]}}", "x".repeat(9000));
        assert_eq!(reason_of(long.as_bytes()).len(), SHOWN_MAX);
    }
}
