//! Doing something as whoever asked for it would: the kernel clears set-id bits by the groups and
//! capabilities of the calling thread (inode(7)).
//!
//! Threads that serve requests have no CAP_FSETID ([`give_up_set_id`]): what they change loses its
//! bits unless whoever asked may keep them. It is in effect again for as long as a call takes,
//! which is made only for inodes with such bits.

use rustix::process::{Gid, getgroups};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups,
};

use super::super::types::{Asker, Errno, SysResult};

/// The first user namespace (`PROC_USER_INIT_INO` in linux/proc_ns.h): capabilities in any other do
/// not count for files (`capable` in kernel/capability.c).
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

/// The groups and the capabilities in effect of a thread that waits for us.
#[derive(Debug, PartialEq, Eq)]
struct Credentials {
    groups: Vec<u32>,
    capabilities: CapabilitySet,
}

/// Takes CAP_FSETID from the calling thread and from those that it starts. Nothing, where it does
/// not have it.
pub fn give_up_set_id() {
    if let Some(lowered) = SetId::effective(false) {
        std::mem::forget(lowered);
    }
}

/// Does something that may clear set-id bits as the kernel does it for `asker`; without one, for
/// ourselves, so that they stay as far as this process may keep them. Of a thread that cannot be
/// looked at it is believed that it has the group it was sent with and no other, and no capability.
/// A process that may not take on groups (that of an ordinary user) acts with its own.
pub fn act_for<T>(asker: Option<Asker>, act: impl FnOnce() -> T) -> T {
    // To look at a thread that has it we need it too (ptrace(2), "access mode checking").
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

/// Does something to files as this user, who is in this group and no other: the calling thread
/// alone, and only for as long as that takes (setfsuid(2)). For the user it is already, that is
/// nothing.
///
/// # Errors
/// EPERM where it may not be another, and nothing is done then.
pub fn act_as<T>((uid, gid): (u32, u32), act: impl FnOnce() -> T) -> SysResult<T> {
    if super::super::process::ids().0 == uid {
        return Ok(act());
    }
    let _groups = Groups::take(gid, &[]).ok_or(Errno::EPERM)?;
    let _user = UserForFiles::take(uid).ok_or(Errno::EPERM)?;
    Ok(act())
}

/// Does something that takes space or an inode within the limits of this user: what a filesystem
/// keeps for root (ext4), and what passes quotas (CAP_SYS_RESOURCE), is for nobody else. The calling
/// thread keeps its other rights.
pub fn within_limits_of<T>(uid: u32, act: impl FnOnce() -> T) -> T {
    if uid == 0 || super::super::process::own_user() != 0 {
        return act();
    }
    let Some(user) = UserForFiles::take(uid) else {
        return act();
    };
    // With the user went the rights to files.
    let mut effective = user.before.effective;
    effective.remove(CapabilitySet::SYS_RESOURCE);
    let limited = CapabilitySets {
        effective,
        ..user.before
    };
    // What the permitted set holds may be in effect (capset(2)).
    let _ = set_capabilities(None, limited);
    act()
}

/// Whether whoever asks may see attributes of the `trusted.` kind (CAP_SYS_ADMIN, xattr(7)).
pub fn may_administer(asker: Asker) -> bool {
    let _raised = SetId::effective(true);
    Credentials::of(asker).is_ok_and(|known| known.capabilities.contains(CapabilitySet::SYS_ADMIN))
}

impl Credentials {
    const NONE: Credentials = Credentials {
        groups: Vec::new(),
        capabilities: CapabilitySet::empty(),
    };

    /// Those of a thread, unless they are not what it asks with: it may act for somebody else
    /// itself (an overlay filesystem, io_uring).
    fn of(asker: Asker) -> SysResult<Credentials> {
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

    /// From `/proc/PID/status` (proc_pid_status(5)).
    fn parse(status: &str, asker: Asker) -> Option<Credentials> {
        let line = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        // Real, effective, saved, and the one for files.
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

/// Gives a thread the capabilities back that it had, when dropped, also when the call between
/// panics.
struct SetId(CapabilitySets);

impl SetId {
    /// Whether CAP_FSETID is in effect, until the result is dropped; `None` when there is nothing
    /// to give back.
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
        // Raising what the permitted set still holds cannot fail (capset(2)).
        let _ = set_capabilities(None, self.0);
    }
}

/// Gives a thread its groups back when dropped.
struct Groups {
    group: u32,
    further: Vec<Gid>,
}

impl Groups {
    /// The calling thread alone has these groups, for files; `None` where that is not permitted.
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
        // What was permitted a moment ago is so still.
        let _ = set_thread_groups(&self.further);
    }
}

/// Gives a thread its user back when dropped, with the capabilities that it had in effect: the
/// kernel gives all of those for files to whoever becomes root again, given up or not.
struct UserForFiles {
    uid: u32,
    before: CapabilitySets,
}

impl UserForFiles {
    /// The calling thread is this user, for files; the capabilities for files go with that.
    fn take(uid: u32) -> Option<UserForFiles> {
        let before = capabilities(None).ok()?;
        let user = UserForFiles {
            uid: set_user_for_files(uid),
            before,
        };
        // A refusal is told by nothing but that it has not happened; no user has this number.
        (set_user_for_files(u32::MAX) == uid).then_some(user)
    }
}

impl Drop for UserForFiles {
    fn drop(&mut self) {
        set_user_for_files(self.uid);
        // What was permitted a moment ago is so still.
        let _ = set_capabilities(None, self.before);
    }
}

/// Sets the user for files of the calling thread, and returns the one before (setfsuid(2)).
fn set_user_for_files(uid: u32) -> u32 {
    // SAFETY: it takes and returns an integer, and changes the calling thread alone.
    unsafe { libc::setfsuid(uid) }.cast_unsigned()
}

/// Sets the group for files of the calling thread, and returns the one before (setfsgid(2)).
fn set_group_for_files(gid: u32) -> u32 {
    // SAFETY: it takes and returns an integer, and changes the calling thread alone.
    unsafe { libc::setfsgid(gid) }.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::own_thread;

    fn has_set_id() -> bool {
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::FSETID))
    }

    fn myself() -> Asker {
        let (uid, gid) = crate::sys::ids();
        Asker {
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
        let gone = Asker {
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
        let uid = crate::sys::ids().0;
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
            // The kernel raises what was given up, with the user.
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
            Asker {
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
                Asker {
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
                Asker {
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
                Asker {
                    uid: 4,
                    gid: 8,
                    thread: 1
                }
            ),
            None
        );
        assert!(may_administer(myself()) == crate::sys::has_sys_admin() || !first_namespace());
    }

    fn first_namespace() -> bool {
        std::fs::read_link("/proc/self/ns/user")
            .is_ok_and(|link| link.as_os_str() == FIRST_USER_NAMESPACE)
    }
}
