//! Real agents, where installed: they accept the installed settings, and call the hooks. They use a
//! local model with scripted replies (`model.py`).

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::super::cli::support::Sandbox;
use super::support::{get, install, nowhere};
use crate::common::command::{has, sh};
use crate::common::{MountOpts, Variant, for_each_variant, run_limited, skip};

for_each_variant! { xfs =>
    claude_code_is_told_of_its_damage_and_rewound,
    codex_is_told_of_its_damage_and_rewound,
    gemini_is_told_of_its_damage_and_rewound,
}

/// Time limit of an agent, which starts slowly, in seconds.
const SECONDS: u64 = 120;

/// Returns a command for an agent with a separate home; skips the test if it is not installed.
fn program(name: &str, package: &str, home: &Path) -> Option<Command> {
    if !has(name) {
        skip(&format!("{name} is not installed (npm: {package})"));
        return None;
    }
    let mut command = Command::new(name);
    command.env("HOME", home);
    Some(command)
}

fn claude(home: &Path) -> Option<Command> {
    let mut claude = program("claude", "@anthropic-ai/claude-code", home)?;
    claude
        .env("ANTHROPIC_API_KEY", "none")
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        .env("DISABLE_AUTOUPDATER", "1")
        .env("IS_SANDBOX", "1");
    Some(claude)
}

#[test]
fn claude_code_takes_the_plugin() {
    let sandbox = Sandbox::new();
    let Some(mut claude) = claude(&sandbox.path) else {
        return;
    };
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount/claude-plugin");
    claude.args(["plugin", "validate"]).arg(plugin);
    let ran = run_limited(&mut claude, SECONDS);
    assert!(ran.status.success(), "{ran:?}");
}

/// A model that requests the execution of one command.
struct Model {
    child: Child,
    port: String,
    told: PathBuf,
}

impl Model {
    fn start(command: &str, told: PathBuf) -> Model {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/agents/model.py");
        let mut child = Command::new("/usr/bin/python3")
            .args([script, command])
            .arg(&told)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let mut port = String::new();
        let stdout = child.stdout.take().expect("stdout");
        BufReader::new(stdout)
            .read_line(&mut port)
            .expect("it prints its port");
        Model {
            child,
            port: port.trim().to_owned(),
            told,
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn claude_code_is_told_of_its_damage_and_rewound(v: Variant) {
    let (_dir, home) = nowhere();
    let Some(mut claude) = claude(&home) else {
        return;
    };
    claude.args(["-p", "Clean up", "--dangerously-skip-permissions"]);
    claude.args(["--max-turns", "5"]);
    told_and_rewound(v, "claude-code", &home, claude, |claude, _, url| {
        claude.env("ANTHROPIC_BASE_URL", url);
    });
}

fn codex_is_told_of_its_damage_and_rewound(v: Variant) {
    let (_dir, home) = nowhere();
    let Some(mut codex) = program("codex", "@openai/codex", &home) else {
        return;
    };
    codex.args(["exec", "--dangerously-bypass-hook-trust"]);
    codex.args([
        "--dangerously-bypass-approvals-and-sandbox",
        "--skip-git-repo-check",
    ]);
    codex.arg("Clean up").env("CODEX_HOME", home.join("codex"));
    told_and_rewound(v, "codex", &home, codex, |_, tree, url| {
        let config = format!(
            "model = \"m\"\nmodel_provider = \"x\"\n[model_providers.x]\nname = \"x\"\nbase_url = \"{url}/v1\"\nwire_api = \"responses\"\n[projects.{:?}]\ntrust_level = \"trusted\"\n",
            tree.display().to_string()
        );
        std::fs::create_dir(home.join("codex")).expect("mkdir");
        std::fs::write(home.join("codex/config.toml"), config).expect("its settings");
    });
}

fn gemini_is_told_of_its_damage_and_rewound(v: Variant) {
    let (_dir, home) = nowhere();
    let Some(mut gemini) = program("gemini", "@google/gemini-cli", &home) else {
        return;
    };
    gemini.args(["--yolo", "-p", "Clean up"]);
    gemini
        .env("GEMINI_API_KEY", "none")
        .env("GEMINI_CLI_TRUST_WORKSPACE", "true");
    told_and_rewound(v, "gemini", &home, gemini, |gemini, _, url| {
        gemini.env("GOOGLE_GEMINI_BASE_URL", url);
        let own = r#"{"security":{"auth":{"selectedType":"gemini-api-key"}}}"#;
        std::fs::create_dir(home.join(".gemini")).expect("mkdir");
        std::fs::write(home.join(".gemini/settings.json"), own).expect("its settings");
    });
}

/// The agent deletes files with its shell and receives a report, and a rewind undoes its changes.
fn told_and_rewound(
    v: Variant,
    agent: &str,
    home: &Path,
    mut program: Command,
    prepare: impl FnOnce(&mut Command, &Path, String),
) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(
            dir,
            "mkdir src; for f in src/a src/b other; do echo $f > $f; done; echo secret > .env",
        );
    });
    install(&rig, agent);
    let model = Model::start("rm -r src .env; echo done > notes", home.join("told"));
    let url = format!("http://127.0.0.1:{}", model.port);
    prepare(&mut program, rig.path(), url);
    program.current_dir(rig.path());
    let ran = run_limited(&mut program, SECONDS);
    assert!(ran.status.success(), "{ran:?}");
    let told = std::fs::read_to_string(&model.told)
        .unwrap_or_else(|_| panic!("the model was not asked again: {ran:?}"));
    assert!(
        told.contains("This command changed: D src/ (2 files), D .env, A notes."),
        "{told}"
    );
    assert!(get(&rig, "src/a").is_none());
    sh(rig.path(), "echo hand > other");
    let said = rig.mount.ok(&["rewind", "-1"]);
    assert!(said.contains("rewound to before \"Clean up\": "), "{said}");
    for (name, content) in [
        ("src/a", Some("src/a\n")),
        ("src/b", Some("src/b\n")),
        (".env", Some("secret\n")),
        ("notes", None),
        ("other", Some("hand\n")),
    ] {
        assert_eq!(get(&rig, name).as_deref(), content, "{name}");
    }
}
