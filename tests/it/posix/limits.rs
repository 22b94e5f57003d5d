//! Limits and their errors, on the plain filesystem and through the mount: the essence of creat05,
//! fcntl12 and linkat02 of LTP.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, linkat};

use crate::common::{
    CallerCreds, Image, Mount, MountOpts, Variant, caller, for_each_variant, stdout_of, tool,
};

for_each_variant! { xfs => links_fail_as_they_do_elsewhere, any_number_of_names }
for_each_variant! { xfs => as_many_files_as_a_process_may_open }

/// Returns the results of `act` in a plain directory and in a mounted one.
fn both<T>(v: Variant, act: impl Fn(&Path) -> T) -> (T, T) {
    let image = Image::of(v.fs);
    let plain = act(&image.dir("plain"));
    let mount = Mount::start(&image.dir("project"), &MountOpts::new(v.io));
    (plain, act(mount.path()))
}

/// Creates and opens files until no descriptor is left: bash allocates them above 10, so the lower
/// ones follow last.
const OPEN_ALL: &str = "exec 2>&1; n=0; while { exec {fd}<>f$n; }; do n=$((n+1)); done; echo $n; exec 3<>a 4<>b 5<>c 6<>d 7<>e 8<>f 9<>g;
    exec {fd}<>last; [ -e last ] || echo not made; exec 3>&-; exec 3<>again && echo again";

fn as_many_files_as_a_process_may_open(v: Variant) {
    let (plain, here) = both(v, |dir| {
        stdout_of(
            tool("prlimit", &["--nofile=1024", "bash", "-c", OPEN_ALL]).current_dir(dir),
            60,
        )
    });
    assert!(
        plain.contains("cannot duplicate fd: Too many open files\n")
            && plain.contains("last: Too many open files\nnot made\n"),
        "{plain}"
    );
    // The exact number depends on the descriptors that bash inherited in addition to the first
    // three.
    let files = plain.lines().find_map(|line| line.parse::<u32>().ok());
    assert!(
        files.is_some_and(|files| (900..1024).contains(&files)) && plain.ends_with("\nagain\n"),
        "{plain}"
    );
    assert_eq!(here, plain);
}

const USER: CallerCreds = caller("user", 4001, 4001, &[], false);

fn errno(result: rustix::io::Result<()>) -> Option<i32> {
    result.err().map(|errno| {
        io::Error::from(errno)
            .raw_os_error()
            .expect("a system call sets errno")
    })
}

fn links_fail_as_they_do_elsewhere(v: Variant) {
    let (plain, here) = both(v, |dir| {
        let at = |name: &str| dir.join(name);
        fs::write(at("f"), "f").expect("write");
        fs::create_dir(at("d")).expect("mkdir");
        fs::create_dir(at("closed")).expect("mkdir");
        symlink("a", at("b")).expect("symlink");
        symlink("b", at("a")).expect("symlink");
        fs::set_permissions(dir, Permissions::from_mode(0o777)).expect("chmod");
        fs::set_permissions(at("closed"), Permissions::from_mode(0o700)).expect("chmod");
        let elsewhere = tempfile::tempdir().expect("a directory");
        let link = |from: &str, to: &Path| errno(linkat(CWD, at(from), CWD, to, AtFlags::empty()));
        let long = |length: usize| "n".repeat(length);
        [
            link("f", &at("g")),
            link("f", &at("g")),
            link("f", &at(&long(255))),
            link("f", &at(&long(256))),
            link("f", &at(&format!("d/{}", "../d/".repeat(900)))),
            link("f", &at("a/x")),
            errno(linkat(CWD, at("a"), CWD, at("h"), AtFlags::SYMLINK_FOLLOW)),
            link("a", &at("i")),
            link("none", &at("j")),
            link("f", &at("f/x")),
            link("d", &at("k")),
            link("f", &elsewhere.path().join("l")),
            errno(linkat(
                CWD,
                elsewhere.path(),
                CWD,
                at("m"),
                AtFlags::empty(),
            )),
            USER.does(|| link("f", &at("closed/n"))),
        ]
        .to_vec()
    });
    assert_eq!(here, plain);
    let said = [
        libc::EEXIST,
        libc::ENAMETOOLONG,
        libc::ELOOP,
        libc::ENOENT,
        libc::ENOTDIR,
        libc::EPERM,
        libc::EXDEV,
        libc::EACCES,
    ];
    assert!(
        said.iter().all(|errno| plain.contains(&Some(*errno))),
        "{plain:?}"
    );
}

/// Failed before: 17,000 names of 250 bytes exceed a journal record, so after a checkpoint every
/// change of the file failed with E2BIG. And each new name was compared with all others, so that
/// 65,000 took minutes.
fn any_number_of_names(v: Variant) {
    const NAMES: u64 = 17_000;
    let rig = v.start();
    let dir = rig.path().join("d");
    fs::create_dir(&dir).expect("mkdir");
    fs::write(rig.path().join("f"), "f").expect("write");
    let name = |number: u64| dir.join(format!("{number:0250}"));
    (0..NAMES).for_each(|number| fs::hard_link(rig.path().join("f"), name(number)).expect("link"));
    let id = rig.mount.checkpoint();
    fs::set_permissions(name(7), Permissions::from_mode(0o600)).expect("chmod");
    fs::remove_file(rig.path().join("f")).expect("unlink");
    fs::write(name(9), "changed").expect("write");
    assert_eq!(fs::metadata(name(8)).expect("stat").nlink(), NAMES);
    let then = rig.view(id);
    assert_eq!(fs::read(then.join("f")).expect("read"), b"f");
    assert_eq!(
        fs::metadata(then.join("f")).expect("stat").nlink(),
        NAMES + 1
    );
    assert_eq!(
        fs::read(
            then.join("d")
                .join(name(16_999).file_name().expect("it has one"))
        )
        .expect("read"),
        b"f"
    );
}
