//! Runs rclone, which serves one of its remotes as a REST server on the loopback address, for this
//! process only.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};

use super::idle_client::brief;
use super::rest::Login;
use crate::http::idle;
use ckptfs_api::{Code, VerbError, VerbResult, hinted};
use ckptfs_sys::lock::Mutex;

/// The message with which it reports its address, in brackets.
const SERVES: &str = "Serving restic REST API on ";
/// Size limit of a line; the rest is cut.
const LINE_BYTES_MAX: u64 = 4 << 10;

/// A running rclone. Dropping it kills the process.
#[derive(Debug)]
pub struct Rclone {
    child: Child,
    address: String,
    password: String,
}

/// The user name for the server; its password is known only to this process.
const USER: &str = "ckptfs";

impl Rclone {
    /// Starts rclone. The location of the remote and the credentials are in rclone's configuration
    /// or in environment variables.
    ///
    /// # Errors
    /// `remote-failed`.
    pub fn start(remote: &str) -> VerbResult<Rclone> {
        let password = password()?;
        let child = Command::new("rclone")
            .args(["serve", "restic", "--addr", "127.0.0.1:0", "--", remote])
            .env("RCLONE_USER", USER)
            .env("RCLONE_PASS", &password)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|cause| {
                failed(
                    &format!("it does not start: {cause}"),
                    "rclone (rclone.org) must be installed, and on PATH",
                )
            })?;
        let mut rclone = Rclone {
            child,
            address: String::new(),
            password,
        };
        let Some(said) = rclone.child.stderr.take() else {
            return Err(failed("it says nothing", "look at rclone"));
        };
        let (send, receive) = sync_channel(1);
        let last = Arc::<Mutex<String>>::default();
        let kept = Arc::clone(&last);
        std::thread::Builder::new()
            .name("rclone".to_owned())
            .spawn(move || listen(said, &send, &kept))
            .map_err(|cause| failed(&cause.to_string(), "run the same command again"))?;
        let hint = "rclone lsd REMOTE:PATH shows whether rclone itself reaches it";
        // It contacts the remote first.
        let most = idle() * 2;
        match receive.recv_timeout(most) {
            Ok(address) => rclone.address = address,
            Err(RecvTimeoutError::Timeout) => {
                let why = format!("it does not reach the remote within {} s", most.as_secs());
                return Err(failed(&why, hint));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failed(&format!("it has ended: {}", &*last.lock()), hint));
            }
        }
        Ok(rclone)
    }

    /// Returns the address of the server.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the credentials for the server.
    pub fn login(&self) -> Login {
        (USER.to_owned(), self.password.clone())
    }
}

impl Drop for Rclone {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn failed(why: &str, hint: &str) -> VerbError {
    hinted(Code::RemoteFailed, format!("rclone: {why}"), hint)
}

/// Returns 128 random bits of the kernel, in hexadecimal.
fn password() -> VerbResult<String> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|cause| {
        failed(
            &format!("no password: {cause}"),
            "run the same command again",
        )
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads its messages until it ends, and sends the address when it serves.
fn listen(said: ChildStderr, serves: &SyncSender<String>, last: &Mutex<String>) {
    let mut said = BufReader::new(said);
    loop {
        let mut line = Vec::new();
        match (&mut said)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
        {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line);
        if let Some(address) = address_in(&line) {
            let _ = serves.try_send(address);
            continue;
        }
        // Date, time and level precede the message.
        let line = brief(line.split_once(": ").map_or(&*line, |(_, said)| said));
        tracing::debug!("rclone: {line}");
        *last.lock() = line;
    }
}

/// Parses `... Serving restic REST API on [http://127.0.0.1:4711/]`; before rclone 1.61 without
/// brackets.
fn address_in(line: &str) -> Option<String> {
    let address = line.split_once(SERVES)?.1.trim();
    let address = address.trim_matches(['[', ']']);
    let address = address.split_whitespace().next()?;
    address
        .starts_with("http://127.0.0.1:")
        .then(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_it_serves_is_read_in_what_it_says() {
        let at = "http://127.0.0.1:4711/";
        for line in [
            format!("2026/11/27 07:00:00 NOTICE: Serving restic REST API on [{at}]\n"),
            format!("x Serving restic REST API on {at}"),
        ] {
            assert_eq!(address_in(&line).as_deref(), Some(at));
        }
        for line in [
            "",
            "Serving restic REST API on ",
            "Serving restic REST API on [http://evil/]",
        ] {
            assert_eq!(address_in(line), None, "{line}");
        }
    }
}
