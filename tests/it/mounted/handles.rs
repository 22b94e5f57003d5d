//! File handles of name_to_handle_at(2), NFS and fanotify(7).

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::support::put;
use crate::common::{Variant, for_each_variant};

for_each_variant! { xfs =>
    a_handle_that_could_not_be_opened_later_is_not_given,
}

/// `AT_HANDLE_FID` of name_to_handle_at(2): the handle is only compared, never opened.
const ONLY_COMPARED: i32 = 0x200;

/// Returns a handle's type and bytes.
fn handle_of(path: &Path, flags: i32) -> Result<(i32, Vec<u8>), i32> {
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        handle: [u8; 128],
    }
    let name = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    let (mut handle, mut mount) = (
        Handle {
            bytes: 128,
            kind: 0,
            handle: [0; 128],
        },
        0_i32,
    );
    // SAFETY: the path is NUL-terminated, and the buffer has the size that the handle declares.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            flags,
        )
    };
    match result {
        0 => Ok((handle.kind, handle.handle[..handle.bytes as usize].to_vec())),
        _ => Err(std::io::Error::last_os_error()
            .raw_os_error()
            .expect("an errno")),
    }
}

/// Failed before: handles were returned and became ESTALE once the kernel had evicted the inode; an
/// NFS server would have lost files under memory pressure.
fn a_handle_that_could_not_be_opened_later_is_not_given(v: Variant) {
    let rig = v.start();
    let file = rig.path().join("file");
    put(&file, "old");
    assert_eq!(handle_of(&file, 0), Err(libc::EOPNOTSUPP));
    assert_eq!(handle_of(rig.path(), 0), Err(libc::EOPNOTSUPP));
    // A handle for comparison is still available to watchers.
    let (kind, bytes) = handle_of(&file, ONLY_COMPARED).expect("a handle to compare with");
    // SAFETY: the arguments are integers.
    let watch = unsafe {
        libc::fanotify_init(
            libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_NONBLOCK,
            libc::O_RDONLY as u32,
        )
    };
    assert!(watch >= 0, "{}", std::io::Error::last_os_error());
    let name = CString::new(file.as_os_str().as_bytes()).expect("no NUL");
    // SAFETY: the path is NUL-terminated.
    let marked = unsafe {
        libc::fanotify_mark(
            watch,
            libc::FAN_MARK_ADD,
            libc::FAN_MODIFY,
            libc::AT_FDCWD,
            name.as_ptr(),
        )
    };
    assert_eq!(marked, 0, "{}", std::io::Error::last_os_error());
    put(&file, "new");
    let mut event = vec![0_u8; 4096];
    // SAFETY: the buffer has the given length.
    let length = unsafe { libc::read(watch, event.as_mut_ptr().cast(), event.len()) };
    event.truncate(usize::try_from(length).expect("an event"));
    // SAFETY: the descriptor is ours.
    unsafe { libc::close(watch) };
    // The event's 24 bytes are followed by 4 bytes of the record header, the 8-byte filesystem ID,
    // the handle header of 4 and 4 bytes, and the handle.
    let number = |at: usize| i32::from_ne_bytes(event[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(
        (number(36), number(40), &event[44..44 + bytes.len()]),
        (bytes.len() as i32, kind, &bytes[..])
    );
}
