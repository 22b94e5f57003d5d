//! `--xattrs`: the visible extended attributes, with no effect on anything else.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::common::{MountOpts, Rig, Variant, for_each_variant};

for_each_variant! { xfs =>
    with_off_there_are_none_and_history_has_them,
    with_user_there_are_those_of_programs,
    what_is_off_stays_off_after_a_takeover,
}

const ACL: &str = "system.posix_acl_access";
const CAPABILITY: &str = "security.capability";

/// cap_net_raw=ep, as set by setcap(8).
const CAPABLE: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = [0; 256];
    rustix::fs::getxattr(path, name, &mut value).map(|length| value[..length].to_vec())
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
}

fn names(path: &Path) -> Result<Vec<String>, Errno> {
    let mut list = [0; 1024];
    let length = rustix::fs::listxattr(path, &mut list)?;
    Ok(list[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect())
}

/// Mounts a tree with a file `f` that has attributes of each namespace.
fn rig(v: Variant, which: &str) -> Rig {
    v.start_with(MountOpts::new(v.io).arg(which), |dir| {
        let path = dir.join("f");
        fs::write(&path, "old").unwrap();
        set(&path, "user.note", b"mine").unwrap();
        set(&path, "trusted.note", b"root's").unwrap();
        set(&path, CAPABILITY, &CAPABLE).unwrap();
    })
}

fn with_off_there_are_none_and_history_has_them(v: Variant) {
    let mut rig = rig(v, "--xattrs=off");
    let path = rig.path().join("f");
    for name in ["user.note", "trusted.note", CAPABILITY] {
        assert_eq!(get(&path, name), Err(Errno::OPNOTSUPP), "{name}");
    }
    // The kernel handles ACLs itself: the file has no ACL.
    assert_eq!(get(&path, ACL), Err(Errno::NODATA));
    assert_eq!(names(&path), Err(Errno::OPNOTSUPP));
    assert_eq!(set(&path, "user.note", b"x"), Err(Errno::OPNOTSUPP));
    assert_eq!(
        rustix::fs::removexattr(&path, "user.note"),
        Err(Errno::OPNOTSUPP)
    );
    let id = rig.mount.checkpoint();
    assert_eq!(
        get(&rig.view(id).join("f"), "user.note"),
        Err(Errno::OPNOTSUPP)
    );
    // A write removes the capabilities, although the kernel did not query them.
    OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b" and new")
        .unwrap();
    rig.mount.umount();
    assert_eq!(get(&path, CAPABILITY), Err(Errno::NODATA));
    rig.mount.remount();
    fs::remove_file(&path).unwrap();
    rig.mount.restore(id);
    rig.mount.umount();
    assert_eq!(
        (get(&path, "user.note"), get(&path, "trusted.note")),
        (Ok(b"mine".to_vec()), Ok(b"root's".to_vec()))
    );
    assert_eq!(get(&path, CAPABILITY), Ok(CAPABLE.to_vec()));
}

fn with_user_there_are_those_of_programs(v: Variant) {
    let rig = rig(v, "--xattrs=user");
    let path = rig.path().join("f");
    assert_eq!(get(&path, "user.note"), Ok(b"mine".to_vec()));
    assert_eq!(names(&path), Ok(vec!["user.note".to_owned()]));
    for name in ["trusted.note", CAPABILITY, ACL] {
        assert_eq!(get(&path, name), Err(Errno::NODATA), "{name}");
    }
    assert_eq!(set(&path, "trusted.note", b"x"), Err(Errno::OPNOTSUPP));
    assert_eq!(
        rustix::fs::removexattr(&path, CAPABILITY),
        Err(Errno::OPNOTSUPP)
    );
    set(&path, "user.more", b"yours").unwrap();
    let id = rig.mount.checkpoint();
    set(&path, "user.note", b"changed").unwrap();
    assert_eq!(
        get(&rig.view(id).join("f"), "user.note"),
        Ok(b"mine".to_vec())
    );
    assert_eq!(
        names(&rig.view(id).join("f")).map(|names| names.len()),
        Ok(2)
    );
}

fn what_is_off_stays_off_after_a_takeover(v: Variant) {
    let mut rig = rig(v, "--xattrs=off");
    let path = rig.path().join("f");
    assert_eq!(get(&path, "user.note"), Err(Errno::OPNOTSUPP));
    rig.mount.replace_worker();
    assert_eq!(get(&path, "user.note"), Err(Errno::OPNOTSUPP));
    // The first query of this kind.
    assert_eq!(names(&path), Err(Errno::OPNOTSUPP));
    fs::write(&path, "new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
}
