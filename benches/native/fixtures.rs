//! Inputs of the workloads, made once on the host's filesystem.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::command::{stdout_of, succeeds, tool, try_run_limited};
use crate::options::Options;
use crate::shared::tree;
use crate::workload::{SETUP_SECONDS, within};

/// Files in the repository.
const GIT_FILES: usize = 6_000;
/// Files that differ between its two tags.
pub const GIT_CHANGED: usize = 2_000;

const CARGO_MANIFEST: &str = "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n[dependencies]\n\
     serde_json = \"1\"\ntempfile = \"3\"\nmemchr = \"2\"\n";
const CARGO_MAIN: &str = "fn main() {\n    println!(\"{}\", serde_json::json!({ \"found\": memchr::memchr(b'a', b\"caaat\") }));\n}\n";
const NPM_MANIFEST: &str = "{\"name\":\"app\",\"version\":\"1.0.0\",\"private\":true,\
     \"dependencies\":{\"express\":\"4.21.2\",\"eslint\":\"8.57.1\",\"typescript\":\"5.4.5\"}}\n";

/// All inputs, in a temporary directory; a failed one contains the reason.
pub struct Fixtures {
    dir: tempfile::TempDir,
    /// A tree of small real files.
    pub tar: PathBuf,
    /// Relative paths of its regular files.
    pub small: Vec<PathBuf>,
    /// The same paths, each terminated by a zero byte.
    pub list: PathBuf,
    pub git: Result<Repository, String>,
    pub cargo: Result<Crate, String>,
    pub npm: Result<Packages, String>,
}

/// A repository with the tags `first` and `second`.
pub struct Repository {
    pub dir: PathBuf,
    pub files: usize,
    /// The commit of `second`, which is checked out.
    pub second: String,
}

/// A crate with the sources of all its dependencies.
pub struct Crate {
    pub dir: PathBuf,
    /// Regular files in `target` after a build.
    pub files: usize,
}

/// A project with a lock file, and a cache with all its packages.
pub struct Packages {
    pub project: PathBuf,
    pub cache: PathBuf,
    /// Regular files in `node_modules`.
    pub files: usize,
}

impl Fixtures {
    pub fn make(options: &Options) -> Fixtures {
        let dir = crate::common::scratch();
        let source = dir.path().join("tree");
        tree::make(&source, options.files);
        let (tar, list) = (dir.path().join("small.tar"), dir.path().join("small.list"));
        succeeds(
            &mut tool(
                "tar",
                &[
                    OsStr::new("-cf"),
                    tar.as_os_str(),
                    OsStr::new("-C"),
                    source.as_os_str(),
                    OsStr::new("."),
                ],
            ),
            SETUP_SECONDS,
        );
        let small = tree::regular_files(&source, 0);
        let names: Vec<u8> = small
            .iter()
            .flat_map(|file| [file.as_os_str().as_bytes(), b"\0"].concat())
            .collect();
        fs::write(&list, names).expect("the list can be written");
        let wanted = |name: &str| {
            if options.wants(name) {
                Ok(())
            } else {
                Err("not requested".to_owned())
            }
        };
        let git = wanted("git").and_then(|()| repository(&dir.path().join("git")));
        let cargo = wanted("cargo").and_then(|()| crate_with_sources(&dir.path().join("cargo")));
        let npm = wanted("npm").and_then(|()| packages(dir.path()));
        Fixtures {
            dir,
            tar,
            small,
            list,
            git,
            cargo,
            npm,
        }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn git(&self) -> &Repository {
        self.git
            .as_ref()
            .expect("scenarios with git require a repository")
    }

    pub fn cargo(&self) -> &Crate {
        self.cargo
            .as_ref()
            .expect("scenarios with cargo require a crate")
    }

    pub fn npm(&self) -> &Packages {
        self.npm
            .as_ref()
            .expect("scenarios with npm require packages")
    }
}

/// Returns a git command that ignores the user's configuration.
pub fn git(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = within(
        dir,
        "git",
        &[
            "-c",
            "gc.auto=0",
            "-c",
            "user.name=bench",
            "-c",
            "user.email=bench@localhost",
        ],
    );
    command
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

/// Returns a cargo command with a separate home, so that it does not wait for locks.
pub fn cargo(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = with_settings_of_cargo_gone(within(
        dir,
        &std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()),
        arguments,
    ));
    command.arg("--quiet").env("CARGO_HOME", dir.join("home"));
    command
}

fn with_settings_of_cargo_gone(mut command: Command) -> Command {
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
}

/// Returns an npm command without network queries and install scripts.
pub fn npm(dir: &Path, cache: &Path, arguments: &[&str]) -> Command {
    let mut command = within(dir, "npm", arguments);
    command
        .args([
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "--ignore-scripts",
            "--loglevel=error",
            "--cache",
        ])
        .arg(cache);
    command
        .env("HOME", cache)
        .env("NPM_CONFIG_USERCONFIG", "/dev/null");
    command
}

fn prepare(command: &mut Command) -> Result<(), String> {
    let output = try_run_limited(command, SETUP_SECONDS)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!(
            "{command:?} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}

fn repository(dir: &Path) -> Result<Repository, String> {
    tree::make(dir, GIT_FILES);
    let files = tree::regular_files(dir, 0);
    prepare(&mut git(dir, &["init", "-q"]))?;
    let commit = |name: &str| -> Result<(), String> {
        prepare(&mut git(dir, &["add", "--all", "--force"]))?;
        prepare(&mut git(dir, &["commit", "-q", "-m", name]))?;
        prepare(&mut git(dir, &["tag", name]))
    };
    commit("first")?;
    for file in files
        .iter()
        .step_by(files.len() / GIT_CHANGED)
        .take(GIT_CHANGED)
    {
        let opened = fs::OpenOptions::new().append(true).open(dir.join(file));
        opened
            .and_then(|mut file| file.write_all(b"// changed\n"))
            .map_err(|error| error.to_string())?;
    }
    commit("second")?;
    prepare(&mut git(dir, &["checkout", "-q", "second"]))?;
    prepare(&mut git(dir, &["gc", "--quiet"]))?;
    let second = stdout_of(&mut git(dir, &["rev-parse", "second"]), SETUP_SECONDS)
        .trim()
        .to_owned();
    Ok(Repository {
        dir: dir.to_owned(),
        files: files.len(),
        second,
    })
}

/// Uses the sources that cargo has fetched for this project.
fn crate_with_sources(dir: &Path) -> Result<Crate, String> {
    let write =
        |name: &str, text: &str| fs::write(dir.join(name), text).map_err(|error| error.to_string());
    fs::create_dir_all(dir.join("src")).map_err(|error| error.to_string())?;
    fs::create_dir_all(dir.join(".cargo")).map_err(|error| error.to_string())?;
    write("Cargo.toml", CARGO_MANIFEST)?;
    write("src/main.rs", CARGO_MAIN)?;
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    prepare(&mut with_settings_of_cargo_gone(within(
        dir,
        &program,
        &["vendor", "--offline", "--quiet"],
    )))?;
    write(
        ".cargo/config.toml",
        "[source.crates-io]\nreplace-with = \"vendored\"\n[source.vendored]\ndirectory = \"vendor\"\n",
    )?;
    prepare(&mut cargo(dir, &["build", "--offline"]))?;
    let target = dir.join("target");
    let files = tree::regular_files(&target, 0).len();
    fs::remove_dir_all(target).map_err(|error| error.to_string())?;
    Ok(Crate {
        dir: dir.to_owned(),
        files,
    })
}

/// Downloads the packages from npm's registry, once.
fn packages(dir: &Path) -> Result<Packages, String> {
    let (project, cache) = (dir.join("npm"), dir.join("npm-cache"));
    fs::create_dir_all(&project)
        .and_then(|()| fs::create_dir_all(&cache))
        .map_err(|error| error.to_string())?;
    fs::write(project.join("package.json"), NPM_MANIFEST).map_err(|error| error.to_string())?;
    prepare(&mut npm(&project, &cache, &["install"]))?;
    let modules = project.join("node_modules");
    let files = tree::regular_files(&modules, 0).len();
    fs::remove_dir_all(modules).map_err(|error| error.to_string())?;
    prepare(npm(&project, &cache, &["ci"]).arg("--offline"))?;
    fs::remove_dir_all(project.join("node_modules")).map_err(|error| error.to_string())?;
    Ok(Packages {
        project,
        cache,
        files,
    })
}
