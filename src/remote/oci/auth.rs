//! Credentials for a registry: a name and a password from the environment, or from the files of
//! docker and podman. The files are only read: a credential helper that one names is not run.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The variables, which take precedence over files.
pub const USER_VARIABLE: &str = "CKPTFS_REGISTRY_USER";
/// See [`USER_VARIABLE`].
pub const PASSWORD_VARIABLE: &str = "CKPTFS_REGISTRY_PASSWORD";

/// Size limit of a credentials file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The key of docker.io in docker's file.
const DOCKER_IO: &str = "https://index.docker.io/v1/";

/// A name and a password. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The name.
    pub user: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login")
    }
}

/// The result of a search for credentials.
#[derive(Clone, Debug, Default)]
pub struct FoundLogin {
    /// The credentials; `None`: anonymous access.
    pub login: Option<Login>,
    /// A file names a credential helper, which was not run.
    pub helper: bool,
}

/// Finds the credentials for `HOST[:PORT]` and a name there. `variable` reads the environment.
pub fn find(host: &str, name: &str, variable: impl Fn(&str) -> Option<String>) -> FoundLogin {
    if let (Some(user), Some(password)) = (variable(USER_VARIABLE), variable(PASSWORD_VARIABLE)) {
        return FoundLogin {
            login: Some(Login { user, password }),
            helper: false,
        };
    }
    let mut found = FoundLogin::default();
    for file in files(&variable) {
        let in_file =
            read(&file).map_or_else(FoundLogin::default, |said| of_file(&said, host, name));
        found.helper |= in_file.helper;
        if in_file.login.is_some() {
            found.login = in_file.login;
            break;
        }
    }
    found
}

/// Returns the files of podman and docker, in podman's order.
fn files(variable: &impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let of = |name: &str, rest: &str| {
        let dir = variable(name).filter(|dir| !dir.is_empty())?;
        Some(Path::new(&dir).join(rest))
    };
    let files = [
        variable("REGISTRY_AUTH_FILE").map(PathBuf::from),
        of("XDG_RUNTIME_DIR", "containers/auth.json"),
        of("XDG_CONFIG_HOME", "containers/auth.json"),
        of("HOME", ".config/containers/auth.json"),
        of("DOCKER_CONFIG", "config.json").or_else(|| of("HOME", ".docker/config.json")),
    ];
    files.into_iter().flatten().collect()
}

fn read(file: &Path) -> Option<Value> {
    let meta = std::fs::metadata(file).ok()?;
    // Opening a FIFO would block.
    if !meta.is_file() || meta.len() > FILE_BYTES_MAX {
        return None;
    }
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// Finds the credentials in one file: the longest key that is a prefix of the place.
fn of_file(said: &Value, host: &str, name: &str) -> FoundLogin {
    let place = format!("{host}/{name}");
    let mut key = place.as_str();
    let mut keys = vec![key.to_owned()];
    while let Some((above, _)) = key.rsplit_once('/') {
        key = above;
        keys.push(key.to_owned());
    }
    keys.extend(["https://", "http://"].map(|scheme| format!("{scheme}{host}")));
    if host == "docker.io" {
        keys.push(DOCKER_IO.to_owned());
    }
    let login = keys
        .iter()
        .filter_map(|key| said.get("auths")?.get(key)?.get("auth")?.as_str())
        .find_map(decode);
    let helper = said.get("credsStore").is_some()
        || said
            .get("credHelpers")
            .is_some_and(|helpers| helpers.get(host).is_some());
    FoundLogin {
        helper: helper && login.is_none(),
        login,
    }
}

/// Decodes base64 of `USER:PASSWORD`.
fn decode(auth: &str) -> Option<Login> {
    let text = String::from_utf8(STANDARD.decode(auth).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    (!user.is_empty()).then(|| Login {
        user: user.to_owned(),
        // Old versions of docker pad it.
        password: password.trim_end_matches('\0').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(user: &str, password: &str) -> Option<Login> {
        Some(Login {
            user: user.into(),
            password: password.into(),
        })
    }

    #[test]
    fn the_longest_key_counts_and_a_helper_is_only_told() {
        let auth = |text: &str| serde_json::json!({"auth": STANDARD.encode(text)});
        let said = serde_json::json!({
            "auths": {
                "h.x": auth("all:1"), "h.x/a": auth("a:2:3"), "h.x/a/b/c": auth("c:4"), "h.y": {}, "h.z": auth(":5"),
                "https://index.docker.io/v1/": auth("hub:6"),
            },
            "credHelpers": {"h.y": "secret"},
        });
        let of = |host, name| of_file(&said, host, name);
        assert_eq!(of("h.x", "b").login, login("all", "1"));
        assert_eq!(of("h.x", "a/b").login, login("a", "2:3"));
        assert_eq!(of("h.x", "a/b/c").login, login("c", "4"));
        assert_eq!(of("docker.io", "library/a").login, login("hub", "6"));
        assert!(of("h.y", "a").helper && of("h.y", "a").login.is_none());
        assert!(!of("h.z", "a").helper && of("h.z", "a").login.is_none());
        for odd in [
            serde_json::json!([]),
            serde_json::json!({"auths": 3}),
            serde_json::json!({"auths": {"h.x": {"auth": "%"}}}),
        ] {
            assert!(of_file(&odd, "h.x", "a").login.is_none());
        }
    }

    #[test]
    fn the_environment_goes_before_files_and_is_not_shown() {
        let dir = tempfile::tempdir().expect("directory");
        let file = dir.path().join("auth.json");
        let text = serde_json::json!({"auths": {"h.x": {"auth": STANDARD.encode("f:secret")}}});
        std::fs::write(&file, text.to_string()).expect("written");
        let path = file.to_string_lossy().into_owned();
        let both = |name: &str| match name {
            USER_VARIABLE => Some("e".to_owned()),
            PASSWORD_VARIABLE => Some("q".to_owned()),
            "REGISTRY_AUTH_FILE" => Some(path.clone()),
            _ => None,
        };
        assert_eq!(find("h.x", "a", both).login, login("e", "q"));
        let found = find("h.x", "a", |name| {
            both(name).filter(|_| name != USER_VARIABLE)
        });
        assert_eq!(found.login, login("f", "secret"));
        assert!(!format!("{found:?}").contains("secret"));
        assert!(find("h.y", "a", |_| None).login.is_none());
    }
}
