//! Build tools: cargo, npm, make. They depend on mtimes, so a restore must restore these.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apps::support::{
    PROGRAM_SECONDS, ReferenceCopy, crates_named, missing, output, program, run, shell, variants,
};
use crate::common::{Rig, Variant, skip, stdout_of, succeeds};

/// Crates without dependencies.
pub const LEAVES: [&str; 3] = ["strsim-", "heck-", "utf8parse-"];

/// Returns a cargo command with a separate home, without a shared lock and the user's settings.
pub fn cargo(dir: &Path, home: &Path, arguments: &[&str]) -> Command {
    let mut command = program(
        dir,
        &std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()),
        arguments,
    );
    for name in [
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET",
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "CARGO_INCREMENTAL",
    ] {
        command.env_remove(name);
    }
    command
        .env("CARGO_HOME", home)
        .env("CARGO_TERM_COLOR", "never");
    command
}

/// Makes a crate that prints `word`, with dependencies on crates that cargo has fetched.
pub fn make_crate(app: &Path, leaves: &[PathBuf], word: &str) {
    fs::create_dir_all(app.join("src")).unwrap();
    let mut manifest = "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n[dependencies]\n".to_owned();
    for (leaf, prefix) in leaves.iter().zip(LEAVES) {
        let name = prefix.trim_end_matches('-');
        run(app, "cp", &["-r".as_ref(), leaf.as_os_str(), name.as_ref()]);
        manifest += &format!("{name} = {{ path = \"{name}\" }}\n");
    }
    fs::write(app.join("Cargo.toml"), manifest).unwrap();
    let main = format!(
        "fn main() {{ println!(\"{word} {{}} {{}}\", strsim::levenshtein(\"kitten\", \"sitting\"), heck::ToSnakeCase::to_snake_case(\"SnakeCase\")); }}\n"
    );
    fs::write(app.join("src/main.rs"), main).unwrap();
}

fn cargo_build(v: Variant) {
    let Some(leaves) = crates_named(&LEAVES, LEAVES.len()) else {
        return skip("cargo has not fetched the crates to build");
    };
    let rig = v.start();
    let home = rig.image.dir("cargo-home");
    let app = rig.path().join("app");
    make_crate(&app, &leaves, "one");
    let build = || {
        String::from_utf8_lossy(
            &succeeds(
                &mut cargo(&app, &home, &["build", "--offline"]),
                PROGRAM_SECONDS,
            )
            .stderr,
        )
        .into_owned()
    };
    let says = || {
        stdout_of(
            &mut program(
                &app,
                app.join("target/debug/app").to_str().unwrap(),
                &[] as &[&str],
            ),
            PROGRAM_SECONDS,
        )
    };
    assert!(build().contains("Compiling app"));
    assert_eq!(says(), "one 3 snake_case\n");
    assert!(
        !build().contains("Compiling"),
        "a second build finds nothing to do"
    );
    let one = ReferenceCopy::now(&rig, "one");

    let source = fs::read_to_string(app.join("src/main.rs"))
        .unwrap()
        .replace("one", "two");
    fs::write(app.join("src/main.rs"), source).unwrap();
    let said = build();
    assert!(
        said.contains("Compiling app") && !said.contains("Compiling strsim"),
        "{said}"
    );
    assert_eq!(says(), "two 3 snake_case\n");
    let two = ReferenceCopy::now(&rig, "two");

    succeeds(&mut cargo(&app, &home, &["clean"]), PROGRAM_SECONDS);
    assert!(!app.join("target").exists());
    for (moment, word) in [(&one, "one"), (&two, "two")] {
        moment.restore(&rig);
        assert_eq!(says(), format!("{word} 3 snake_case\n"));
        let said = build();
        assert!(
            !said.contains("Compiling"),
            "after a restore there is something to build:\n{said}"
        );
    }
    one.is_seen(&rig);
    two.is_seen(&rig);
}

/// Returns an npm command without network, with its own files outside the mount.
pub fn npm(dir: &Path, cache: &Path, arguments: &[&str]) -> Command {
    let mut command = program(dir, "npm", arguments);
    command
        .args([
            "--offline",
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "--ignore-scripts",
            "--cache",
        ])
        .arg(cache);
    command
        .env("HOME", cache)
        .env("NPM_CONFIG_USERCONFIG", "/dev/null");
    command
}

/// Makes a project with npm itself in `x.tgz` as an installable package: two thousand files, with
/// bundled dependencies. Returns the reason if that is impossible.
pub fn npm_project(rig: &Rig, project: &Path, cache: &Path) -> Option<String> {
    let outside = rig.image.dir("packages");
    let global = PathBuf::from(output(Path::new("/"), "npm", &["root", "-g"]).trim());
    if !global.join("npm/package.json").exists() {
        return Some(
            "npm's own package, which is to be installed, is not at the path that npm reports"
                .into(),
        );
    }
    succeeds(
        npm(&outside, cache, &["pack"]).arg(global.join("npm")),
        PROGRAM_SECONDS,
    );
    let tarball = fs::read_dir(&outside)
        .unwrap()
        .next()
        .expect("npm pack creates a tarball")
        .unwrap()
        .path();
    fs::create_dir(project).unwrap();
    fs::write(
        project.join("package.json"),
        "{\"name\":\"project\",\"version\":\"1.0.0\"}\n",
    )
    .unwrap();
    fs::copy(&tarball, project.join("x.tgz")).unwrap();
    None
}

fn npm_install(v: Variant) {
    if let Some(reason) = missing(&["node", "npm"]) {
        return skip(&reason);
    }
    let rig = v.start();
    let cache = rig.image.dir("npm-cache");
    let project = rig.path().join("project");
    if let Some(reason) = npm_project(&rig, &project, &cache) {
        return skip(&reason);
    }
    let before = ReferenceCopy::now(&rig, "before");

    succeeds(
        &mut npm(&project, &cache, &["install", "./x.tgz"]),
        PROGRAM_SECONDS,
    );
    let version = || {
        output(
            &project,
            "node",
            &["node_modules/npm/bin/npm-cli.js", "--version"],
        )
    };
    let installed_version = version();
    let installed = ReferenceCopy::now(&rig, "installed");

    succeeds(
        &mut npm(&project, &cache, &["uninstall", "npm"]),
        PROGRAM_SECONDS,
    );
    assert!(!project.join("node_modules/npm").exists());
    installed.restore(&rig);
    assert_eq!(version(), installed_version);
    before.restore(&rig);
    assert!(!project.join("node_modules").exists());
    installed.is_seen(&rig);
}

const MAKEFILE: &str = "all: out/sum\nout/%.o: src/%.txt | out\n\tsort $< >$@\n\techo $@ >>log\nout:\n\tmkdir -p out\nout/sum: out/a.o out/b.o\n\tcat $^ >$@\n\techo $@ >>log\n";

fn make_with_times(v: Variant) {
    if let Some(reason) = missing(&["make"]) {
        return skip(&reason);
    }
    let rig = v.start();
    let dir = rig.path();
    fs::create_dir(dir.join("src")).unwrap();
    fs::write(dir.join("Makefile"), MAKEFILE).unwrap();
    fs::write(dir.join("src/a.txt"), "b\na\n").unwrap();
    fs::write(dir.join("src/b.txt"), "d\nc\n").unwrap();
    let up_to_date = || output(dir, "make", &["-n"]).contains("Nothing to be done");
    run(dir, "make", &[] as &[&str]);
    assert!(up_to_date());
    let built = ReferenceCopy::now(&rig, "built");

    shell(
        dir,
        "echo z >>src/a.txt; make; tail -n 2 log | paste -sd' ' | grep -qx 'out/a.o out/sum'",
    );
    let again = ReferenceCopy::now(&rig, "again");
    shell(dir, "touch src/b.txt; rm -r out");
    built.restore(&rig);
    assert!(up_to_date(), "after a restore make finds something to do");
    assert_eq!(
        fs::read_to_string(dir.join("out/sum")).unwrap(),
        "a\nb\nc\nd\n"
    );
    again.restore(&rig);
    assert!(up_to_date(), "after a restore make finds something to do");
    built.is_seen(&rig);
}

variants! { cargo_build => xfs_passthrough, btrfs_daemon }
variants! { npm_install => xfs_daemon, btrfs_passthrough }
variants! { make_with_times => xfs_daemon, btrfs_passthrough }
