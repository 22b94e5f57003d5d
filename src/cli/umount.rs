//! `ckptfs umount`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::error::{Outcome, error, hinted};
use super::holders::{self, Holder, Use};
use super::locate::Located;
use super::tree_path::{beyond_links, normal};
use super::{Context, locate, mounts};
use crate::control::Client;
use crate::engine::api::{VerbError, VerbResult, host_path};
use crate::sys::MountPoint;

/// How long a daemon may take to put its store in order.
const END_TIMEOUT: Duration = Duration::from_secs(120);

/// How long to see whether a lazily unmounted daemon ends at once.
const LAZY_TIMEOUT: Duration = Duration::from_millis(500);

/// Users of a busy mount that are named.
const HOLDERS_SHOWN_MAX: usize = 5;

/// Unmount; an ordinary directory is left, with the history beside it
///
/// Returns when the daemon has ended. Where only the shells that this was called from are in the mount, it goes nevertheless.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mount, or the directory that it serves; the one that contains the working directory if not given
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Take it away although it is in use; the daemon ends when the last open file is closed
    #[arg(short, long)]
    lazy: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Unmounted<'a> {
    #[serde(serialize_with = "host_path::serialize")]
    unmounted: &'a Path,
    daemon_ended: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let cwd = locate::start(context.dir())?;
    let table = mounts::all()?;
    let mount = match &args.dir {
        Some(dir) => named(&table, &cwd.join(dir), dir)?,
        None => around(&table, &cwd)?,
    };
    // Our own working directory must not be what keeps the mount busy.
    let shell = std::env::current_dir();
    std::env::set_current_dir("/").map_err(|cause| super::error::io_error("/", cause))?;
    let ended = take_away(mount, args.lazy, context)?;
    // Dead mounts may have been below it.
    mounts::repair(&mount.at)?;
    if context.out.json {
        return Ok(context.out.json(&Unmounted { unmounted: &mount.at, daemon_ended: ended })?);
    }
    if ended {
        context.out.talk(&format!("{} is unmounted", mount.at.display()));
    } else {
        context.out.talk(&format!("{} is unmounted; the daemon ends when the last open file is closed", mount.at.display()));
    }
    if shell.is_ok_and(|shell| shell.starts_with(&mount.at)) {
        context.out.talk("this shell is still in what was the mount; enter the ordinary directory: cd .");
    }
    Ok(())
}

/// The mount of ours that is at `path`, or serves it.
fn named<'a>(table: &'a [MountPoint], path: &Path, shown: &Path) -> VerbResult<&'a MountPoint> {
    let path = real(path);
    if let Some(mount) = mounts::top(table, &path).filter(|mount| mounts::is_ours(mount)) {
        return Ok(mount);
    }
    if let Some(mount) = table.iter().rev().find(|mount| mounts::serves(mount, &path)) {
        return Ok(mount);
    }
    let shown = shown.display();
    match mounts::containing(table, &path).filter(|mount| mounts::is_ours(mount)) {
        Some(mount) => {
            let at = mount.at.display();
            Err(hinted("not-mounted", format!("{shown} is not a mount, but inside of one"), format!("ckptfs umount {at}")))
        }
        None => Err(error("not-mounted", format!("{shown} is not mounted by ckptfs"))),
    }
}

/// The mount of ours that contains `cwd`, or serves a directory that does.
fn around<'a>(table: &'a [MountPoint], cwd: &Path) -> VerbResult<&'a MountPoint> {
    let containing = mounts::containing(table, cwd).filter(|mount| mounts::is_ours(mount));
    let serving = || cwd.ancestors().find_map(|dir| table.iter().rev().find(|mount| mounts::serves(mount, dir)));
    containing
        .or_else(serving)
        .ok_or_else(|| hinted("not-mounted", format!("{} is in no directory that ckptfs serves", cwd.display()), "name the mount: ckptfs umount DIR"))
}

/// `path` without links, whether or not what is mounted there is alive.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| {
        let path = normal(path);
        beyond_links(&path).unwrap_or(path)
    })
}

/// Unmounts; whether the daemon has ended.
fn take_away(mount: &MountPoint, lazy: bool, context: &Context) -> VerbResult<bool> {
    let at = &mount.at;
    if mounts::is_dead(at) {
        return mounts::repair(at).map(|_| true);
    }
    let client = match locate::locate(at.clone()) {
        Ok(Located::Served(served)) if served.root == *at => Some(served.client),
        _ => None,
    };
    let Some(mut client) = client else {
        // Nobody to ask: another user's, seen by root; or a daemon that does not listen.
        mounts::unmount(at, lazy).map_err(|cause| busy(mount, mounts::unmount_error(at, cause)))?;
        return Ok(!lazy);
    };
    match client.unmount(lazy, false) {
        Ok(()) => wait(&mut client, lazy),
        Err(error) if error.code == "busy" && !lazy && only_ours(&users(mount)) => {
            client.unmount(true, true)?;
            wait(&mut client, false)
        }
        Err(error) if error.code == "protocol-version" || error.code == "protocol" => {
            context.out.warn(&error.message);
            mounts::unmount(at, lazy).map_err(|cause| busy(mount, mounts::unmount_error(at, cause)))?;
            wait(&mut client, lazy)
        }
        Err(error) => Err(busy(mount, error)),
    }
}

fn wait(client: &mut Client, lazy: bool) -> VerbResult<bool> {
    let ended = client.wait_ended(if lazy { LAZY_TIMEOUT } else { END_TIMEOUT });
    if !ended && !lazy {
        let message = format!("the directory is unmounted, but the daemon has not ended within {} s", END_TIMEOUT.as_secs());
        return Err(hinted("daemon-busy", message, "it may still be writing its store; .ckptfs/daemon.log may say more"));
    }
    Ok(ended)
}

fn users(mount: &MountPoint) -> Vec<Holder> {
    holders::of(mount.id, mount.dev)
}

/// Whether nobody but those who wait for this program is in the mount, and they only with their working directory.
fn only_ours(users: &[Holder]) -> bool {
    let ancestors = holders::ancestors();
    !users.is_empty() && users.iter().all(|user| user.by == Use::WorkingDirectory && ancestors.contains(&user.pid))
}

/// Says who keeps the mount busy.
fn busy(mount: &MountPoint, mut error: VerbError) -> VerbError {
    if error.code != "busy" {
        return error;
    }
    let users = users(mount);
    let mut named: Vec<String> = users.iter().take(HOLDERS_SHOWN_MAX).map(Holder::to_string).collect();
    if users.len() > named.len() {
        named.push(format!("and {} more", users.len() - named.len()));
    }
    if !named.is_empty() {
        error.message = format!("{}: {}", error.message, named.join(", "));
    }
    error
}
