//! Options of a volume, as passed by `docker volume create -o NAME=VALUE`. Unknown options are
//! rejected: an engine stores options without validation, so a misspelt one would go unnoticed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::name;
use ckptfs_api::{Code, VerbError, VerbResult, error, hinted};
use ckptfs_core::engine::settings::{self, Value};

/// All options with their values.
pub const OPTIONS: [(&str, &str); 15] = [
    (
        "from",
        "a volume, or VOLUME@CHECKPOINT, to begin with a copy of",
    ),
    (
        "checkpoint",
        "the checkpoint of `from`; its newest state if not given",
    ),
    ("fromSnapshot", "the same as checkpoint"),
    (
        "remote",
        "the name of a remote, which has the volume of `from`",
    ),
    (
        "source",
        "the absolute path of an existing directory, which is mounted in place",
    ),
    (
        "size",
        "a size of at least 300M, such as 10G, for the volume and its history together",
    ),
    ("uid", "a number: the owner of the root directory"),
    ("gid", "a number: the group of the root directory"),
    ("mode", "an octal mode of the root directory, such as 0750"),
    ("readonly", "true or false"),
    (
        "ephemeral",
        "true or false: a new copy of `from` for each use",
    ),
    (
        "auto",
        "mount, unmount, a duration such as 15m, or several of them separated by commas",
    ),
    (
        "keep",
        "up to four durations such as 4h:1d:2w:1y: how long to keep everything, one per hour, one per day, one per week",
    ),
    ("on-remove", "trash or delete"),
    ("snapdir", "hidden or visible"),
];

/// Minimum size of a filesystem made by mkfs.xfs.
pub const SIZE_BYTES_MIN: u64 = 300 << 20;
/// Minimum interval of automatic checkpoints.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// Action on removal of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRemove {
    /// Move it to the trash, where it can be recovered.
    Trash,
    /// Delete it.
    Delete,
}

/// Automatic checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auto {
    /// At the start of the first use.
    pub mount: bool,
    /// At the end of the last use.
    pub unmount: bool,
    /// At this interval.
    pub every: Option<Duration>,
}

/// Parsed options of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The source volume and its state.
    pub from: Option<(String, Option<String>)>,
    /// The remote that has the source volume, if it is not in this pool.
    pub remote: Option<String>,
    /// The existing directory to serve.
    pub source: Option<PathBuf>,
    /// Size limit in bytes.
    pub size: Option<u64>,
    /// Owner of the root directory.
    pub uid: Option<u32>,
    /// Group of the root directory.
    pub gid: Option<u32>,
    /// Mode of the root directory.
    pub mode: Option<u32>,
    /// The volume is read-only.
    pub readonly: bool,
    /// A new copy for each use.
    pub ephemeral: bool,
    /// Automatic checkpoints.
    pub auto: Auto,
    /// Configuration keys and their values.
    pub keep: Vec<(&'static str, String)>,
    /// Action on removal; `None`: the default of the pool.
    pub on_remove: Option<OnRemove>,
    /// Visibility of `.snapshots` in listings.
    pub snapdir: Option<&'static str>,
}

impl Options {
    /// Parses options.
    ///
    /// # Errors
    /// `unknown-option`, with the most similar option; `bad-option`.
    pub fn parse(given: &BTreeMap<String, String>) -> VerbResult<Options> {
        let mut options = Options::default();
        let mut checkpoint = None;
        for (name, value) in given {
            let wrong = || bad(name, value);
            match name.as_str() {
                "from" => {
                    let from = name::parse(value)?;
                    if from.branch.is_some() {
                        return Err(wrong());
                    }
                    options.from = Some((from.volume, from.checkpoint));
                }
                "checkpoint" | "fromSnapshot" => {
                    name::check_checkpoint(value)?;
                    if checkpoint.replace(value.clone()).is_some() {
                        return Err(error(
                            Code::BadOption,
                            "checkpoint and fromSnapshot are the same option: give only one of them",
                        ));
                    }
                }
                "remote" => {
                    name::check(value).map_err(|_| wrong())?;
                    options.remote = Some(value.clone());
                }
                "source" => {
                    let path = Some(PathBuf::from(value)).filter(|path| path.is_absolute());
                    options.source = Some(path.ok_or_else(wrong)?);
                }
                "size" => {
                    let size = bytes(value).filter(|size| *size >= SIZE_BYTES_MIN);
                    options.size = Some(size.ok_or_else(wrong)?);
                }
                "uid" => options.uid = Some(id(value).ok_or_else(wrong)?),
                "gid" => options.gid = Some(id(value).ok_or_else(wrong)?),
                "mode" => options.mode = Some(mode(value).ok_or_else(wrong)?),
                "readonly" => options.readonly = flag(value).ok_or_else(wrong)?,
                "ephemeral" => options.ephemeral = flag(value).ok_or_else(wrong)?,
                "auto" => options.auto = auto(value).ok_or_else(wrong)?,
                "keep" => options.keep = keep(value).ok_or_else(wrong)?,
                "on-remove" => options.on_remove = Some(on_remove(value).ok_or_else(wrong)?),
                "snapdir" => {
                    let mut known = ["hidden", "visible"].into_iter();
                    let word = known.find(|known| known == value);
                    options.snapdir = Some(word.ok_or_else(wrong)?);
                }
                _ => return Err(unknown(name)),
            }
        }
        options.complete(checkpoint)
    }

    /// Combines `checkpoint` with `from`, and rejects conflicting options.
    fn complete(mut self, checkpoint: Option<String>) -> VerbResult<Options> {
        match (&mut self.from, checkpoint) {
            (None, Some(_)) => {
                return Err(hinted(
                    Code::BadOption,
                    "checkpoint needs a volume that it is of",
                    "name it: from=VOLUME",
                ));
            }
            (Some((_, Some(named))), Some(also)) if *named != also => {
                return Err(error(
                    Code::BadOption,
                    format!("from names checkpoint {named}, and checkpoint {also}"),
                ));
            }
            (Some((_, state)), Some(named)) => *state = Some(named),
            (_, None) => {}
        }
        if self.ephemeral && self.from.is_none() {
            return Err(hinted(
                Code::BadOption,
                "ephemeral=true needs a volume to copy",
                "name it: from=VOLUME",
            ));
        }
        if self.remote.is_some() && self.from.is_none() {
            return Err(hinted(
                Code::BadOption,
                "remote needs a volume that is there",
                "name it: from=VOLUME",
            ));
        }
        if self.remote.is_some() && self.ephemeral {
            return Err(hinted(
                Code::BadOption,
                "a volume that is in a remote would be fetched at each use",
                "make a volume of it, and ephemeral copies of that",
            ));
        }
        let alone = [
            self.from.is_some(),
            self.size.is_some(),
            self.ephemeral,
            self.on_remove == Some(OnRemove::Trash),
        ];
        if self.source.is_some() && alone.contains(&true) {
            return Err(error(
                Code::BadOption,
                "source mounts a directory as it is: it cannot be combined with from, size, ephemeral or on-remove=trash",
            ));
        }
        if self.source.is_some()
            && (self.uid.is_some() || self.gid.is_some() || self.mode.is_some())
        {
            return Err(error(
                Code::BadOption,
                "source mounts a directory as it is: set its owner and mode there, not with uid, gid or mode",
            ));
        }
        Ok(self)
    }
}

fn bad(name: &str, value: &str) -> VerbError {
    let wanted = OPTIONS
        .iter()
        .find(|(known, _)| *known == name)
        .map_or("", |(_, wanted)| wanted);
    hinted(
        Code::BadOption,
        format!("{name}={value} is not valid"),
        format!("{name} takes {wanted}"),
    )
}

fn unknown(name: &str) -> VerbError {
    let known: Vec<String> = OPTIONS
        .iter()
        .map(|(known, _)| (*known).to_owned())
        .collect();
    let hint = match settings::nearest_of(name, &known) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("the options are {}", known.join(", ")),
    };
    hinted(
        Code::UnknownOption,
        format!("there is no option {name:?}"),
        hint,
    )
}

/// Accepts `-o readonly` without a value.
fn flag(value: &str) -> Option<bool> {
    match value {
        "" | "true" | "1" | "yes" => Some(true),
        "false" | "0" | "no" => Some(false),
        _ => None,
    }
}

/// chown(2) interprets the maximum value as "unchanged".
fn id(value: &str) -> Option<u32> {
    value.parse().ok().filter(|id| *id != u32::MAX)
}

fn mode(value: &str) -> Option<u32> {
    u32::from_str_radix(value, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777 && value.bytes().all(|byte| byte.is_ascii_digit()))
}

fn on_remove(value: &str) -> Option<OnRemove> {
    match value {
        "trash" => Some(OnRemove::Trash),
        "delete" => Some(OnRemove::Delete),
        _ => None,
    }
}

fn bytes(value: &str) -> Option<u64> {
    match settings::parse_value(settings::find("retention.max-size")?, value) {
        Ok(Value::Number(bytes)) => Some(bytes),
        _ => None,
    }
}

fn span(value: &str) -> Option<Duration> {
    match settings::parse_value(settings::find("retention.keep-within")?, value) {
        Ok(Value::Span(span, _)) => Some(span),
        _ => None,
    }
}

fn auto(value: &str) -> Option<Auto> {
    let mut auto = Auto::default();
    for word in value.split(',') {
        match word.trim() {
            "mount" => auto.mount = true,
            "unmount" => auto.unmount = true,
            time => auto.every = Some(span(time).filter(|every| *every >= EVERY_MIN)?),
        }
    }
    Some(auto)
}

/// Converts `keep` to configuration keys that keep at least as much.
fn keep(value: &str) -> Option<Vec<(&'static str, String)>> {
    const UNITS: [(&str, u64); 3] = [
        ("retention.keep-hourly", 3600),
        ("retention.keep-daily", 86_400),
        ("retention.keep-weekly", 604_800),
    ];
    let mut spans = value.split(':');
    let within = spans.next().and_then(year_or_span)?;
    let mut keys = vec![("retention.keep-within", format!("{}s", within.as_secs()))];
    let mut before = within;
    let mut units = UNITS.iter();
    for text in spans {
        let span = year_or_span(text).filter(|span| *span > before)?;
        let (key, seconds) = units.next()?;
        keys.push((key, span.as_secs().div_ceil(*seconds).to_string()));
        before = span;
    }
    keys.push(("retention.auto", "1h".to_owned()));
    // The driver requests its own checkpoints (`auto`), which therefore are not automatic for the
    // daemon; `keep` applies to all.
    keys.push(("retention.manual", "true".to_owned()));
    Some(keys)
}

/// As [`span`], but also accepts years (`2y`); the exact number of days does not matter here.
fn year_or_span(text: &str) -> Option<Duration> {
    match text.strip_suffix('y').map(str::parse::<u32>) {
        Some(Ok(years @ 1..=100)) => Some(Duration::from_secs(u64::from(years) * 366 * 86_400)),
        _ => span(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[(&str, &str)]) -> VerbResult<Options> {
        Options::parse(
            &given
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn what_is_given_is_understood() {
        let all = [
            ("from", "a"),
            ("checkpoint", "v1"),
            ("size", "1G"),
            ("uid", "70"),
            ("mode", "0750"),
            ("readonly", ""),
            ("auto", "mount,15m"),
        ];
        let options = parse(&all).unwrap();
        assert_eq!(options.from, Some(("a".into(), Some("v1".into()))));
        assert_eq!(
            (options.size, options.uid, options.mode, options.readonly),
            (Some(1 << 30), Some(70), Some(0o750), true)
        );
        assert_eq!(
            options.auto,
            Auto {
                mount: true,
                unmount: false,
                every: Some(Duration::from_secs(900))
            }
        );
        assert_eq!(parse(&[("from", "a@v1")]).unwrap().from, options.from);
        assert_eq!(
            parse(&[("from", "a"), ("fromSnapshot", "v1")])
                .unwrap()
                .from,
            options.from
        );
        assert_eq!(parse(&[]).unwrap(), Options::default());
    }

    #[test]
    fn what_is_not_known_is_refused_with_the_nearest() {
        let hint = |name| {
            parse(&[(name, "x")]).map_err(|error| (error.code, error.hint.unwrap_or_default()))
        };
        assert_eq!(
            hint("form"),
            Err((Code::UnknownOption, "did you mean from?".into()))
        );
        assert_eq!(
            hint("onremove"),
            Err((Code::UnknownOption, "did you mean on-remove?".into()))
        );
        assert!(hint("type").is_err_and(|(_, hint)| hint.starts_with("the options are from, ")));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let bad: [&[(&str, &str)]; 25] = [
            &[("remote", "home")],
            &[("remote", "../home"), ("from", "a")],
            &[("remote", "home"), ("from", "a"), ("ephemeral", "true")],
            &[("size", "10M")],
            &[("size", "much")],
            &[("uid", "-1")],
            &[("gid", "4294967295")],
            &[("mode", "999")],
            &[("mode", "10000")],
            &[("readonly", "maybe")],
            &[("ephemeral", "true")],
            &[("checkpoint", "1")],
            &[("from", "a@1"), ("checkpoint", "2")],
            &[("from", "a"), ("checkpoint", "1"), ("fromSnapshot", "1")],
            &[("source", "relative")],
            &[("source", "/a"), ("size", "1G")],
            &[("source", "/a"), ("uid", "1")],
            &[("auto", "sometimes")],
            &[("auto", "10ms")],
            &[("keep", "1d:4h")],
            &[("keep", "1h:1d:1w:1y:2y")],
            &[("keep", "")],
            &[("on-remove", "keep")],
            &[("snapdir", "there")],
            &[("from", "../a")],
        ];
        for given in bad {
            assert!(parse(given).is_err(), "{given:?}");
        }
    }

    #[test]
    fn keep_becomes_rules_that_keep_no_less() {
        let keys = parse(&[("keep", "4h:1d:2w:2y")]).unwrap().keep;
        let expected = [
            ("within", "14400s"),
            ("hourly", "24"),
            ("daily", "14"),
            ("weekly", "105"),
        ];
        for (key, value) in expected {
            assert!(
                keys.contains(&(
                    settings::find(&format!("retention.keep-{key}"))
                        .unwrap()
                        .name,
                    value.to_owned()
                )),
                "{keys:?}"
            );
        }
        assert!(keys.iter().all(|(key, value)| {
            settings::parse_value(settings::find(key).unwrap(), value).is_ok()
        }));
    }
}
