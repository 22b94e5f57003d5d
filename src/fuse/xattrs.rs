//! Which extended attributes a mount serves (`--xattrs`).
//!
//! The kernel asks for `security.capability` at the first write to a file and at each change of its
//! owner, and keeps no answer; what it is told to be not implemented it asks for never again. That
//! holds for the whole mount, so it is all or nothing.

use crate::sys::{Errno, SysResult};

/// Extended attributes that are served. What history has of them, and what a restore brings back,
/// does not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Xattrs {
    /// All that there are.
    #[default]
    All,
    /// `user.` alone.
    User,
    /// None: whoever asks gets EOPNOTSUPP, from the kernel.
    Off,
}

impl Xattrs {
    /// An attribute of this name is served.
    ///
    /// # Errors
    /// ENOSYS: none is, and the kernel does not ask again. `other`: it is not.
    pub fn check(self, name: &[u8], other: Errno) -> SysResult<()> {
        match self {
            Xattrs::All => Ok(()),
            Xattrs::User if name.starts_with(b"user.") => Ok(()),
            Xattrs::User => Err(other),
            Xattrs::Off => Err(Errno::ENOSYS),
        }
    }

    /// Those of these names that are served.
    ///
    /// # Errors
    /// ENOSYS: none is, and the kernel does not ask again.
    pub fn list(self, names: impl FnOnce() -> SysResult<Vec<Vec<u8>>>) -> SysResult<Vec<Vec<u8>>> {
        if self == Xattrs::Off {
            return Err(Errno::ENOSYS);
        }
        let mut names = names()?;
        names.retain(|name| self.check(name, Errno::NO_XATTR).is_ok());
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_served_is_not_there_and_where_nothing_is_the_kernel_stops_asking() {
        let names = || {
            Ok([
                &b"security.capability"[..],
                b"user.a",
                b"system.posix_acl_access",
            ]
            .map(<[u8]>::to_vec)
            .into())
        };
        assert_eq!(Xattrs::All.list(names).map(|served| served.len()), Ok(3));
        assert_eq!(Xattrs::User.list(names), Ok(vec![b"user.a".to_vec()]));
        assert_eq!(Xattrs::Off.list(names), Err(Errno::ENOSYS));
        assert_eq!(
            Xattrs::User.check(b"system.posix_acl_access", Errno::NO_XATTR),
            Err(Errno::NO_XATTR)
        );
        assert_eq!(
            Xattrs::Off.check(b"user.a", Errno::NO_XATTR),
            Err(Errno::ENOSYS)
        );
    }
}
