//! Extended attributes that a mount serves (`--xattrs`).
//!
//! The kernel requests `security.capability` at the first write to a file and at each change of its
//! owner, and does not cache the reply. After ENOSYS it never sends the request again. That applies
//! to the whole mount, so it cannot be limited to some names.

use ckptfs_sys::{Errno, SysResult};

/// Extended attributes that are served. History and restore include all attributes in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Xattrs {
    /// All.
    #[default]
    All,
    /// `user.` only.
    User,
    /// None: callers receive EOPNOTSUPP from the kernel.
    Off,
}

impl Xattrs {
    /// Checks that attributes of this name are served.
    ///
    /// # Errors
    /// ENOSYS: none are, and the kernel stops sending such requests. `other`: this one is not.
    pub fn check(self, name: &[u8], other: Errno) -> SysResult<()> {
        match self {
            Xattrs::All => Ok(()),
            Xattrs::User if name.starts_with(b"user.") => Ok(()),
            Xattrs::User => Err(other),
            Xattrs::Off => Err(Errno::ENOSYS),
        }
    }

    /// Returns the names that are served.
    ///
    /// # Errors
    /// ENOSYS: none are, and the kernel stops sending such requests.
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
