//! `ckptfs doctor`.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{caches, mount};
use ckptfs_api::display::word;
use ckptfs_api::{Client, GetStatus, STORE_NAME, StoreDir, VerbResult, host_path};
use ckptfs_sys::{self as sys, Access, Errno, SysResult, host};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome, io_error, plain};
use ckptfs_ui::output::{Out, Role};
use ckptfs_ui::{locate, mounts};

/// Show the features of this machine and a directory, and the cost of each missing one
///
/// Exit status 1 if DIR cannot be mounted.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory to check; by default the working directory
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    /// As expected.
    Ok,
    /// It works, at a cost.
    Warn,
    /// Mounting would fail.
    Fail,
}

/// Result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    /// Name of the check.
    check: &'static str,
    state: Severity,
    found: String,
    /// Cost of the limitation.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<&'static str>,
    /// Suggested action.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct DoctorReport {
    #[serde(serialize_with = "host_path::serialize")]
    directory: PathBuf,
    ok: bool,
    findings: Vec<Finding>,
}

/// First kernel with multigrain timestamps, by which file times prove every change.
const EXACT_TIMES_KERNEL: (u32, u32) = (6, 13);

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let cwd = locate::start(context.dir())?;
    let given = args.dir.unwrap_or_else(|| PathBuf::from("."));
    let path = cwd.join(&given);
    let directory = path.canonicalize().unwrap_or(path);
    let mut findings = about_directory(&directory);
    let reflink = findings
        .iter()
        .all(|finding| finding.check != "reflink" || finding.state == Severity::Ok);
    findings.extend(about_machine(reflink));
    let ok = findings
        .iter()
        .all(|finding| finding.state != Severity::Fail);
    let report = DoctorReport {
        directory,
        ok,
        findings,
    };
    print(&report, &mut context.out)?;
    context.out.flush()?;
    if ok { Ok(()) } else { Err(Failure::No) }
}

fn print(report: &DoctorReport, out: &mut Out) -> Outcome {
    if out.json {
        return Ok(out.json(report)?);
    }
    for Finding {
        check,
        state,
        found,
        cost,
        hint,
    } in &report.findings
    {
        let state = match state {
            Severity::Ok => out.paint(Role::Good, "ok  "),
            Severity::Warn => out.paint(Role::Notice, "warn"),
            Severity::Fail => out.paint(Role::Bad, "FAIL"),
        };
        let line = format!("{state}  {check:<12}  {}", out.text(found));
        out.line(&line)?;
        for (label, text) in [("costs", *cost), ("do", hint.as_deref())] {
            if let Some(text) = text {
                let line = format!(
                    "                    {}",
                    out.paint(Role::Faint, &format!("{label}: {text}"))
                );
                out.line(&line)?;
            }
        }
    }
    let verdict = if report.ok {
        "can be mounted"
    } else {
        "cannot be mounted"
    };
    let line = format!(
        "{} {verdict}",
        out.text(&report.directory.display().to_string())
    );
    Ok(out.line(&line)?)
}

fn ok(check: &'static str, found: impl Into<String>) -> Finding {
    Finding {
        check,
        state: Severity::Ok,
        found: found.into(),
        cost: None,
        hint: None,
    }
}

fn warn(
    check: &'static str,
    found: impl Into<String>,
    cost: &'static str,
    hint: Option<&str>,
) -> Finding {
    Finding {
        check,
        state: Severity::Warn,
        found: found.into(),
        cost: Some(cost),
        hint: hint.map(str::to_owned),
    }
}

fn fail(check: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Finding {
    Finding {
        check,
        state: Severity::Fail,
        found: found.into(),
        cost: None,
        hint: Some(hint.into()),
    }
}

/// Opens the directory, or returns the finding that it cannot be opened.
fn open(directory: &Path) -> Result<OwnedFd, Finding> {
    let shown = directory.display();
    let bad = |found: String, hint| Err(fail("directory", found, hint));
    match std::fs::metadata(directory) {
        _ if mounts::is_dead(directory) => Err(warn(
            "directory",
            format!("{shown} is a mount whose daemon has died"),
            STALE_COST,
            Some(&format!("ckptfs mount {}", word(shown))),
        )),
        Err(cause) => bad(
            io_error(shown, cause).message,
            "name a directory that exists",
        ),
        Ok(found) if !found.is_dir() => {
            bad(format!("{shown} is not a directory"), "name a directory")
        }
        Ok(_) => sys::open_root(directory).or_else(|cause| {
            bad(
                io_error(shown, cause).message,
                "act as its owner, or as root",
            )
        }),
    }
}

fn about_directory(directory: &Path) -> Vec<Finding> {
    let dir = match open(directory) {
        Ok(dir) => dir,
        Err(finding) => return vec![finding],
    };
    let mut findings = vec![served(directory)];
    findings.extend(remote(directory));
    // Through a mount, the daemon opens the backing directory; without a mount, the path leads to
    // it.
    let store = StoreDir::of(directory).ok().flatten();
    let store = store.and_then(|store| match Client::of(&store) {
        Ok(mut daemon) => daemon.open_store().ok(),
        Err(_) => store.dir().try_clone().ok(),
    });
    let place = store.as_ref().unwrap_or(&dir);
    let filesystem = sys::statfs_fd(place).map(|info| sys::fs_name(info.fs_type));
    findings.push(match filesystem {
        Ok(name @ ("xfs" | "btrfs" | "apfs")) => ok("filesystem", name),
        Ok(name) => warn(
            "filesystem",
            name,
            "reflinks are expected on xfs, btrfs and apfs only; the next line shows what was tried",
            None,
        ),
        Err(cause) => fail("filesystem", plain(&cause.into()), "use a local filesystem"),
    });
    findings.push(match probe_reflink(place) {
        Ok(()) => ok("reflink", "works"),
        Err(Errno::EACCES | Errno::EPERM | Errno::EROFS) => fail(
            "reflink",
            "no permission to write: no history can be kept",
            "act as the owner of the directory, or as root",
        ),
        Err(Errno::ENOSPC | Errno::EDQUOT) => fail("reflink", "no space left", "free some space"),
        Err(cause) => warn(
            "reflink",
            format!("not here ({})", plain(&cause.into())),
            REFLINK_COST,
            Some("keep the project on xfs or btrfs"),
        ),
    });
    findings.push(ok("xattrs", XATTRS));
    findings.push(store_place(directory));
    let cache =
        |linker: caches::Linker| warn("caches", linker.does, CACHE_COST, Some(linker.setting));
    findings.extend(caches::linkers(directory).map(cache));
    findings
}

const STALE_COST: &str = "nothing in it can be accessed before it is repaired";
const XATTRS: &str = "supported; if you use neither ACLs nor capabilities, mount --xattrs=off saves two of nine requests per unpacked file, and one per first write";
const CACHE_COST: &str = "installed files take their space twice: hard links and reflinks from the cache cannot lead into the mount, which is another filesystem";
const REFLINK_COST: &str = "a changed file is copied once per checkpoint: time and space grow with the size of what changes";

/// Checks whether the directory is mounted.
fn served(directory: &Path) -> Finding {
    let Ok(table) = mounts::all() else {
        return ok("mounted", "unknown");
    };
    match table
        .iter()
        .find(|mount| mount.serves(directory) || (mount.is_ours() && mount.at == directory))
    {
        Some(mount) => ok("mounted", format!("at {}", mount.at.display())),
        None => ok("mounted", "no"),
    }
}

/// Checks whether the remote is reachable, of a tree that was mounted from one.
fn remote(directory: &Path) -> Option<Finding> {
    let mut served = locate::served_at_once(directory).ok()??;
    let origin = served.client.ask(GetStatus).ok()?.origin?;
    Some(match origin.trouble {
        Some(trouble) => warn("remote", trouble, "opening what is not here fails", None),
        None => ok("remote", super::status::remote(&origin)),
    })
}

/// Checks whether the store is, or can be, on the directory's filesystem.
fn store_place(directory: &Path) -> Finding {
    let store = directory.join(STORE_NAME);
    match (
        std::fs::symlink_metadata(&store),
        std::fs::metadata(directory),
    ) {
        (Err(_), _) => ok("store", "none yet"),
        (Ok(found), _) if found.is_symlink() => ok("store", "a daemon is running"),
        (Ok(found), _) if !found.is_dir() => fail(
            "store",
            format!("{} is not a directory", store.display()),
            "move it out of the way",
        ),
        (Ok(found), Ok(root)) if found.dev() != root.dev() => fail(
            "store",
            format!("{} is on another filesystem", store.display()),
            format!("unmount {}", store.display()),
        ),
        _ => ok("store", store.display().to_string()),
    }
}

/// Tests a reflink in `dir`, between unlinked files.
fn probe_reflink(dir: &OwnedFd) -> SysResult<()> {
    let name = format!(".ckptfs-doctor-{}", std::process::id());
    let file = |name: &str| -> SysResult<File> {
        let file = sys::create_file_at(dir, name.as_bytes(), Access::READ_WRITE, 0o600)?;
        sys::unlink_at(dir, name.as_bytes())?;
        Ok(file)
    };
    let (from, to) = (file(&name)?, file(&name)?);
    sys::write_all_at(&from, &[7; 8192], 0)?;
    sys::clone_file(&from, &to)
}

fn about_machine(reflink: bool) -> Vec<Finding> {
    let release = host::kernel_release();
    let kernel = kernel_version(&release);
    let mut findings = vec![device()];
    findings.push(match kernel {
        Some(version) if version >= EXACT_TIMES_KERNEL => ok("kernel", format!("Linux {release}")),
        Some(_) => warn(
            "kernel",
            format!("Linux {release}"),
            "before 6.13, two changes within one clock tick can leave the same time on a file, so the kernel's own writes could be missed: no passthrough",
            None,
        ),
        None => ok("kernel", if release.is_empty() { std::env::consts::OS.to_owned() } else { release }),
    });
    findings.push(passthrough(kernel, reflink));
    findings.extend(privileges());
    findings.push(stale());
    findings
}

/// Parses the major and minor number of `6.18.44-name`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn device() -> Finding {
    if cfg!(target_os = "macos") {
        return if Path::new("/Library/Filesystems/macfuse.fs").exists() {
            ok("fuse", "macFUSE is installed")
        } else {
            fail("fuse", "macFUSE is not installed", "https://macfuse.io")
        };
    }
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => ok(
            "fuse",
            format!(
                "/dev/fuse can be opened{}",
                helper_version()
                    .map(|version| format!("; {version}"))
                    .unwrap_or_default()
            ),
        ),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => fail(
            "fuse",
            "there is no /dev/fuse",
            "modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
        ),
        Err(cause) => fail(
            "fuse",
            ckptfs_ui::error::io_error("/dev/fuse", cause).message,
            "in a container: --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined",
        ),
    }
}

/// Returns the version line of fusermount3, such as `fusermount3 version: 3.14.0`.
fn helper_version() -> Option<String> {
    let (path, _) = helper()?;
    let output = std::process::Command::new(path)
        .arg("--version")
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .next()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
}

fn passthrough(kernel: Option<(u32, u32)>, reflink: bool) -> Finding {
    const COST: &str = "the daemon reads and writes files: each first read of a page, and each write, is a request to it";
    match kernel {
        _ if !reflink => warn(
            "passthrough",
            "not without reflink: the daemon does all I/O, and captures are copies",
            COST,
            None,
        ),
        Some(version) if version >= EXACT_TIMES_KERNEL && sys::has_sys_admin() => {
            ok("passthrough", "the kernel reads and writes files by itself")
        }
        Some(version) if version >= EXACT_TIMES_KERNEL => warn(
            "passthrough",
            "needs CAP_SYS_ADMIN",
            COST,
            Some("mount as root"),
        ),
        _ => warn(
            "passthrough",
            "needs a newer kernel (Linux 6.13)",
            COST,
            None,
        ),
    }
}

fn privileges() -> Vec<Finding> {
    let (uid, _) = sys::ids();
    if sys::has_sys_admin() {
        return vec![ok("privileges", format!("user {uid}, with CAP_SYS_ADMIN"))];
    }
    let mut findings = Vec::new();
    findings.push(match helper() {
        Some((path, true)) => ok(
            "privileges",
            format!("user {uid}; {} mounts for it", path.display()),
        ),
        Some((path, false)) => fail(
            "privileges",
            format!(
                "user {uid}; {} is not set-uid root and cannot mount for it",
                path.display()
            ),
            "reinstall the package fuse3, or mount as root",
        ),
        None if uid == 0 => fail(
            "privileges",
            "root without CAP_SYS_ADMIN",
            "in a container: --cap-add SYS_ADMIN --device /dev/fuse",
        ),
        None => fail(
            "privileges",
            format!("user {uid}, and there is no fusermount3"),
            "install the package fuse3, or mount as root",
        ),
    });
    if !mount::user_allow_other() {
        findings.push(warn(
            "allow_other",
            "unprivileged users may not let others into their mounts",
            "root, other users and containers of other users cannot enter the mount",
            Some("root can allow it: echo user_allow_other >> /etc/fuse.conf"),
        ));
    }
    findings
}

/// Returns the helper that mounts for ordinary users, and whether it is set-uid root.
fn helper() -> Option<(PathBuf, bool)> {
    let path = std::env::var_os("PATH")?;
    let candidates = std::env::split_paths(&path)
        .flat_map(|dir| [dir.join("fusermount3"), dir.join("fusermount")]);
    candidates
        .filter_map(|path| std::fs::metadata(&path).ok().map(|found| (path, found)))
        .next()
        .map(|(path, found)| {
            let set_uid_root = found.uid() == 0 && found.permissions().mode() & 0o4000 != 0;
            (path, set_uid_root)
        })
}

fn stale() -> Finding {
    let dead = || -> VerbResult<Vec<String>> {
        let table = mounts::all()?;
        let ours = table.iter().filter(|mount| mount.is_ours());
        Ok(ours
            .filter(|mount| mounts::is_dead(&mount.at))
            .map(|mount| mount.at.display().to_string())
            .collect())
    };
    match dead() {
        Ok(dead) if dead.is_empty() => ok("stale mounts", "none"),
        Ok(dead) => {
            let hint = dead
                .first()
                .map(|at| format!("ckptfs mount {0} (or ckptfs umount {0})", word(at)));
            warn(
                "stale mounts",
                dead.join(", "),
                "nothing in them can be accessed before they are repaired",
                hint.as_deref(),
            )
        }
        Err(error) => warn(
            "stale mounts",
            error.message,
            "cannot look for dead mounts",
            None,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_read() {
        assert_eq!(kernel_version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(kernel_version("5.10.0"), Some((5, 10)));
        assert_eq!(kernel_version("6.9-rc1"), Some((6, 9)));
        assert_eq!(kernel_version(""), None);
    }

    #[test]
    fn the_probe_leaves_nothing_behind() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("directory");
        let fd = sys::open_root(dir.path()).expect("open");
        let probed = probe_reflink(&fd);
        assert!(
            matches!(
                probed,
                Ok(()) | Err(Errno::EOPNOTSUPP | Errno::EXDEV | Errno::EINVAL)
            ),
            "{probed:?}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }
}
