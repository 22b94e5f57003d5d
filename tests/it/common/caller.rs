//! System calls with other credentials, in a separate thread.

use rustix::process::{Gid, Uid};
use rustix::thread::CapabilitySet;

/// The credentials of a calling thread (credentials(7)).
#[derive(Clone, Copy)]
pub struct CallerCreds {
    /// The name in messages.
    pub name: &'static str,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'static [u32],
    /// Has CAP_FSETID.
    pub keeps: bool,
}

/// See [`CallerCreds`].
pub const fn caller(
    name: &'static str,
    uid: u32,
    gid: u32,
    groups: &'static [u32],
    keeps: bool,
) -> CallerCreds {
    CallerCreds {
        name,
        uid,
        gid,
        groups,
        keeps,
    }
}

impl CallerCreds {
    /// Runs `act` with these credentials, in a new thread because credentials are per thread.
    pub fn does<T: Send>(self, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.become_it().expect("root can take any identity");
                act()
            });
            thread.join().expect("no panic")
        })
    }

    fn become_it(self) -> rustix::io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(Some(gid), Some(gid), Some(gid))?;
        rustix::thread::set_keep_capabilities(true)?;
        rustix::thread::set_thread_res_uid(Some(uid), Some(uid), Some(uid))?;
        let all = rustix::thread::capabilities(None)?;
        let mut effective = if self.uid == 0 {
            all.effective
        } else {
            CapabilitySet::empty()
        };
        effective.set(CapabilitySet::FSETID, self.keeps);
        rustix::thread::set_capabilities(None, rustix::thread::CapabilitySets { effective, ..all })
    }
}
