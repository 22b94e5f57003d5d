//! Authentication at a registry: with a name and a password, or with a token that another server
//! issues for them.

use http_auth::ChallengeRef;
use reqwest::header::{HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Response, StatusCode, Url};

use super::{ANSWER_MAX, Registry, Tried};
use crate::oci::auth::Login;

const TOKEN_BYTES_MAX: u64 = 1 << 20;

impl Registry {
    /// Sets the credentials that the registry demands. Returns `false` if it accepts none that we
    /// have, or has rejected them already.
    pub(super) async fn introduce(&self, answer: &Response) -> Tried<bool> {
        if !self.is_own(answer.url()) {
            return Ok(false);
        }
        let before = self.said.borrow().clone();
        let headers: Vec<String> = answer
            .headers()
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|header| header.to_str().ok().map(str::to_owned))
            .collect();
        let challenges: Vec<ChallengeRef<'_>> = headers
            .iter()
            .filter_map(|header| http_auth::parse_challenges(header).ok())
            .flatten()
            .collect();
        let by = |scheme: &str| {
            challenges
                .iter()
                .find(|challenge| challenge.scheme.eq_ignore_ascii_case(scheme))
        };
        let said = match (by("bearer"), by("basic"), &self.known.login) {
            (Some(bearer), ..) => Some(self.token(bearer).await?),
            (None, Some(_), Some(Login { user, password })) => {
                Some(http_auth::basic::encode_credentials(user, password))
            }
            _ => None,
        };
        let said = said.and_then(|said| HeaderValue::from_str(&said).ok());
        let news = said.is_some() && said != before;
        self.said.replace(said);
        Ok(news)
    }

    /// Requests a token from the server that the registry names.
    async fn token(&self, challenge: &ChallengeRef<'_>) -> Tried<String> {
        let of = |key: &str| {
            let found = challenge
                .params
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(key));
            found.map(|(_, value)| value.to_unescaped())
        };
        let realm = of("realm").and_then(|realm| Url::parse(&realm).ok());
        let Some(mut url) = realm.filter(|url| url.scheme() == "https" || self.is_own(url)) else {
            return Err(self.failed("it names no server for tokens that could be asked by TLS"));
        };
        if let Some(service) = of("service") {
            url.query_pairs_mut().append_pair("service", &service);
        }
        url.query_pairs_mut().append_pair("scope", &self.scope);
        let mut request = self.http.get(url);
        if let Some(Login { user, password }) = &self.known.login {
            request = request.basic_auth(user, Some(password));
        }
        let answer = self.answer(request.send(), ANSWER_MAX).await?;
        let answer = self.expect(answer, StatusCode::OK).await?;
        let text = self.short(answer, TOKEN_BYTES_MAX, "the token").await?;
        let text: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let token = ["token", "access_token"]
            .iter()
            .find_map(|key| text.get(key)?.as_str());
        token
            .map(|token| format!("Bearer {token}"))
            .ok_or_else(|| self.failed("it gives no token"))
    }
}
