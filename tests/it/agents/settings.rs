//! `agent install` and `uninstall` with existing settings.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use super::super::cli::support::{Ran, Sandbox};
use crate::common::command::sh;
use crate::common::tree::assert_tree_is;
use crate::common::{TreeOpts, skip, tree_of};

const AGENTS: [(&str, &str); 5] = [
    ("claude-code", ".claude/settings.json"),
    ("codex", ".codex/hooks.json"),
    ("gemini", ".gemini/settings.json"),
    ("cursor", ".cursor/hooks.json"),
    ("opencode", ".opencode/plugins/ckptfs.js"),
];

fn project() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path.join("p")).expect("mkdir");
    sandbox
}

fn agent(sandbox: &Sandbox, arguments: &[&str]) -> Ran {
    sandbox.ckptfs_in("p", &[&["agent"], arguments].concat())
}

fn states(sandbox: &Sandbox) -> Vec<(String, String, String)> {
    let said = agent(sandbox, &["status", "--json"]).ok().json();
    let text = |one: &Value, key: &str| one[key].as_str().expect("text").to_owned();
    let all = said.as_array().expect("a list").iter();
    all.filter(|one| one["state"] != "not installed")
        .map(|one| (text(one, "agent"), text(one, "scope"), text(one, "state")))
        .collect()
}

#[test]
fn from_nothing_to_installed_and_back_to_nothing() {
    let sandbox = project();
    let dir = sandbox.path.join("p");
    for (name, file) in AGENTS {
        let shown = agent(&sandbox, &["install", name, "--dry-run"]).ok();
        assert!(
            shown.out().contains(file) && shown.err().contains("would change"),
            "{}",
            shown.out()
        );
        assert_eq!(
            fs::read_dir(&dir).expect("p").count(),
            0,
            "a dry run changes nothing"
        );
        agent(&sandbox, &["install", name]).ok();
        let made = fs::read_to_string(dir.join(file)).expect("settings");
        assert!(
            made.contains(&format!("ckptfs agent hook --agent {name}")),
            "{made}"
        );
        assert_eq!(
            states(&sandbox),
            [(
                name.to_owned(),
                "project".to_owned(),
                "installed".to_owned()
            )]
        );
        // A repeated install changes nothing, not even an mtime.
        let before = tree_of(&dir);
        let again = agent(&sandbox, &["install", name]).ok();
        assert!(
            again.out().is_empty() && again.err().contains("already installed"),
            "{}",
            again.err()
        );
        assert_tree_is(&dir, &before, &TreeOpts::default());
        agent(&sandbox, &["uninstall", name]).ok();
        assert_eq!(sh(&dir, "find . -mindepth 1"), "", "{name} leaves no files");
        assert!(states(&sandbox).is_empty());
    }
}

#[test]
fn what_is_somebody_else_s_stays() {
    let theirs = "{\n\t// mine\n\t\"permissions\": { \"allow\": [\"Bash(ls)\"] },\n\t\"hooks\": {\n\t\t\"Stop\": [\n\t\t\t{ \"hooks\": [{ \"type\": \"command\", \"command\": \"say done\" }] }\n\t\t],\n\t\t\"Later\": [1]\n\t},\n\t\"a\": 1 /* last */\n}\n";
    for (name, file) in &AGENTS[..4] {
        let sandbox = project();
        sandbox.file(format!("p/{file}"), theirs);
        let path = sandbox.path.join("p").join(file);
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .expect("chmod");
        let done = agent(&sandbox, &["install", name]).ok();
        // The difference contains only added lines.
        let (gone, out) = (done.out(), done.out());
        let gone = gone
            .lines()
            .filter(|line| line.starts_with('-') && !line.starts_with("---"));
        assert!(gone.clone().count() <= 4, "{out}");
        let made = fs::read_to_string(&path).expect("settings");
        for line in ["// mine", "say done", "/* last */", "\"Later\": [1]"] {
            assert!(made.contains(line), "{line} in {made}");
        }
        assert_eq!(
            sh(&sandbox.path, &format!("stat -c %a p/{file}")).trim(),
            "600"
        );
        let backup =
            fs::read_to_string(format!("{}.before-ckptfs", path.display())).expect("a copy");
        assert_eq!(backup, theirs);
        agent(&sandbox, &["uninstall", name]).ok();
        let left = fs::read_to_string(&path).expect("settings");
        for line in ["// mine", "say done", "/* last */", "\"Later\": [1]"] {
            assert!(left.contains(line), "{line} in {left}");
        }
        assert!(!left.contains("ckptfs"), "{left}");
    }
}

#[test]
fn an_older_version_s_hooks_are_replaced() {
    let sandbox = project();
    let old = r#"{"hooks":{"Stop":[{"hooks":[{"type":"command","command":"/opt/old/ckptfs agent hook"}]}]}}"#;
    sandbox.file("p/.claude/settings.json", old);
    assert_eq!(states(&sandbox)[0].2, "outdated");
    agent(&sandbox, &["install", "claude-code"]).ok();
    let made = fs::read_to_string(sandbox.path.join("p/.claude/settings.json")).expect("settings");
    assert!(!made.contains("/opt/old"), "{made}");
    assert_eq!(states(&sandbox)[0].2, "installed");
}

#[test]
fn for_a_user_it_is_in_the_home() {
    let sandbox = project();
    for (name, file) in [
        ("claude-code", ".claude/settings.json"),
        ("codex", ".codex/hooks.json"),
        ("opencode", ".config/opencode/plugins/ckptfs.js"),
    ] {
        agent(&sandbox, &["install", name, "--user"]).ok();
        assert!(sandbox.path.join(file).is_file(), "{file}");
        assert_eq!(states(&sandbox)[0].1, "user");
        agent(&sandbox, &["uninstall", name, "--user"]).ok();
        assert!(!sandbox.path.join(file).exists(), "{file}");
    }
}

/// Asserts that both verbs fail with this reason, without a change and without hanging.
fn is_refused(prepare: &dyn Fn(&Path), why: &str) {
    let sandbox = project();
    let dir = sandbox.path.join("p");
    fs::create_dir(dir.join(".claude")).expect("mkdir");
    prepare(&dir);
    let before = tree_of(&dir);
    for verb in ["install", "uninstall"] {
        let ran = agent(&sandbox, &[verb, "claude-code"]);
        let err = ran.err();
        assert!(ran.code == 1 && err.contains(why), "{verb}: {why}: {err}");
    }
    assert_tree_is(&dir, &before, &TreeOpts::default());
    let elsewhere = fs::read_dir(sandbox.path.join("elsewhere"));
    assert_eq!(elsewhere.map_or(0, Iterator::count), 0, "{why}");
}

#[test]
fn hostile_settings_are_refused() {
    let file = ".claude/settings.json";
    let text = |content: &'static str| {
        move |dir: &Path| fs::write(dir.join(file), content).expect("a file")
    };
    is_refused(&text("{ no"), "is not JSON");
    is_refused(&text("[1]"), "its content is not an object");
    is_refused(&text("{\"hooks\": 1}"), "is not an object");
    is_refused(
        &|dir| fs::write(dir.join(file), [0xff, 0xfe]).expect("a file"),
        "not UTF-8",
    );
    is_refused(
        &|dir| drop(sh(dir, &format!("truncate -s 5M {file}"))),
        "longer than 4 MiB",
    );
    is_refused(
        &|dir| fs::write(dir.join(file), "[".repeat(1 << 20)).expect("a file"),
        "nested too deeply",
    );
    is_refused(
        &|dir| drop(sh(dir, &format!("mkfifo {file}"))),
        "not a regular file",
    );
    is_refused(
        &|dir| drop(sh(dir, &format!("mkdir {file}"))),
        "not a regular file",
    );
    is_refused(
        &|dir| symlink("/dev/zero", dir.join(file)).expect("a link"),
        "out of the project",
    );
    is_refused(
        &|dir| symlink("nowhere", dir.join(file)).expect("a link"),
        "dangling",
    );
    is_refused(
        &|dir| symlink(file, dir.join(file)).expect("a link"),
        "dangling",
    );
    is_refused(
        &|dir| {
            fs::remove_dir(dir.join(".claude")).expect("rmdir");
            fs::create_dir(dir.join("../elsewhere")).expect("mkdir");
            symlink("../elsewhere", dir.join(".claude")).expect("a link");
        },
        "out of the project",
    );
    is_refused(
        &|dir| {
            drop(sh(
                dir,
                &format!("echo '{{}}' > {file}; chown 61236 {file}"),
            ))
        },
        "another user",
    );
}

/// Many users have their settings elsewhere, behind a link: the target is changed, and the link is
/// preserved.
#[test]
fn a_link_within_reach_is_followed() {
    let sandbox = project();
    sandbox.file("p/dotfiles/settings.json", "{\"model\": \"x\"}\n");
    fs::create_dir(sandbox.path.join("p/.claude")).expect("mkdir");
    let link = sandbox.path.join("p/.claude/settings.json");
    symlink("../dotfiles/settings.json", &link).expect("a link");
    agent(&sandbox, &["install", "claude-code"]).ok();
    assert!(link.symlink_metadata().expect("the link").is_symlink());
    let made = fs::read_to_string(&link).expect("settings");
    assert!(
        made.contains("\"model\": \"x\"") && made.contains("agent hook"),
        "{made}"
    );
    // In a home directory it may lead to any file of the user.
    sandbox.file("elsewhere/hooks.json", "{}\n");
    fs::create_dir(sandbox.path.join(".codex")).expect("mkdir");
    symlink(
        "../elsewhere/hooks.json",
        sandbox.path.join(".codex/hooks.json"),
    )
    .expect("a link");
    agent(&sandbox, &["install", "codex", "--user"]).ok();
    let made = fs::read_to_string(sandbox.path.join("elsewhere/hooks.json")).expect("settings");
    assert!(made.contains("agent hook"), "{made}");
}

/// With `sudo`, HOME may belong to another user, who can put links there.
#[test]
fn a_link_out_of_somebody_else_s_home_is_not_followed() {
    let sandbox = project();
    sandbox.file("elsewhere/settings.json", "{}\n");
    let home = sandbox.path.join("home");
    fs::create_dir(&home).expect("mkdir");
    symlink("../elsewhere", home.join(".claude")).expect("a link");
    let install = || {
        let mut command = sandbox.command("p");
        command.args(["agent", "install", "claude-code", "--user"]);
        command.env("HOME", &home).output().expect("it runs")
    };
    if std::os::unix::fs::chown(&home, Some(61236), None).is_err() {
        return skip("only root can give a directory away");
    }
    let err = String::from_utf8_lossy(&install().stderr).into_owned();
    assert!(
        err.contains("leads out of a home that is not yours"),
        "{err}"
    );
    let text = || fs::read_to_string(sandbox.path.join("elsewhere/settings.json")).expect("it");
    assert_eq!(text(), "{}\n");
    std::os::unix::fs::chown(&home, Some(0), None).expect("chown");
    assert!(install().status.success() && text().contains("agent hook"));
}

/// The plugin in the repository has the same hooks as installed settings, and the skill.
/// CKPTFS_BLESS=1 updates it.
#[test]
fn the_plugin_is_what_install_writes() {
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount/claude-plugin");
    let sandbox = project();
    agent(&sandbox, &["install", "claude-code"]).ok();
    let read = |path: &Path| {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let json = |path: &Path| -> Value { serde_json::from_str(&read(path)).expect("JSON") };
    let dir = sandbox.path.join("p");
    let bless = std::env::var_os("CKPTFS_BLESS").is_some();
    let hooks = &json(&dir.join(".claude/settings.json"))["hooks"];
    let mut known = json(&plugin.join("hooks/hooks.json"));
    if bless && known["hooks"] != *hooks {
        known["hooks"] = hooks.clone();
        let text = serde_json::to_string_pretty(&known).expect("JSON") + "\n";
        fs::write(plugin.join("hooks/hooks.json"), text).expect("the plugin");
    }
    assert_eq!(known["hooks"], *hooks);
    let skill = "skills/ckptfs/SKILL.md";
    let own = read(&dir.join(".claude").join(skill));
    if bless {
        fs::write(plugin.join(skill), &own).expect("the plugin");
    }
    assert_eq!(read(&plugin.join(skill)), own);
    // The MCP server is registered if the program has one.
    let mcp = dir.join(".mcp.json");
    if mcp.exists() {
        if bless {
            fs::copy(&mcp, plugin.join(".mcp.json")).expect("the plugin");
        }
        assert_eq!(json(&plugin.join(".mcp.json")), json(&mcp));
    }
    let version = json(&plugin.join(".claude-plugin/plugin.json"))["version"].clone();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}

/// A skill begins with its description, and names only existing verbs.
#[test]
fn the_skill_names_verbs_that_there_are() {
    let skill = include_str!("../../../src/cli/agent/text/SKILL.md");
    let head = skill
        .strip_prefix("---\n")
        .and_then(|rest| rest.split_once("\n---\n"))
        .expect("a head")
        .0;
    assert!(
        head.starts_with("name: ckptfs\ndescription: ") && head.len() < 1100,
        "{head}"
    );
    let sandbox = Sandbox::new();
    let verbs: Vec<&str> = skill
        .split("`ckptfs ")
        .skip(1)
        .map(|rest| rest.split([' ', '`']).next().expect("a verb"))
        .collect();
    assert!(verbs.len() > 8, "{verbs:?}");
    for verb in verbs {
        sandbox.ckptfs(&[verb, "--help"]).ok();
    }
}
