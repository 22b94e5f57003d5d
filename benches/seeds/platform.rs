//! The cost of copies: one file by each method, a directory, and probed capabilities.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use serde_json::Value as Json;

use crate::common::command::{run_limited, tool};
use crate::options::Seed;
use crate::report::{Report, Row};
use crate::shapes;
use crate::shared::stats::Samples;
use crate::world::{SECONDS, SeedEnv, cp, remove, timed};

const PROBE: &str = "Platform: features, found by use";
const FILES: &str = "Platform: a copy of one file";
const DIRECTORY: &str = "Platform: a copy of the tree";
const SEED: &str = "Linux platform benchmark (arm64, tmpfs, another machine)";
const MIB: u64 = 1 << 20;
const SIZES: [u64; 4] = [1, 10, 100, 1024];
/// Node's `copyFile` reads blocks of this order.
const BUFFER: usize = 1 << 20;

pub fn measure(world: &mut SeedEnv<'_>, report: &mut Report) {
    probe(world, report);
    for size in SIZES {
        one_file(world, size, report);
    }
    let tree = world.tree();
    directory(world, &tree, report);
}

/// Tries each capability, and adds the result of `ckptfs doctor`.
fn probe(world: &SeedEnv<'_>, report: &mut Report) {
    let dir = world.dir("probe");
    shapes::write(&dir.join("from"), 1 << 16, 1);
    let said = |result: Result<(), String>| {
        result.map_or_else(|error| format!("no ({error})"), |()| "yes".to_owned())
    };
    let doctor = run_limited(
        tool(env!("CARGO_BIN_EXE_ckptfs"), &["doctor", "--json"]).arg(&dir),
        SECONDS,
    );
    let doctor: Json = serde_json::from_slice(&doctor.stdout).unwrap_or_default();
    let found = |check: &str| {
        let findings = doctor["findings"].as_array().cloned().unwrap_or_default();
        findings
            .iter()
            .find(|finding| finding["check"] == check)
            .map_or_else(
                || "-".to_owned(),
                |finding| finding["found"].to_string().replace('"', ""),
            )
    };
    type Way = fn(&Path, &Path) -> Result<(), String>;
    let ways: [(&str, Way, &str); 3] = [
        ("Reflink/Clone", reflink, "No (tmpfs)"),
        (
            "Hardlinks",
            |from, to| fs::hard_link(from, to).map_err(|error| error.to_string()),
            "Yes",
        ),
        ("copy_file_range", ranged, "Yes"),
    ];
    for (what, way, seed) in ways {
        let to = dir.join(what.replace('/', "-"));
        let tried = said(way(&dir.join("from"), &to));
        let doctor = if what.starts_with("Reflink") {
            found("reflink")
        } else {
            "-".to_owned()
        };
        let name = if what.starts_with("Reflink") {
            found("filesystem")
        } else {
            "-".to_owned()
        };
        let row = Row::new(world.fs(), what)
            .text("tried here", tried)
            .text("`ckptfs doctor`", doctor)
            .text("its filesystem", name);
        report.add(Seed::Platform, PROBE, row.text(SEED, seed));
    }
    remove(&dir);
}

fn reflink(from: &Path, to: &Path) -> Result<(), String> {
    let (from, to) = (
        File::open(from).map_err(|error| error.to_string())?,
        File::create(to).map_err(|error| error.to_string())?,
    );
    rustix::fs::ioctl_ficlone(&to, &from).map_err(|errno| errno.to_string())
}

fn ranged(from: &Path, to: &Path) -> Result<(), String> {
    let (from, to) = (
        File::open(from).map_err(|error| error.to_string())?,
        File::create(to).map_err(|error| error.to_string())?,
    );
    let mut left = from.metadata().map_err(|error| error.to_string())?.len();
    while left > 0 {
        let copied = rustix::fs::copy_file_range(
            &from,
            None,
            &to,
            None,
            usize::try_from(left).unwrap_or(usize::MAX),
        );
        match copied.map_err(|errno| errno.to_string())? {
            0 => return Err("the copy ended early".to_owned()),
            copied => left -= copied as u64,
        }
    }
    Ok(())
}

fn read_write(from: &Path, to: &Path) -> Result<(), String> {
    let copy = || -> std::io::Result<()> {
        let (mut from, mut to, mut buffer) =
            (File::open(from)?, File::create(to)?, vec![0; BUFFER]);
        loop {
            match from.read(&mut buffer)? {
                0 => return Ok(()),
                read => to.write_all(&buffer[..read])?,
            }
        }
    };
    copy().map_err(|error| error.to_string())
}

fn one_file(world: &SeedEnv<'_>, mib: u64, report: &mut Report) {
    let what = if mib < 1024 {
        format!("{mib} MiB")
    } else {
        "1 GiB".to_owned()
    };
    let space = rustix::fs::statvfs(world.path()).expect("it is mounted");
    let host = rustix::fs::statvfs(
        world
            .path()
            .parent()
            .expect("an image has a parent directory"),
    )
    .expect("it is mounted");
    let free = (space.f_bavail * space.f_frsize).min(host.f_bavail * host.f_frsize);
    if world.options.quick && mib >= 1024 || free < 4 * mib * MIB {
        let why = if world.options.quick {
            "omitted from a quick run"
        } else {
            "omitted: not enough space on the disk"
        };
        report.add(
            Seed::Platform,
            FILES,
            Row::new(world.fs(), what).text("reflink", why),
        );
        return;
    }
    let dir = world.dir("copies");
    let from = dir.join("from");
    shapes::write(&from, (mib * MIB) as usize, mib as usize);
    world.sync();
    type Way = fn(&Path, &Path) -> Result<(), String>;
    let ways: [(&'static str, Way); 3] = [
        ("reflink", reflink),
        ("copy_file_range", ranged),
        ("read and write", read_write),
    ];
    let mut samples = ways.map(|_| Samples::default());
    let mut refused = ways.map(|_| None);
    for _ in world.options.rounds(15, 8) {
        for (index, (_, way)) in ways.iter().enumerate() {
            let to = dir.join("to");
            let mut took = Samples::default();
            match took.time(|| way(&from, &to)) {
                Ok(()) => samples[index].add_us(took.max()),
                Err(error) => refused[index] = Some(error),
            }
            let _ = fs::remove_file(&to);
        }
    }
    let mut row = Row::new(world.fs(), what);
    for (index, (head, _)) in ways.iter().enumerate() {
        row = match &refused[index] {
            Some(error) => row.text(head, format!("no ({error})")),
            None => row.cell(head, crate::report::Value::Time(samples[index].clone())),
        };
    }
    let seed = if mib == 1 {
        "kernel copy 0.265 ms, userspace copy 0.252 ms"
    } else {
        "-"
    };
    report.add(Seed::Platform, FILES, row.text(SEED, seed));
    remove(&dir);
}

fn directory(world: &SeedEnv<'_>, tree: &Path, report: &mut Report) {
    type Command = fn(&Path, &Path) -> std::process::Command;
    let linked: Command = |from, to| {
        let mut command = tool("cp", &["-al", "--"]);
        command.arg(from).arg(to);
        command
    };
    let apart: Command = |from, to| {
        let mut command = tool("cp", &["-a", "--reflink=never", "--"]);
        command.arg(from).arg(to);
        command
    };
    let ways: [(&'static str, Command); 3] = [
        ("directory clone, `cp -a --reflink=auto`", cp),
        ("hard links, `cp -al`", linked),
        ("a copy, `cp -a --reflink=never`", apart),
    ];
    let mut samples = ways.map(|_| Samples::default());
    for _ in world.options.rounds(3, 20) {
        for (index, (_, way)) in ways.iter().enumerate() {
            let to = world.path().join("clone");
            timed(&mut samples[index], &mut way(tree, &to));
            remove(&to);
            world.sync();
        }
    }
    for (index, (what, _)) in ways.iter().enumerate() {
        let row = Row::new(world.fs(), format!("{what}, {} files", world.files()))
            .cell("time", crate::report::Value::Time(samples[index].clone()));
        report.add(Seed::Platform, DIRECTORY, row.text(SEED, "-"));
    }
}
