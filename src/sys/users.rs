//! Users by name.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ptr;

/// Buffer size for a user's entry in bytes.
const ENTRY_BYTES: usize = 16 << 10;

/// Returns the ID of the user with this name, from the system's user database (files or a directory
/// service).
pub fn user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut texts = vec![0; ENTRY_BYTES];
    let mut found = ptr::null_mut();
    // SAFETY: `name` ends with NUL; `entry`, `texts` (of the length passed) and `found` are
    // writable and live through the call.
    let failed = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            texts.as_mut_ptr(),
            texts.len(),
            &raw mut found,
        )
    };
    if failed != 0 || found.is_null() {
        return None;
    }
    // SAFETY: `found` is not null, so it points to `entry`, which was filled.
    Some(unsafe { entry.assume_init() }.pw_uid)
}

#[cfg(test)]
mod tests {
    #[test]
    fn root_is_known_and_nonsense_is_not() {
        assert_eq!(super::user_id("root"), Some(0));
        assert_eq!(
            (super::user_id("no such user"), super::user_id("a\0b")),
            (None, None)
        );
    }
}
