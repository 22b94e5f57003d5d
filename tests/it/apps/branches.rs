//! Real programs in several branches at once, each as if it were alone in the project.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::apps::build::{LEAVES, cargo, make_crate, npm, npm_project};
use crate::apps::support::{
    PROGRAM_SECONDS, crates_named, missing, output, program, run, variants,
};
use crate::common::wait::wait_longer;
use crate::common::{Rig, Variant, run_limited, skip, stdout_of, succeeds};

/// Creates a branch and returns its path.
fn branch(rig: &Rig, name: &str) -> PathBuf {
    PathBuf::from(rig.mount.ok(&["branch", "create", name]).trim_end())
}

/// Appends the program, arguments and environment of `command` to `before`.
fn after(mut before: Command, command: &Command) -> Command {
    before.arg(command.get_program()).args(command.get_args());
    for (variable, value) in command.get_envs() {
        match value {
            Some(value) => before.env(variable, value),
            None => before.env_remove(variable),
        };
    }
    before
}

/// Returns the command for a run with the branch at the project's path.
fn in_branch(rig: &Rig, name: &str, command: &Command) -> Command {
    let dir = command
        .get_current_dir()
        .expect("the working directory is known");
    let mut run = rig
        .mount
        .command(&["branch", "run", name, "--", "env", "-C"]);
    run.arg(dir);
    after(run, command)
}

fn said(command: &mut Command) -> String {
    let output = succeeds(command, PROGRAM_SECONDS);
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// In three branches of a built project, the tests of its crates run concurrently, and only changed
/// crates are compiled again.
fn test_suites_at_once(v: Variant) {
    let Some(leaves) = crates_named(&LEAVES, LEAVES.len()) else {
        return skip("cargo has not fetched the crates to build");
    };
    let rig = v.start();
    let home = rig.image.dir("cargo-home");
    let app = rig.path().join("app");
    make_crate(&app, &leaves, "here");
    let test = cargo(
        &app,
        &home,
        &["test", "--offline", "--workspace", "--lib", "--bins"],
    );
    let build = cargo(&app, &home, &["build", "--offline"]);
    let again = |command: &Command| said(&mut after(program(&app, "env", &[] as &[&str]), command));
    assert!(again(&build).contains("Compiling app"));
    assert!(again(&test).contains("Compiling app"));
    let names = ["one", "two", "three"];
    names.iter().for_each(|name| {
        branch(&rig, name);
    });
    thread::scope(|scope| {
        for name in names {
            let (rig, app, test, build) = (&rig, &app, &test, &build);
            scope.spawn(move || {
                let told = said(&mut in_branch(rig, name, test));
                assert!(!told.contains("Compiling"), "{name}: {told}");
                assert!(
                    told.matches("test result: ok.").count() >= LEAVES.len(),
                    "{told}"
                );
                let script = format!("s/here/{name}/");
                let edit = program(app, "sed", &["-i", &script, "src/main.rs"]);
                said(&mut in_branch(rig, name, &edit));
                let told = said(&mut in_branch(rig, name, build));
                let again = told.matches("Compiling").count();
                assert!(
                    again == 1 && told.contains("Compiling app"),
                    "{name}: {told}"
                );
                let says = program(app, "target/debug/app", &[] as &[&str]);
                let says = said(&mut in_branch(rig, name, &says));
                assert!(
                    says.starts_with(&format!("{name} 3 snake_case\n")),
                    "{says}"
                );
            });
        }
    });
    assert!(
        !again(&build).contains("Compiling"),
        "nothing is rebuilt without a change"
    );
    assert!(output(&app, "target/debug/app", &[] as &[&str]).starts_with("here 3"));
}

/// A package of two thousand files is installed in two branches at once, not in the project, and is
/// part of a merge.
fn npm_install_in_branches(v: Variant) {
    if let Some(reason) = missing(&["node", "npm"]) {
        return skip(&reason);
    }
    let rig = v.start();
    let project = rig.path().join("project");
    let cache = rig.image.dir("npm-cache");
    if let Some(reason) = npm_project(&rig, &project, &cache) {
        return skip(&reason);
    }
    thread::scope(|scope| {
        for name in ["one", "two"] {
            let (project, cache) = (branch(&rig, name).join("project"), cache.join(name));
            scope.spawn(move || {
                let mut install = npm(&project, &cache, &["install", "./x.tgz"]);
                succeeds(&mut install, PROGRAM_SECONDS);
            });
        }
    });
    let version = |dir: &Path| {
        let cli = dir.join("node_modules/npm/bin/npm-cli.js");
        output(dir, "node", &[cli.to_str().unwrap(), "--version"])
    };
    let branch = rig.path().with_file_name("project@one").join("project");
    let installed = version(&branch);
    assert!(!project.join("node_modules").exists());
    rig.mount.ok(&["merge", "one"]);
    assert_eq!(version(&project), installed);
    run(
        &project,
        "diff",
        &["-r".as_ref(), project.as_os_str(), branch.as_os_str()],
    );
}

/// A server on a data directory, killed when dropped.
struct Postgres {
    child: Child,
    sockets: PathBuf,
    programs: PathBuf,
}

impl Postgres {
    /// Initializes a data directory, and returns the directory of the programs.
    fn init(data: &Path) -> PathBuf {
        let programs = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
        let newest = programs
            .flatten()
            .map(|entry| entry.path().join("bin"))
            .max();
        let programs = newest.expect("the programs are at Debian's path");
        fs::create_dir(data).unwrap();
        run(
            Path::new("/"),
            "chown",
            &["postgres:".as_ref(), data.as_os_str()],
        );
        let initdb = programs.join("initdb");
        let arguments = ["-N", "-A", "trust", "-D"].map(AsRef::as_ref);
        let arguments = [&[initdb.as_os_str()], &arguments[..], &[data.as_os_str()]].concat();
        succeeds(&mut Self::as_owner(data, &arguments), PROGRAM_SECONDS);
        programs
    }

    fn as_owner(dir: &Path, arguments: &[&std::ffi::OsStr]) -> Command {
        let user = ["--reuid=postgres", "--regid=postgres", "--clear-groups"];
        let mut command = program(dir, "setpriv", &user);
        command.args(arguments).env("PGUSER", "postgres");
        command
    }

    /// Starts the server and waits for the end of recovery; its log and socket are in `sockets`.
    fn start(programs: &Path, data: &Path, sockets: PathBuf) -> Postgres {
        run(
            Path::new("/"),
            "chown",
            &["postgres:".as_ref(), sockets.as_os_str()],
        );
        let log = File::create(sockets.join("log")).unwrap();
        let server = programs.join("postgres");
        let mut command = Self::as_owner(data, &[server.as_os_str(), "-D".as_ref()]);
        command.arg(data).arg("-k").arg(&sockets);
        command.args(["-c", "listen_addresses=", "-c", "shared_buffers=16MB"]);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let started = Postgres {
            child: command.spawn().expect("setpriv is installed"),
            sockets,
            programs: programs.to_owned(),
        };
        wait_longer("the server answers", PROGRAM_SECONDS, || {
            let mut asked = started.psql("select 1");
            run_limited(&mut asked, PROGRAM_SECONDS).status.success()
        });
        started
    }

    fn psql(&self, statement: &str) -> Command {
        let mut command = program(Path::new("/"), "psql", &["-X", "-q", "-A", "-t", "-U"]);
        command.args(["postgres", "-h"]).arg(&self.sockets);
        command.args(["-v", "ON_ERROR_STOP=1", "-c", statement, "postgres"]);
        command
    }

    fn ask(&self, statement: &str) -> String {
        stdout_of(&mut self.psql(statement), PROGRAM_SECONDS)
            .trim()
            .to_owned()
    }

    fn count(&self) -> u64 {
        self.ask("select count(*) from t")
            .parse()
            .expect("a number")
    }
}

impl Drop for Postgres {
    /// An immediate shutdown also ends the server's child processes, which would keep the mount
    /// busy.
    fn drop(&mut self) {
        let quit = kill_process(Pid::from_child(&self.child), Signal::QUIT);
        if quit.is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// A branch of a data directory under load has the state of a power cut: the server recovers in it
/// with every transaction committed before, and the two are independent afterwards.
fn postgres_under_load(v: Variant) {
    if let Some(reason) = missing(&["psql", "initdb", "setpriv"]) {
        return skip(&reason);
    }
    let rig = v.start();
    let data = rig.path().join("pg");
    let programs = Postgres::init(&data);
    let here = Postgres::start(&programs, &data, rig.image.dir("sockets"));
    here.ask("create table t (id bigserial primary key, word text default 'here')");
    let load = rig.image.dir("load");
    fs::write(load.join("insert"), "insert into t default values;\n").unwrap();
    let mut bench = program(
        &load,
        here.programs.join("pgbench").to_str().unwrap(),
        &["-n", "-h"],
    );
    bench
        .arg(&here.sockets)
        .args(["-U", "postgres", "-c", "4", "-T", "30", "-f", "insert"]);
    let mut bench = bench
        .arg("postgres")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_longer("the load has begun", PROGRAM_SECONDS, || here.count() > 100);

    let before = here.count();
    let there = branch(&rig, "try").join("pg");
    let after = here.count();
    fs::remove_file(there.join("postmaster.pid")).unwrap();
    let branched = Postgres::start(&programs, &there, rig.image.dir("sockets-there"));
    let count = branched.count();
    assert!(
        (before..=after).contains(&count),
        "{before} <= {count} <= {after}"
    );
    assert_eq!(
        branched.ask("select count(distinct id) from t where word = 'here'"),
        count.to_string()
    );
    branched.ask("update t set word = 'there'; insert into t select from generate_series(1, 1000)");
    let _ = bench.kill();
    let _ = bench.wait();
    assert_eq!(branched.count(), count + 1000);
    assert!(here.count() >= after);
    assert_eq!(here.ask("select count(*) from t where word <> 'here'"), "0");
    let log = fs::read_to_string(branched.sockets.join("log")).unwrap();
    assert!(log.contains("automatic recovery in progress"), "{log}");
}

variants! { test_suites_at_once => xfs_passthrough }
variants! { npm_install_in_branches => btrfs_passthrough }
variants! { postgres_under_load => xfs_passthrough, btrfs_daemon }
