//! Acting with the credentials of the requesting thread: the kernel clears set-id bits according to
//! the groups and capabilities of the calling thread (inode(7)).
//!
//! Threads that serve requests have no CAP_FSETID ([`give_up_set_id`]), so their changes clear the
//! bits unless the requester may keep them. The capability is raised only for single calls, and
//! only for inodes with such bits.

use rustix::process::{Gid, getgroups};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups,
};

use super::super::types::{Errno, RequesterIds, SysResult};

/// The initial user namespace (`PROC_USER_INIT_INO` in linux/proc_ns.h): capabilities in other
/// namespaces do not apply to files (`capable` in kernel/capability.c).
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

/// The groups and the effective capabilities of a thread that waits for a reply.
#[derive(Debug, PartialEq, Eq)]
struct Credentials {
    groups: Vec<u32>,
    capabilities: CapabilitySet,
}

/// Drops CAP_FSETID from the calling thread and from threads that it starts later. No effect
/// without the capability.
pub fn give_up_set_id() {
    if let Some(lowered) = SetId::effective(false) {
        std::mem::forget(lowered);
    }
}

/// Runs an operation that may clear set-id bits, with the requester's groups and its right to keep
/// the bits. Without `asker`, the operation runs with all rights of this process. If the thread
/// cannot be examined, it is assumed to have only the group of the request, and no capability. A
/// process that may not change its groups (that of an ordinary user) keeps its own.
pub fn act_for<T>(asker: Option<RequesterIds>, act: impl FnOnce() -> T) -> T {
    // Examining a thread that has the capability requires it (ptrace(2), "access mode checking").
    let raised = SetId::effective(true);
    let Some(asker) = asker else { return act() };
    let known = Credentials::of(asker).unwrap_or(Credentials::NONE);
    if known.capabilities.contains(CapabilitySet::FSETID) {
        return act();
    }
    drop(raised);
    let _lowered = SetId::effective(false);
    let _groups = Groups::take(asker.gid, &known.groups);
    act()
}

/// Runs file operations as this user with only this group. It affects only the calling thread and
/// only during the call (setfsuid(2)). No change if it is the user of this process.
///
/// # Errors
/// EPERM if this process may not change its user; `act` does not run then.
pub fn act_as<T>((uid, gid): (u32, u32), act: impl FnOnce() -> T) -> SysResult<T> {
    if super::super::process::ids().0 == uid {
        return Ok(act());
    }
    let _groups = Groups::take(gid, &[]).ok_or(Errno::EPERM)?;
    let _user = FsUserGuard::take(uid).ok_or(Errno::EPERM)?;
    Ok(act())
}

/// Runs an operation that consumes space or inodes within this user's limits: without the blocks
/// reserved for root (ext4) and without the exemption from quotas (CAP_SYS_RESOURCE). The calling
/// thread keeps its other rights.
pub fn within_limits_of<T>(uid: u32, act: impl FnOnce() -> T) -> T {
    if uid == 0 || super::super::process::own_user() != 0 {
        return act();
    }
    let Some(user) = FsUserGuard::take(uid) else {
        return act();
    };
    // Changing the user dropped the file capabilities.
    let mut effective = user.before.effective;
    effective.remove(CapabilitySet::SYS_RESOURCE);
    let limited = CapabilitySets {
        effective,
        ..user.before
    };
    // Capabilities of the permitted set may be made effective (capset(2)).
    let _ = set_capabilities(None, limited);
    act()
}

/// Returns whether the requester may see `trusted.` attributes (CAP_SYS_ADMIN, xattr(7)).
pub fn may_administer(asker: RequesterIds) -> bool {
    let _raised = SetId::effective(true);
    Credentials::of(asker).is_ok_and(|known| known.capabilities.contains(CapabilitySet::SYS_ADMIN))
}

impl Credentials {
    const NONE: Credentials = Credentials {
        groups: Vec::new(),
        capabilities: CapabilitySet::empty(),
    };

    /// Reads those of a thread. Groups and capabilities are ignored if its IDs differ from the
    /// request's: it may act for another thread (an overlay filesystem, io_uring).
    fn of(asker: RequesterIds) -> SysResult<Credentials> {
        let status = std::fs::read(format!("/proc/{}/status", asker.thread))?;
        let mut known = Credentials::parse(&String::from_utf8_lossy(&status), asker)
            .unwrap_or(Credentials::NONE);
        let first = std::fs::read_link(format!("/proc/{}/ns/user", asker.thread))
            .is_ok_and(|link| link.as_os_str() == FIRST_USER_NAMESPACE);
        if !first {
            known.capabilities = CapabilitySet::empty();
        }
        Ok(known)
    }

    /// Parses `/proc/PID/status` (proc_pid_status(5)).
    fn parse(status: &str, asker: RequesterIds) -> Option<Credentials> {
        let line = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        // Real, effective, saved and filesystem ID.
        let for_files = |name: &str| {
            line(name)?
                .split_ascii_whitespace()
                .nth(3)?
                .parse::<u32>()
                .ok()
        };
        if for_files("Uid")? != asker.uid || for_files("Gid")? != asker.gid {
            return None;
        }
        Some(Credentials {
            groups: line("Groups")?
                .split_ascii_whitespace()
                .map(str::parse)
                .collect::<Result<_, _>>()
                .ok()?,
            capabilities: CapabilitySet::from_bits_retain(
                u64::from_str_radix(line("CapEff")?.trim(), 16).ok()?,
            ),
        })
    }
}

/// Restores the capabilities of the thread when dropped, also after a panic.
struct SetId(CapabilitySets);

impl SetId {
    /// Sets whether CAP_FSETID is effective, until the result is dropped; `None` if nothing
    /// changed.
    fn effective(wanted: bool) -> Option<SetId> {
        let sets = capabilities(None).ok()?;
        if sets.effective.contains(CapabilitySet::FSETID) == wanted
            || !sets.permitted.contains(CapabilitySet::FSETID)
        {
            return None;
        }
        let mut effective = sets.effective;
        effective.set(CapabilitySet::FSETID, wanted);
        set_capabilities(None, CapabilitySets { effective, ..sets }).ok()?;
        Some(SetId(sets))
    }
}

impl Drop for SetId {
    fn drop(&mut self) {
        // Raising capabilities of the permitted set cannot fail (capset(2)).
        let _ = set_capabilities(None, self.0);
    }
}

/// Restores the groups of the thread when dropped.
struct Groups {
    group: u32,
    further: Vec<Gid>,
}

impl Groups {
    /// Sets the groups of the calling thread, for file access; `None` if not permitted.
    fn take(group: u32, further: &[u32]) -> Option<Groups> {
        let before = getgroups().ok()?;
        let further: Vec<Gid> = further.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&further).ok()?;
        Some(Groups {
            group: set_group_for_files(group),
            further: before,
        })
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        set_group_for_files(self.group);
        // Still permitted, as a moment before.
        let _ = set_thread_groups(&self.further);
    }
}

/// Restores the filesystem user of a thread when dropped, and its effective capabilities. On a
/// return to root the kernel raises all file capabilities, including those given up before.
struct FsUserGuard {
    uid: u32,
    before: CapabilitySets,
}

impl FsUserGuard {
    /// Sets the filesystem user of the calling thread, which drops the file capabilities.
    fn take(uid: u32) -> Option<FsUserGuard> {
        let before = capabilities(None).ok()?;
        let user = FsUserGuard {
            uid: set_user_for_files(uid),
            before,
        };
        // setfsuid(2) reports no errors. A call with an invalid ID returns the current one.
        (set_user_for_files(u32::MAX) == uid).then_some(user)
    }
}

impl Drop for FsUserGuard {
    fn drop(&mut self) {
        set_user_for_files(self.uid);
        // Still permitted, as a moment before.
        let _ = set_capabilities(None, self.before);
    }
}

/// Sets the filesystem user of the calling thread, and returns the previous one (setfsuid(2)).
fn set_user_for_files(uid: u32) -> u32 {
    // SAFETY: it takes and returns an integer, and affects only the calling thread.
    unsafe { libc::setfsuid(uid) }.cast_unsigned()
}

/// Sets the filesystem group of the calling thread, and returns the previous one (setfsgid(2)).
fn set_group_for_files(gid: u32) -> u32 {
    // SAFETY: it takes and returns an integer, and affects only the calling thread.
    unsafe { libc::setfsgid(gid) }.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_thread;

    fn has_set_id() -> bool {
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::FSETID))
    }

    fn myself() -> RequesterIds {
        let (uid, gid) = crate::ids();
        RequesterIds {
            uid,
            gid,
            thread: own_thread().cast_unsigned(),
        }
    }

    #[test]
    fn a_thread_gives_it_up_and_has_it_for_a_call() {
        let whole = has_set_id();
        std::thread::spawn(move || {
            give_up_set_id();
            assert!(!has_set_id());
            assert_eq!(act_for(None, has_set_id), whole, "for ourselves");
            assert!(!has_set_id());
            assert!(
                !std::thread::spawn(has_set_id).join().expect("thread"),
                "nor have those that it starts"
            );
        })
        .join()
        .expect("thread");
        assert_eq!(has_set_id(), whole, "the others keep it");
    }

    #[test]
    fn a_call_has_the_groups_of_whoever_asks_and_then_its_own() {
        let groups = || getgroups().expect("groups");
        let (before, whole) = (groups(), has_set_id());
        let gone = RequesterIds {
            uid: 4001,
            gid: 4002,
            thread: i32::MAX.cast_unsigned(),
        };
        assert!(
            !act_for(Some(gone), has_set_id),
            "of a thread that is gone nothing is believed"
        );
        assert_eq!((groups(), has_set_id()), (before.clone(), whole));
        assert_eq!(
            act_for(Some(myself()), has_set_id),
            whole,
            "a thread like ours may do what we may"
        );
        let for_files = || set_group_for_files(u32::MAX);
        if whole {
            assert_eq!(
                act_for(Some(gone), || (groups(), for_files())),
                (Vec::new(), 4002)
            );
        }
        assert_eq!((groups(), for_files()), (before, myself().gid));
    }

    #[test]
    fn what_is_made_as_another_user_is_theirs_and_then_we_are_ourselves() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let dir = tempfile::tempdir().expect("directory");
        let make = |name: &str| std::fs::write(dir.path().join(name), "x");
        let uid = crate::ids().0;
        if uid != 0 {
            assert_eq!(act_as((uid + 1, 4002), || ()), Err(Errno::EPERM));
            return;
        }
        let closed = act_as((4001, 4002), || make("closed")).expect("root may");
        assert_eq!(
            closed.map_err(|cause| cause.kind()),
            Err(std::io::ErrorKind::PermissionDenied)
        );
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777))
            .expect("chmod");
        act_as((4001, 4002), || make("theirs"))
            .expect("root may")
            .expect("open to all");
        make("ours").expect("ourselves again");
        let owner = |name: &str| {
            let found = std::fs::metadata(dir.path().join(name)).expect("stat");
            (found.uid(), found.gid())
        };
        assert_eq!((owner("theirs"), owner("ours").0), ((4001, 4002), 0));
    }

    #[test]
    fn within_the_limits_of_a_user_a_thread_has_its_rights_and_not_those_of_root() {
        let effective = || capabilities(None).expect("capabilities").effective;
        let for_files = || set_user_for_files(u32::MAX);
        let whole = has_set_id();
        std::thread::spawn(move || {
            give_up_set_id();
            let (before, uid) = (effective(), for_files());
            let limited = within_limits_of(4001, || (effective(), for_files()));
            let expected = if uid == 0 { 4001 } else { uid };
            assert_eq!(limited.1, expected);
            if uid == 0 {
                assert_eq!(limited.0, before - CapabilitySet::SYS_RESOURCE);
            }
            // The kernel raises capabilities given up before, together with the user.
            assert_eq!((effective(), for_files()), (before, uid));
            assert!(!has_set_id());
        })
        .join()
        .expect("thread");
        assert_eq!(has_set_id(), whole);
    }

    #[test]
    fn what_a_thread_is_said_to_be_counts_only_if_it_asks_as_that() {
        let status = "Name:\tGroups:\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapEff:\t0000000000200010\n";
        let known = Credentials::parse(
            status,
            RequesterIds {
                uid: 4,
                gid: 8,
                thread: 1,
            },
        )
        .expect("it is understood");
        assert_eq!(known.groups, [9, 10]);
        assert_eq!(
            known.capabilities,
            CapabilitySet::FSETID | CapabilitySet::SYS_ADMIN
        );
        assert_eq!(
            Credentials::parse(
                status,
                RequesterIds {
                    uid: 2,
                    gid: 8,
                    thread: 1
                }
            ),
            None
        );
        assert_eq!(
            Credentials::parse(
                status,
                RequesterIds {
                    uid: 4,
                    gid: 5,
                    thread: 1
                }
            ),
            None
        );
        assert_eq!(
            Credentials::parse(
                "Uid:\t1\n",
                RequesterIds {
                    uid: 4,
                    gid: 8,
                    thread: 1
                }
            ),
            None
        );
        assert!(may_administer(myself()) == crate::has_sys_admin() || !first_namespace());
    }

    fn first_namespace() -> bool {
        std::fs::read_link("/proc/self/ns/user")
            .is_ok_and(|link| link.as_os_str() == FIRST_USER_NAMESPACE)
    }
}
