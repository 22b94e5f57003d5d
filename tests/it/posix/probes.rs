//! Calls that the suites do not make: each returns on the mount the same value or errno as on the
//! plain filesystem.
//!
//! Calls limited by FUSE or `fuser` are listed in `exclusions.txt` with the reason.

mod attributes;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags,
    linkat, mknodat, open, openat, renameat_with,
};

use attributes::{
    access_time, access_time_not_wanted, access_time_of_a_directory, attributes_of_a_directory,
    birth_time, inode_flags, set_group_directory, times_of_nothing, times_of_truncation,
    xattr_too_long, xattrs, xattrs_of_a_link_and_a_fifo,
};

use super::exclusions::Verdicts;
use crate::common::command::write_script;
use crate::common::{Image, Mount, MountOpts, Variant, for_each_variant, run_limited, tool};

for_each_variant! { reflink => every_probe }
for_each_variant! { branch => every_probe }

/// The result of a probe: a value that is the same wherever the call works, or the error.
type ProbeResult = io::Result<String>;
/// A call in a directory of its own.
type Probe = fn(&Path) -> ProbeResult;

fn every_probe(v: Variant) {
    let image = Image::of(v.fs);
    let (plain_dir, project) = (image.dir("plain"), image.dir("project"));
    let plain: Vec<String> = PROBES
        .iter()
        .map(|(name, probe)| outcome(&plain_dir, name, *probe))
        .collect();
    let mount = Mount::start(&project, &MountOpts::new(v.io).arg("-odev,suid"));
    let mut verdicts = Verdicts::default();
    for ((name, probe), plain) in PROBES.iter().zip(&plain) {
        let here = outcome(mount.path(), name, *probe);
        verdicts.add(
            name,
            (here != *plain).then(|| format!("{here}, on the plain filesystem {plain}")),
        );
    }
    verdicts.check("probe", v);
}

fn outcome(root: &Path, name: &str, probe: Probe) -> String {
    let dir = root.join(name);
    fs::create_dir(&dir).expect("a directory can be created");
    match probe(&dir) {
        Ok(value) => format!("ok {value}"),
        Err(error) => format!("{error}"),
    }
}

const PROBES: &[(&str, Probe)] = &[
    ("tmpfile", tmpfile),
    ("tmpfile_gets_a_name", tmpfile_gets_a_name),
    ("clone", clone),
    ("fallocate", |dir| fallocate(dir, FallocateFlags::empty())),
    ("fallocate_keep_size", |dir| {
        fallocate(dir, FallocateFlags::KEEP_SIZE)
    }),
    ("punch_hole", |dir| {
        fallocate(dir, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)
    }),
    ("zero_range", |dir| {
        fallocate(dir, FallocateFlags::ZERO_RANGE)
    }),
    ("collapse_range", |dir| {
        fallocate(dir, FallocateFlags::COLLAPSE_RANGE)
    }),
    ("insert_range", |dir| {
        fallocate(dir, FallocateFlags::INSERT_RANGE)
    }),
    ("unshare_range", |dir| {
        fallocate(dir, FallocateFlags::UNSHARE_RANGE)
    }),
    ("rename_noreplace", |dir| {
        rename(dir, RenameFlags::NOREPLACE)
    }),
    ("rename_exchange", |dir| rename(dir, RenameFlags::EXCHANGE)),
    ("rename_whiteout", |dir| rename(dir, RenameFlags::WHITEOUT)),
    ("inode_flags", inode_flags),
    ("extent_map", extent_map),
    ("birth_time", birth_time),
    ("attributes_of_a_directory", attributes_of_a_directory),
    ("holes", holes),
    ("copy_range_over_the_end", copy_range_over_the_end),
    ("copy_range_in_one_file", copy_range_in_one_file),
    ("pwrite_appends", pwrite_appends),
    ("direct_io", direct_io),
    ("direct_io_unaligned", direct_io_unaligned),
    ("vectors_with_flags", vectors_with_flags),
    ("largest_file", largest_file),
    ("xattrs", xattrs),
    ("xattr_too_long", xattr_too_long),
    ("xattrs_of_a_link_and_a_fifo", xattrs_of_a_link_and_a_fifo),
    ("link_of_a_link", link_of_a_link),
    ("link_of_a_descriptor", link_of_a_descriptor),
    ("unlinked_file", unlinked_file),
    ("removed_directory", removed_directory),
    ("open_flags", open_flags),
    ("odd_names", odd_names),
    ("times_of_truncation", times_of_truncation),
    ("times_of_nothing", times_of_nothing),
    ("access_time", access_time),
    ("access_time_of_a_directory", access_time_of_a_directory),
    ("access_time_not_wanted", access_time_not_wanted),
    ("device", device),
    ("program", program),
    ("program_being_written", program_being_written),
    ("set_group_directory", set_group_directory),
    ("numbers_of_a_listing", numbers_of_a_listing),
    ("syncs", syncs),
];

fn create(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    (&file).write_all(bytes)?;
    Ok(file)
}

/// Formats a result, for probes with several steps.
fn said<T>(result: io::Result<T>) -> String {
    result.map_or_else(|error| error.kind().to_string(), |_| "ok".to_owned())
}

fn hash(path: &Path) -> io::Result<String> {
    Ok(blake3::hash(&fs::read(path)?).to_hex().as_str()[..8].to_owned())
}

fn tmpfile(dir: &Path) -> ProbeResult {
    let file = File::from(open(
        dir,
        OFlags::RDWR | OFlags::TMPFILE,
        Mode::RUSR | Mode::WUSR,
    )?);
    file.write_all_at(b"text", 0)?;
    Ok(format!(
        "{} {}",
        file.metadata()?.len(),
        file.metadata()?.nlink()
    ))
}

fn via(file: impl AsFd) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

fn tmpfile_gets_a_name(dir: &Path) -> ProbeResult {
    let file = File::from(open(
        dir,
        OFlags::RDWR | OFlags::TMPFILE,
        Mode::RUSR | Mode::WUSR,
    )?);
    linkat(CWD, via(&file), CWD, dir.join("f"), AtFlags::SYMLINK_FOLLOW)?;
    Ok(format!("{}", fs::metadata(dir.join("f"))?.nlink()))
}

fn clone(dir: &Path) -> ProbeResult {
    let from = create(&dir.join("from"), &[7; 10_000])?;
    let to = create(&dir.join("to"), b"")?;
    rustix::fs::ioctl_ficlone(&to, &from)?;
    hash(&dir.join("to"))
}

fn fallocate(dir: &Path, how: FallocateFlags) -> ProbeResult {
    let path = dir.join("f");
    let file = create(
        &path,
        &(0..40_960u32)
            .map(|number| (number / 160) as u8)
            .collect::<Vec<_>>(),
    )?;
    // The range includes the end of the file where the call allows it.
    let beyond = !how.intersects(
        FallocateFlags::COLLAPSE_RANGE
            | FallocateFlags::INSERT_RANGE
            | FallocateFlags::UNSHARE_RANGE,
    );
    rustix::fs::fallocate(&file, how, 8192, if beyond { 65_536 } else { 4096 })?;
    Ok(format!("{} {}", file.metadata()?.len(), hash(&path)?))
}

fn rename(dir: &Path, how: RenameFlags) -> ProbeResult {
    let (a, b, c) = (dir.join("a"), dir.join("b"), dir.join("c"));
    create(&a, b"a")?;
    create(&b, b"b")?;
    let taken = renameat_with(CWD, &a, CWD, &b, how).map_err(io::Error::from);
    let free = renameat_with(CWD, &b, CWD, &c, how).map_err(io::Error::from);
    let kind = |path: &Path| {
        fs::symlink_metadata(path).map_or("none".to_owned(), |meta| {
            format!("{:o} {} {}", meta.mode(), meta.rdev(), meta.len())
        })
    };
    Ok(format!(
        "{} {}: {}, {}, {}",
        said(taken),
        said(free),
        kind(&a),
        kind(&b),
        kind(&c)
    ))
}

fn extent_map(dir: &Path) -> ProbeResult {
    create(&dir.join("f"), &[7; 10_000])?.sync_all()?;
    let output = run_limited(
        tool("xfs_io", &["-r", "-c", "fiemap"]).arg(dir.join("f")),
        60,
    );
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if text.contains("not supported") {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    } else {
        Ok(String::new())
    }
}

fn holes(dir: &Path) -> ProbeResult {
    let file = create(&dir.join("f"), b"")?;
    file.write_all_at(&[1; 4096], 1 << 20)?;
    file.set_len(4 << 20)?;
    let seek = |from| {
        rustix::fs::seek(&file, from)
            .map_err(io::Error::from)
            .map_or_else(|error| error.to_string(), |at| at.to_string())
    };
    let at = [
        SeekFrom::Data(0),
        SeekFrom::Hole(1 << 20),
        SeekFrom::Data(2 << 20),
        SeekFrom::Hole(5 << 20),
        SeekFrom::End(-1),
    ]
    .map(seek);
    Ok(format!(
        "{} {}",
        at.join(" "),
        file.metadata()?.blocks() < 200
    ))
}

fn copy_range_over_the_end(dir: &Path) -> ProbeResult {
    let from = create(&dir.join("from"), &[7; 10_000])?;
    let to = create(&dir.join("to"), b"")?;
    let (mut at, mut end) = (9_000, 10_000);
    let first = rustix::fs::copy_file_range(&from, Some(&mut at), &to, None, 5_000)?;
    let none = rustix::fs::copy_file_range(&from, Some(&mut end), &to, None, 5_000)?;
    let append = OpenOptions::new().append(true).open(dir.join("to"))?;
    let refused =
        rustix::fs::copy_file_range(&from, None, &append, None, 10).map_err(io::Error::from);
    Ok(format!(
        "{first} {none} {at} {} {}",
        to.metadata()?.len(),
        refused.expect_err("a file for appending is refused")
    ))
}

fn copy_range_in_one_file(dir: &Path) -> ProbeResult {
    let file = create(
        &dir.join("f"),
        &(0..20_000u32)
            .map(|number| (number / 100) as u8)
            .collect::<Vec<_>>(),
    )?;
    let (mut from, mut to, mut over) = (0, 12_345, 100);
    let copied = rustix::fs::copy_file_range(&file, Some(&mut from), &file, Some(&mut to), 5_000)?;
    let mut again = 0;
    let overlapping =
        rustix::fs::copy_file_range(&file, Some(&mut again), &file, Some(&mut over), 5_000)
            .map_err(io::Error::from);
    Ok(format!(
        "{copied} {} {}",
        hash(&dir.join("f"))?,
        overlapping.expect_err("overlapping ranges are refused")
    ))
}

fn pwrite_appends(dir: &Path) -> ProbeResult {
    create(&dir.join("f"), b"first ")?;
    let file = OpenOptions::new().append(true).open(dir.join("f"))?;
    file.write_at(b"second", 0)?;
    fs::read_to_string(dir.join("f"))
}

fn direct(dir: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(dir.join("f"))
}

fn direct_io(dir: &Path) -> ProbeResult {
    let file = direct(dir)?;
    // The start of a page within a larger buffer.
    let mut buffer = vec![5u8; 3 * 4096];
    let start = buffer.as_ptr().align_offset(4096);
    let aligned = &mut buffer[start..start + 4096];
    file.write_all_at(aligned, 4096)?;
    aligned.fill(0);
    let read = file.read_at(aligned, 4096)?;
    Ok(format!(
        "{read} {} {}",
        aligned.iter().all(|byte| *byte == 5),
        file.metadata()?.len()
    ))
}

fn direct_io_unaligned(dir: &Path) -> ProbeResult {
    let file = direct(dir)?;
    let mut buffer = vec![5u8; 3 * 4096];
    let start = buffer.as_ptr().align_offset(4096);
    let aligned = &mut buffer[start..start + 4096];
    Ok(format!(
        "{} {} {}",
        said(file.write_at(&aligned[..100], 0)),
        said(file.write_at(aligned, 100)),
        file.metadata()?.len()
    ))
}

fn vectors_with_flags(dir: &Path) -> ProbeResult {
    use rustix::io::ReadWriteFlags;
    let file = create(&dir.join("f"), b"text")?;
    let write = |flags, at| {
        rustix::io::pwritev2(&file, &[io::IoSlice::new(b"more")], at, flags)
            .map_err(io::Error::from)
    };
    let mut buffer = [0; 4];
    let durable = said(write(ReadWriteFlags::DSYNC, 2));
    let appended = said(write(ReadWriteFlags::APPEND, 0));
    let read = rustix::io::preadv2(
        &file,
        &mut [io::IoSliceMut::new(&mut buffer)],
        0,
        ReadWriteFlags::HIPRI,
    )
    .map_err(io::Error::from);
    Ok(format!(
        "{durable} {appended} {} {}",
        said(read),
        fs::read_to_string(dir.join("f"))?
    ))
}

fn largest_file(dir: &Path) -> ProbeResult {
    let file = create(&dir.join("f"), b"")?;
    let sizes = [1 << 40, (1 << 62) - 1, i64::MAX as u64].map(|size| said(file.set_len(size)));
    file.set_len(0)?;
    let far = file.write_at(b"x", 1 << 42);
    let length = file.metadata()?.len();
    let too_far = said(file.write_at(b"xx", i64::MAX as u64 - 1));
    file.set_len(0)?;
    Ok(format!(
        "{} {} {length} {too_far}",
        sizes.join(" "),
        said(far)
    ))
}

fn link_of_a_link(dir: &Path) -> ProbeResult {
    symlink("nowhere", dir.join("link"))?;
    linkat(
        CWD,
        dir.join("link"),
        CWD,
        dir.join("second"),
        AtFlags::empty(),
    )?;
    let follow = linkat(
        CWD,
        dir.join("link"),
        CWD,
        dir.join("third"),
        AtFlags::SYMLINK_FOLLOW,
    )
    .map_err(io::Error::from);
    Ok(format!(
        "{} {}",
        fs::symlink_metadata(dir.join("second"))?.nlink(),
        said(follow)
    ))
}

fn link_of_a_descriptor(dir: &Path) -> ProbeResult {
    let file = create(&dir.join("f"), b"text")?;
    linkat(&file, "", CWD, dir.join("second"), AtFlags::EMPTY_PATH)?;
    fs::remove_file(dir.join("f"))?;
    fs::remove_file(dir.join("second"))?;
    let gone =
        linkat(&file, "", CWD, dir.join("third"), AtFlags::EMPTY_PATH).map_err(io::Error::from);
    Ok(said(gone))
}

fn unlinked_file(dir: &Path) -> ProbeResult {
    let file = create(&dir.join("f"), b"text")?;
    fs::remove_file(dir.join("f"))?;
    file.set_len(1000)?;
    rustix::fs::fchmod(&file, Mode::RWXU)?;
    rustix::fs::fchown(&file, Some(rustix::fs::Uid::from_raw(1)), None)?;
    rustix::fs::fsetxattr(&file, "user.a", b"1", XattrFlags::empty())?;
    rustix::fs::fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        0,
        2,
    )?;
    file.sync_all()?;
    let again = File::open(via(&file))?;
    let mut text = String::new();
    again.take(4).read_to_string(&mut text)?;
    let meta = file.metadata()?;
    Ok(format!(
        "{text:?} {} {:o} {} {}",
        meta.nlink(),
        meta.mode(),
        meta.uid(),
        meta.len()
    ))
}

fn removed_directory(dir: &Path) -> ProbeResult {
    let path = dir.join("d");
    fs::create_dir(&path)?;
    let held = open(&path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())?;
    fs::remove_dir(&path)?;
    let make = openat(
        &held,
        "f",
        OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RWXU,
    )
    .map_err(io::Error::from);
    let directory = rustix::fs::mkdirat(&held, "e", Mode::RWXU).map_err(io::Error::from);
    let parent = openat(&held, "..", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(io::Error::from);
    let names = rustix::fs::Dir::read_from(&held)?.count();
    let links = rustix::fs::fstat(&held)?.st_nlink;
    Ok(format!(
        "{} {} {} {names} {links}",
        said(make),
        said(directory),
        said(parent)
    ))
}

fn open_flags(dir: &Path) -> ProbeResult {
    create(&dir.join("f"), b"text")?;
    symlink("f", dir.join("link"))?;
    symlink("none", dir.join("dangling"))?;
    let try_open = |name: &str, flags| {
        open(dir.join(name), flags, Mode::RWXU)
            .map_err(io::Error::from)
            .map_or_else(|error| error.to_string(), |_| "ok".to_owned())
    };
    let all = [
        try_open(".", OFlags::RDWR),
        try_open("f", OFlags::DIRECTORY),
        try_open("f/", OFlags::RDONLY),
        try_open("link", OFlags::NOFOLLOW),
        try_open("link", OFlags::NOFOLLOW | OFlags::PATH),
        try_open("link", OFlags::CREATE | OFlags::EXCL | OFlags::RDWR),
        try_open("dangling", OFlags::CREATE | OFlags::EXCL | OFlags::RDWR),
        try_open("dangling", OFlags::CREATE | OFlags::RDWR),
        try_open("new", OFlags::CREATE | OFlags::DIRECTORY | OFlags::RDWR),
        try_open("new", OFlags::CREATE | OFlags::NOFOLLOW | OFlags::RDONLY),
        try_open("f", OFlags::NOATIME),
    ];
    Ok(format!("{} {}", all.join(", "), fs::read_dir(dir)?.count()))
}

fn odd_names(dir: &Path) -> ProbeResult {
    let make = |name: &str| said(create(&dir.join(name), b""));
    let target = |length| said(symlink("t".repeat(length), dir.join(format!("l{length}"))));
    let all = [
        make(&"n".repeat(255)),
        make(&"n".repeat(256)),
        make("\u{1}\n\\"),
        make("x/"),
        target(1023),
        target(4095),
        target(4096),
    ];
    let dots = [
        fs::remove_dir(dir.join(".")),
        fs::remove_dir(dir.join("..")),
        fs::rename(dir.join("."), dir.join("x")),
    ]
    .map(said);
    fs::create_dir_all(dir.join("d/e"))?;
    let inside = said(fs::rename(dir.join("d"), dir.join("d/e/f")));
    Ok(format!("{} {} {inside}", all.join(" "), dots.join(" ")))
}

fn device(dir: &Path) -> ProbeResult {
    let path = dir.join("null");
    mknodat(
        CWD,
        &path,
        FileType::CharacterDevice,
        Mode::RWXU,
        rustix::fs::makedev(1, 3),
    )?;
    OpenOptions::new()
        .write(true)
        .open(&path)?
        .write_all(b"gone")?;
    Ok(format!(
        "{} {}",
        fs::metadata(&path)?.rdev(),
        fs::read(&path)?.len()
    ))
}

fn script(dir: &Path) -> PathBuf {
    let path = dir.join("script");
    write_script(&path, "#!/bin/sh\necho $1\n");
    path
}

fn program(dir: &Path) -> ProbeResult {
    let output = Command::new(script(dir)).arg("hello").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn program_being_written(dir: &Path) -> ProbeResult {
    let path = script(dir);
    let _writer = OpenOptions::new().write(true).open(&path)?;
    let refused = Command::new(path).output();
    Ok(refused.map_or_else(
        |error| error.to_string(),
        |output| output.status.to_string(),
    ))
}

/// The inode numbers of a listing equal those of stat.
fn numbers_of_a_listing(dir: &Path) -> ProbeResult {
    create(&dir.join("f"), b"")?;
    fs::create_dir(dir.join("d"))?;
    symlink("f", dir.join("l"))?;
    let held = open(dir, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())?;
    let mut same = Vec::new();
    for entry in rustix::fs::Dir::read_from(&held)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let found = rustix::fs::statat(&held, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
        same.push(format!(
            "{name} {:?} {}",
            entry.file_type(),
            found.st_ino == entry.ino()
        ));
    }
    same.sort();
    Ok(same.join(", "))
}

fn syncs(dir: &Path) -> ProbeResult {
    create(&dir.join("f"), b"text")?;
    let file = File::open(dir.join("f"))?;
    let held = File::open(dir)?;
    rustix::fs::fdatasync(&file)?;
    rustix::fs::fsync(&file)?;
    rustix::fs::fsync(&held)?;
    rustix::fs::syncfs(&held)?;
    Ok(String::new())
}
