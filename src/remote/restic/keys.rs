//! Key files of a repository, and the key that the password opens.
//!
//! A key file defines the memory and work to derive a key from the password, and a server can send
//! any file without the password. Therefore all key files are read and checked before any key is
//! derived.

use rustic_core::repofile::{KeyFile, MasterKey};
use rustic_core::{FileType, ReadBackend};
use serde_json::json;

use super::{bad_password, failed};
use crate::limits::{KEY_WORK_MAX, Limits};
use ckptfs_api::{Code, VerbError, VerbResult, hinted};

const HOSTILE: &str =
    "look whether the address is the right one: ckptfs remote; the server may be hostile";

/// Finds the key file that the password opens.
///
/// # Errors
/// `bad-password`; `remote-failed`: the key files cannot be read, or exceed the limits.
pub fn find(backend: &dyn ReadBackend, password: &str, limits: Limits) -> VerbResult<MasterKey> {
    let (mut files, mut odd, mut work) = (Vec::new(), None, 0_u64);
    for (id, _) in backend.list_with_size(FileType::Key).map_err(failed)? {
        let bytes = backend.read_full(FileType::Key, &id).map_err(failed)?;
        let named = |why: String| {
            let hex = id.to_hex();
            let short = hex.get(..8).unwrap_or_default();
            hinted(
                Code::RemoteFailed,
                format!("the key file {short} of the repository {why}"),
                HOSTILE,
            )
        };
        let checked = serde_json::from_slice::<KeyFile>(&bytes)
            .map_err(|_| "is damaged".to_owned())
            .and_then(|file| cost(&file, limits).map(|cost| (file, cost)));
        match checked {
            Ok((file, cost)) => {
                work = work.saturating_add(cost);
                files.push(file);
            }
            Err(why) => drop(odd.get_or_insert(named(why))),
        }
    }
    if work > KEY_WORK_MAX {
        let what =
            "the key files of the repository ask for more work (N*r*p of scrypt) than the limit";
        return Err(hinted(Code::RemoteFailed, what, HOSTILE));
    }
    for file in files {
        match file.key_from_password(&password) {
            Ok(key) => {
                let (encrypt, k, r) = key.to_keys();
                return master(&encrypt, &k, &r);
            }
            // The key of another password.
            Err(cause) if cause.is_code("C001") => {}
            Err(cause) => drop(odd.get_or_insert(failed(cause))),
        }
    }
    Err(odd.unwrap_or_else(bad_password))
}

/// Returns the work to derive a key, `N * r * p`.
fn cost(file: &KeyFile, limits: Limits) -> Result<u64, String> {
    let (n, r, p) = (u64::from(file.n), u64::from(file.r), u64::from(file.p));
    if file.kdf != "scrypt" || !n.is_power_of_two() || n < 2 || r == 0 || p == 0 {
        return Err("has parameters that no key is derived with".to_owned());
    }
    let memory = r.saturating_mul(n + p).saturating_mul(128);
    let (most, mib) = (limits.key_memory(), |bytes: u64| bytes.div_ceil(1 << 20));
    if memory > most {
        let (memory, most) = (mib(memory), mib(most));
        return Err(format!(
            "asks for {memory} MiB of memory, and not at most {most} MiB"
        ));
    }
    let work = n.saturating_mul(r).saturating_mul(p);
    if work > KEY_WORK_MAX {
        return Err(format!(
            "asks for more work (N*r*p of scrypt) than {KEY_WORK_MAX}"
        ));
    }
    Ok(work)
}

/// Converts a key to the library's type.
fn master(encrypt: &[u8], k: &[u8], r: &[u8]) -> VerbResult<MasterKey> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let text = |bytes| STANDARD.encode(bytes);
    let key = json!({"encrypt": text(encrypt), "mac": {"k": text(k), "r": text(r)}});
    serde_json::from_value(key).map_err(|cause| VerbError {
        code: Code::Internal,
        message: cause.to_string(),
        hint: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(n: u64, r: u64, p: u64) -> KeyFile {
        let file = json!({"kdf": "scrypt", "N": n, "r": r, "p": p, "data": "", "salt": ""});
        serde_json::from_value(file).expect("a key file")
    }

    #[test]
    fn what_a_key_file_asks_for_has_limits() {
        let limits = Limits::new();
        let cost = |n, r, p| cost(&file(n, r, p), limits);
        // rustic's parameters, and those of restic on fast machines.
        assert_eq!(cost(1 << 17, 8, 1), Ok(1 << 20));
        assert!(cost(1 << 15, 8, 16).is_ok());
        // 256 MiB minus the share of p, and one step above.
        assert!(cost(1 << 18, 7, 1).is_ok() && cost(1 << 18, 8, 1).is_err());
        assert!(cost(1 << 10, 1 << 10, 1 << 6).is_ok());
        assert!(cost(1 << 10, 1 << 10, (1 << 6) + 1).is_err());
        for (n, r, p) in [
            (0, 8, 1),
            (1, 8, 1),
            (3, 8, 1),
            (1 << 15, 0, 1),
            (1 << 15, 8, 0),
            (1 << 31, 8, 1),
            (2, 1 << 29, 1),
            (2, 1, u32::MAX.into()),
            (1 << 15, u32::MAX.into(), u32::MAX.into()),
        ] {
            assert!(cost(n, r, p).is_err(), "{n} {r} {p}");
        }
    }
}
